"""Patches: where they come from, what belongs together, and that what a network learns from them is what it will meet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sckn import CKN, KernelModel, LayerConfig, NetworkConfig
from sckn.superres.bsds500 import read_bsds500
from sckn.superres.imresize import imresize
from sckn.superres.patch_source import LEAST_SQUARE, PatchSource, Units, degraded, every_shift, turned
from sckn.superres.tiles import Tile
from sckn.superres.upscaler import Upscaler, UpscalerConfig

KINDS = pytest.mark.parametrize(("scale", "low_resolution"), [(2, False), (3, False), (2, True), (3, True)])


def smooth_photo(height: int, width: int, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(height // 4 + 1, width // 4 + 1, generator=draws)
    return imresize(coarse, size=(height, width)).clamp(0, 255).round().to(torch.uint8)


def photos() -> dict[str, Tensor]:
    return {"a": smooth_photo(61, 83), "b": smooth_photo(90, 64, seed=1)}


@KINDS
def test_shapes_units_and_seeds(scale: int, low_resolution: bool) -> None:
    config = UpscalerConfig(scale, low_resolution)
    source = PatchSource(photos(), config, patch=14, margin=2)
    inputs, targets = source.draw(500, seed=1)
    assert inputs.shape == (500, 1, 14, 14)
    assert targets.shape == (500, config.outputs, 10, 10)
    assert inputs.dtype == targets.dtype == torch.float32
    assert float(inputs.square().mean()) == pytest.approx(1, rel=0.2)
    assert float(targets.square().mean()) == pytest.approx(1, rel=0.2)
    again = source.draw(500, seed=1)
    assert torch.equal(inputs, again[0])
    assert torch.equal(targets, again[1])
    assert not torch.equal(inputs, source.draw(500, seed=2)[0])


@KINDS
@pytest.mark.parametrize("count", [1, 5, 8192 + 3])
def test_any_number_of_patches(scale: int, low_resolution: bool, count: int) -> None:
    inputs, targets = PatchSource(photos(), UpscalerConfig(scale, low_resolution), patch=8, margin=2).draw(count, seed=0)
    assert len(inputs) == len(targets) == count
    assert bool(torch.isfinite(inputs.sum() + targets.sum()))


@KINDS
def test_a_model_that_knows_the_targets_upscales_perfectly(scale: int, low_resolution: bool) -> None:
    """What is learned here is what is used there: on patches that were not turned, a network's error is that of what an
    upscaler's network adds to interpolation."""
    config = UpscalerConfig(scale, low_resolution)
    network = CKN(NetworkConfig(1, (LayerConfig(4, 3, padding=False), LayerConfig(5, 3, padding=False))))
    photo = smooth_photo(66, 78)
    source = PatchSource({"a": photo}, config, patch=12, margin=2)
    weights = torch.randn(5, config.outputs)
    model = KernelModel(network, weights, per_pixel=True)
    upscaler = Upscaler(
        KernelModel(network, weights * source.units.target, per_pixel=True),
        UpscalerConfig(scale, low_resolution, detail_unit=source.units.detail),
    )
    inputs, targets = source.draw(8 * 40, seed=0)
    errors = (targets - model.predict(inputs))[::8] * source.units.target  # those that were not turned
    if low_resolution:
        errors = torch.nn.functional.pixel_shuffle(errors, scale)
    small = imresize(photo.float(), 1 / scale)
    around = Tile(0, small.shape[0], 0, small.shape[1]).cut(small, upscaler.context)
    with torch.no_grad():
        whole = (photo - imresize(small, scale) - upscaler(around[None, None])[0, 0]).double()
    size = errors.shape[-1]
    windows = whole.unfold(0, size, 1).unfold(1, size, 1).flatten(0, 1).flatten(1)
    for error in errors[:, 0].double().flatten(1):
        assert (windows - error).abs().amax(dim=1).min() < 0.1  # half precision


@KINDS
def test_turned_patches_are_patches_of_the_turned_photo(scale: int, low_resolution: bool) -> None:
    """For each orientation the patches drawn are found in the photograph turned that way, inputs and targets alike."""
    config = UpscalerConfig(scale, low_resolution)
    side = 12 * scale
    photo = smooth_photo(side, side)
    # a photograph hardly larger than the patch, so that there are few places
    patch = (12 if low_resolution else side) - 4 - 1
    source = PatchSource({"a": photo}, config, patch=patch, margin=1)
    inputs, targets = source.draw(8 * 16, seed=0)
    for symmetry in range(8):
        other = PatchSource({"a": turned(photo[None, None], symmetry)[0, 0]}, config, patch=patch, margin=1, units=source.units)
        found_inputs, found_targets = (part[::8] for part in other.draw(8 * 60, seed=1))
        pairs = torch.cat([found_inputs.flatten(1), found_targets.flatten(1)], dim=1)
        ours = torch.cat([inputs[symmetry::8].flatten(1), targets[symmetry::8].flatten(1)], dim=1)
        assert torch.cdist(ours, pairs).min(dim=1).values.max() < 0.1


def test_every_shift_gives_the_small_images_of_all_grids() -> None:
    """The small image of a shifted photograph is what a tap filter at all pixels has there, away from the border."""
    photo = smooth_photo(61, 50)
    scale = 3
    shifted = every_shift({"a": photo}, scale)
    assert list(shifted)[:4] == ["a+0+0", "a+0+1", "a+0+2", "a+1+0"]
    assert len(shifted) == scale**2
    # antialiased bicubic at every pixel: distances k / 3 from the centre of a small pixel, 3 k / 2 wide on each side
    distance = torch.arange(-5, 6).double().abs() / scale
    cubic = torch.where(distance <= 1, 1.5 * distance**3 - 2.5 * distance**2 + 1, 0.0)
    far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    taps = torch.where((distance > 1) & (distance < 2), far, cubic) / scale
    taps = taps / taps.sum()
    everywhere = torch.nn.functional.conv2d(photo.double()[None, None], torch.outer(taps, taps)[None, None])[0, 0]
    for top in range(scale):
        for left in range(scale):
            small = imresize(shifted[f"a+{top}+{left}"][:42, :42].double(), 1 / scale)
            # small pixel (i, j) is centred on pixel 3 i + 1 of its photograph; the filter loses 5 pixels
            i, j = torch.meshgrid(torch.arange(3, 11), torch.arange(3, 11), indexing="ij")
            torch.testing.assert_close(small[i, j], everywhere[3 * i + 1 + top - 5, 3 * j + 1 + left - 5])


def test_every_place_is_as_likely() -> None:
    ramp = torch.arange(30, dtype=torch.uint8).repeat(20, 1)
    source = PatchSource({"small": smooth_photo(20, 20), "ramp": ramp}, UpscalerConfig(2), patch=12, margin=1)
    inputs, _ = source.draw(8 * 2000, seed=0)
    # the ramp has no detail but at its ends; it has 15 x 5 places, the other photograph 5 x 5
    flat = (inputs.abs().amax(dim=(1, 2, 3)) < 0.15).float().mean()
    assert 0.4 < float(flat) < 0.8


def test_units_of_others() -> None:
    source = PatchSource(photos(), UpscalerConfig(2), patch=12, margin=1)
    other = PatchSource(photos(), UpscalerConfig(2), patch=12, margin=1, units=Units(2 * source.units.detail, 1.0))
    assert torch.allclose(2 * other.draw(9, seed=0)[0], source.draw(9, seed=0)[0], atol=1e-5)
    flat = PatchSource({"flat": torch.zeros(30, 30, dtype=torch.uint8)}, UpscalerConfig(2), patch=12, margin=1)
    assert bool(torch.isfinite(flat.draw(3, seed=0)[0]).all())


def flat_and_busy() -> dict[str, Tensor]:
    """Photographs with next to no detail on one side and much on the other."""
    contrast = torch.linspace(0.02, 1, 64)
    return {name: (128 + contrast * (photo[:60, :64].float() - 128)).to(torch.uint8) for name, photo in photos().items()}


@KINDS
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_places_by_their_contrast(scale: int, low_resolution: bool, power: float) -> None:
    """Means over many draws are those over all places, each with the probability and the divisor that contrast gives it.

    (At power 1 they are the same whatever the contrast is, as they are to be; the others show that it is the right one.)
    """
    config = UpscalerConfig(scale, low_resolution)
    settings: dict[str, Any] = {"patch": 9, "margin": 2}
    source = PatchSource(flat_and_busy(), config, **settings, contrast_power=power)
    assert source.units == PatchSource(flat_and_busy(), config, **settings).units
    fine = scale if low_resolution else 1
    squares, chances, pairs = [], [], []
    for photo in flat_and_busy().values():
        seen, lost = degraded(photo, config)
        inputs = (seen.double() / source.units.detail).unfold(0, 9, 1).unfold(1, 9, 1).flatten(0, 1)  # (places, 9, 9)
        inner = (lost.double() / source.units.target)[2 * fine : -2 * fine, 2 * fine : -2 * fine]
        targets = inner.unfold(0, 5 * fine, fine).unfold(1, 5 * fine, fine).flatten(0, 1)
        mean_squares = [inputs[:, 2:-2, 2:-2].square().mean(dim=(1, 2)), targets.square().mean(dim=(1, 2))]
        contrast = ((mean_squares[0] + LEAST_SQUARE) * (mean_squares[1] + LEAST_SQUARE)) ** 0.25
        chances.append(contrast ** (2 * power))
        pairs.append(torch.cat([inputs.flatten(1), targets.flatten(1)], dim=1) / contrast[:, None])
        squares.append(pairs[-1].square())
    chance = torch.cat(chances)
    chance /= chance.sum()
    expected, scatter = (chance @ torch.cat(squares), chance @ torch.cat(squares).square())
    drawn = 8 * 16000
    inputs, targets = (part[::8].double() for part in source.draw(drawn, seed=0))  # those that are not turned
    targets = torch.nn.functional.pixel_shuffle(targets, fine)
    found = torch.cat([inputs.flatten(1), targets.flatten(1)], dim=1).square()
    deviations = (found.mean(dim=0) - expected) / ((scatter - expected.square()) / 16000).sqrt()
    assert 0.7 < float(deviations.square().mean()) ** 0.5 < 1.4  # neighbours go together, so they are not all independent
    assert float(deviations.abs().max()) < 5
    if power:  # all places alike would be found out
        alike = (torch.cat(squares).mean(dim=0) - expected) / ((scatter - expected.square()) / 16000).sqrt()
        assert float(alike.square().mean()) ** 0.5 > 2


@pytest.mark.parametrize("size", [(1, 40), (3, 3), (17, 40)])
@KINDS
def test_photos_that_are_too_small_are_named(scale: int, low_resolution: bool, size: tuple[int, int]) -> None:
    small = {**photos(), "small.png": torch.zeros(size, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=rf"small\.png has {size[1]} x {size[0]} pixels, but patches of 16 need at least"):
        PatchSource(small, UpscalerConfig(scale, low_resolution), patch=16, margin=1)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="patch must be larger than 18 pixels"):
        PatchSource(photos(), UpscalerConfig(2), patch=18, margin=9)
    with pytest.raises(ValueError, match="no photographs"):
        PatchSource({}, UpscalerConfig(2), patch=32, margin=9)
    for power in (-1.0, float("nan"), 5.0):
        with pytest.raises(ValueError, match="contrast_power must be a number of at least 0 and of at most 4"):
            PatchSource(photos(), UpscalerConfig(2), patch=12, margin=1, contrast_power=power)
    source = PatchSource(photos(), UpscalerConfig(2), patch=12, margin=1)
    with pytest.raises(ValueError, match="count must be a whole number"):
        source.draw(0, seed=0)


@pytest.mark.parametrize("place", [".", "BSDS500", "BSR/BSDS500/data/images"])
def test_bsds500_is_read_without_the_photo_of_a_test_set(tmp_path: Path, place: str) -> None:
    for name in ("train/302003.jpg", "train/2.jpg", "val/1.jpg", "test/302003.jpg"):
        path = tmp_path / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 6, 3), 100, np.uint8)).save(path)
    found = read_bsds500(tmp_path)
    assert list(found) == ["test/302003.jpg", "train/2.jpg", "val/1.jpg"]
    assert all(photo.shape == (8, 6) and photo.dtype == torch.uint8 for photo in found.values())


def test_a_folder_without_bsds500(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not hold BSDS500: expected its folders train, val, test"):
        read_bsds500(tmp_path)
