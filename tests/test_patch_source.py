"""Patches: where they come from, what belongs together, and that what a network learns from them is what it will meet."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sckn import CKN, KernelModel, LayerConfig, NetworkConfig
from sckn.superres.bsds500 import read_bsds500
from sckn.superres.imresize import imresize
from sckn.superres.patch_source import PatchSource, Units, turned
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


@KINDS
@pytest.mark.parametrize("floor", [0.1, 3.0])
def test_patches_divided_by_their_contrast(scale: int, low_resolution: bool, floor: float) -> None:
    """The same places in both sources; what a network sees and what it is to say are divided by one number a patch."""
    config = UpscalerConfig(scale, low_resolution)
    plain = PatchSource(photos(), config, patch=14, margin=2)
    source = PatchSource(photos(), config, patch=14, margin=2, contrast_floor=floor)
    assert source.units == plain.units
    (seen, lost), (inputs, targets) = (each.draw(300, seed=1) for each in (plain, source))
    for index in range(300):
        contrast = float((seen[index].double() ** 2).mean() + floor**2) ** 0.5
        torch.testing.assert_close(inputs[index], seen[index] / contrast, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(targets[index], lost[index] / contrast, rtol=1e-5, atol=1e-6)
    assert float(inputs.square().mean(dim=(1, 2, 3)).max()) < 1


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
    for floor in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="contrast_floor must be a number of at least 0"):
            PatchSource(photos(), UpscalerConfig(2), patch=12, margin=1, contrast_floor=floor)
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
