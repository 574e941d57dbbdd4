"""Making images larger: what a pixel depends on, tiles that leave no trace, every kind of image, every factor."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sckn import CKN, CheckpointError, KernelModel, LayerConfig, NetworkConfig, load, save
from sckn.checkpoint import load_upscaler, read_tensors, write_tensors
from sckn.superres.colour import rgb_to_ycbcr, ycbcr_to_rgb
from sckn.superres.consistency import least_image, nearest_image
from sckn.superres.detail import without_local_mean
from sckn.superres.imresize import imresize
from sckn.superres.tiles import count_tiles, cover
from sckn.superres.upscaler import Upscaler, UpscalerConfig

LITTLE = 0.001  # GiB: for tiles of a few dozen pixels with the networks here


def upscaler(scale: int = 2, low_resolution: bool = False, layers: int = 3, weight: float = 10.0) -> Upscaler:
    """Random filters; with weight 0 the network says nothing."""
    config = UpscalerConfig(scale, low_resolution, detail_unit=10.0)
    network = CKN(NetworkConfig(1, tuple(LayerConfig(6, 3, padding=False) for _ in range(layers))))
    return Upscaler(KernelModel(network, weight * torch.randn(6, config.outputs), per_pixel=True), config)


def photo(*shape: int) -> np.ndarray:
    """Coarse noise, made smooth, in bytes."""
    values = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    return np.array(Image.fromarray(values).resize((shape[1] // 3, shape[0] // 3)).resize((shape[1], shape[0])))


KINDS = pytest.mark.parametrize(("scale", "low_resolution"), [(2, False), (3, False), (2, True), (3, True)])


def test_the_detail_is_what_the_box_leaves() -> None:
    image = torch.rand(1, 1, 9, 8, dtype=torch.float64)
    found = without_local_mean(image)
    assert found.shape == (1, 1, 5, 4)
    assert float(found[0, 0, 1, 2]) == pytest.approx(float(image[0, 0, 3, 4] - image[0, 0, 1:6, 2:7].mean()))


@pytest.mark.parametrize(("height", "width", "side"), [(1, 1, 5), (10, 7, 3), (100, 33, 32), (64, 64, 64)])
def test_tiles_cover_every_pixel_once(height: int, width: int, side: int) -> None:
    seen = torch.zeros(2 * height, 2 * width)
    tiles = list(cover(height, width, side))
    for tile in tiles:
        assert tile.bottom - tile.top <= side
        assert tile.right - tile.left <= side
        seen[tile.place(2)] += 1
    assert bool((seen == 1).all())
    assert len(tiles) == count_tiles(height, width, side)


@KINDS
def test_without_weights_it_is_the_least_image_that_becomes_the_small_one(scale: int, low_resolution: bool) -> None:
    y = 255 * torch.rand(14, 11, dtype=torch.float64)
    found = upscaler(scale, low_resolution, weight=0).double().upscale_luminance(y)
    assert torch.allclose(found, least_image(y, scale), atol=1e-9)


@KINDS
def test_a_result_made_smaller_is_what_it_was(scale: int, low_resolution: bool) -> None:
    y = torch.from_numpy(photo(45, 51)).double()
    large = upscaler(scale, low_resolution).double().upscale_luminance(y)
    assert torch.allclose(imresize(large, size=(45, 51)), y, atol=1e-4)


@KINDS
def test_a_pixel_depends_on_what_it_reaches_and_no_more(scale: int, low_resolution: bool) -> None:
    model = upscaler(scale, low_resolution).double()
    y = 255 * torch.rand(80, 80, dtype=torch.float64)
    changed = y.clone()
    changed[40, 40] += 50
    with torch.no_grad():
        said = (model(changed[None, None]) - model(y[None, None]))[0, 0].abs() > 1e-9
    rows = torch.where(said.any(1))[0] // scale + model.context
    assert rows.min() >= 40 - model.context
    assert rows.max() <= 40 + model.context
    assert rows.max() - rows.min() >= 2 * (model.context - 2)  # nor is the context much larger than needed
    moved = (model.upscale_luminance(changed) - model.upscale_luminance(y)).abs()
    rows = torch.where((moved > 0).any(1))[0] // scale
    assert rows.min() >= 40 - model.reach
    assert rows.max() <= 40 + model.reach
    assert rows.max() - rows.min() >= 2 * (model.reach - 5)


@KINDS
def test_the_form_of_the_paper(scale: int, low_resolution: bool) -> None:
    """Local mean plus what the network says plus the detail itself, computed on the whole image; of this the nearest image
    that becomes the small one."""
    model = upscaler(scale, low_resolution).double()
    y = 255 * torch.rand(60, 60, dtype=torch.float64)
    seen = (y if low_resolution else imresize(y, scale))[None, None]
    detail = without_local_mean(seen)
    with torch.no_grad():
        predicted = model.model(detail / 10)
    expected, lost = imresize(y, scale), 5
    if low_resolution:
        for row in range(scale):
            for column in range(scale):
                part = expected[row + lost * scale : -lost * scale : scale, column + lost * scale : -lost * scale : scale]
                part += predicted[0, row * scale + column]
    else:
        mean = (seen[..., 2:-2, 2:-2] - detail)[0, 0, 3:-3, 3:-3]
        expected[lost:-lost, lost:-lost] = mean + detail[0, 0, 3:-3, 3:-3] + predicted[0, 0]
    expected = nearest_image(expected, y, scale)
    # what the border says is not in `expected`; the filter of the projection forgets it by a third with each pixel
    far = scale * 22
    assert torch.allclose(model.upscale_luminance(y)[far:-far, far:-far], expected[far:-far, far:-far], atol=1e-5)


@KINDS
def test_tiles_leave_no_trace(scale: int, low_resolution: bool) -> None:
    model = upscaler(scale, low_resolution)
    y = torch.from_numpy(photo(150, 130)).float()
    side = model._tile_side(LITTLE)
    assert count_tiles(150, 130, side) > 3
    whole, tiled = model.upscale_luminance(y), model.upscale_luminance(y, memory_gib=LITTLE)
    assert torch.allclose(whole, tiled, atol=0.01)
    image = photo(150, 130, 3)
    difference = model.upscale(image).astype(int) - model.upscale(image, memory_gib=LITTLE)
    assert np.abs(difference).max() <= 1


def test_a_constant_stays_and_one_pixel_is_enough() -> None:
    model = upscaler()
    assert np.array_equal(model.upscale(np.full((9, 5), 77, np.uint8)), np.full((18, 10), 77))
    assert np.array_equal(model.upscale(np.full((1, 1, 3), 200, np.uint8)), np.full((2, 2, 3), 200))


def test_luminance_comes_back_as_it_came() -> None:
    model = upscaler()
    y = 255 * np.random.RandomState(0).rand(12, 9)
    result = model.upscale_luminance(y)
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float64
    assert result.shape == (24, 18)
    y.flags.writeable = False
    assert model.upscale_luminance(y[::-1]).shape == (24, 18)  # backwards and read-only
    tensor = model.upscale_luminance(torch.tensor(y).float())
    assert tensor.dtype == torch.float32
    assert np.allclose(tensor.numpy(), result, atol=1e-2)
    assert result.min() < 0 or result.max() > 255 or not np.array_equal(result, result.round())


def test_half_precision_keeps_the_grey_levels() -> None:
    y = 255 * torch.rand(20, 20)
    exact = upscaler(weight=0).upscale_luminance(y)
    assert torch.equal(upscaler(weight=0).to(torch.bfloat16).upscale_luminance(y), exact)


def test_three_by_the_way_of_the_paper_and_directly() -> None:
    model, direct = upscaler(2), upscaler(3)
    y = 255 * torch.rand(16, 12)
    twice = model.upscale_luminance(model.upscale_luminance(y))
    assert torch.allclose(model.upscale_luminance(y, 4), twice, atol=1e-3)
    assert torch.allclose(model.upscale_luminance(y, 3), imresize(twice, 0.75), atol=1e-3)
    assert torch.allclose(model.upscale_luminance(y, 3.5), imresize(twice, 0.875), atol=1e-3)
    assert model.upscale_luminance(y, 3).shape == direct.upscale_luminance(y).shape == (48, 36)


@pytest.mark.parametrize(("factor", "size"), [(1.5, (30, 21)), (2, (40, 28)), (2.3, (46, 32)), (5, (100, 70))])
def test_any_factor(factor: float, size: tuple[int, int]) -> None:
    result = upscaler().upscale(photo(20, 14, 3), factor)
    assert result.shape == (*size, 3)
    assert upscaler().upscale_luminance(np.ones((20, 14)), factor).shape == size


def expected_colours(model: Upscaler, image: np.ndarray) -> Tensor:
    """Luminance by the model, colour differences by bicubic interpolation, without bands and tiles."""
    ycbcr = rgb_to_ycbcr(torch.from_numpy(image).permute(2, 0, 1).float())
    large = imresize(ycbcr, 2)
    large[0] = model.upscale_luminance(ycbcr[0])
    return (ycbcr_to_rgb(large) + 0.5).floor().clamp(0, 255).permute(1, 2, 0)


def test_colours_and_alpha() -> None:
    model, image = upscaler(), photo(90, 70, 4)  # more rows than one band
    result = model.upscale(image)
    assert result.dtype == np.uint8
    assert (torch.from_numpy(result[..., :3]).float() - expected_colours(model, image[..., :3])).abs().max() <= 1
    assert np.array_equal(result[..., 3], imresize(torch.from_numpy(image[..., 3]), 2).numpy())
    assert np.array_equal(model.upscale(image[..., :3]), result[..., :3])


def test_every_kind_of_image_gives_the_same_picture() -> None:
    model, image = upscaler(), photo(20, 16, 3)
    expected = model.upscale(image)
    pillow = model.upscale(Image.fromarray(image))
    assert isinstance(pillow, Image.Image)
    assert np.array_equal(np.asarray(pillow), expected)
    tensor = model.upscale(torch.from_numpy(image).permute(2, 0, 1))
    assert tensor.is_contiguous()
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), expected)
    floating = model.upscale(image / 255)
    assert floating.dtype == np.float64
    assert np.abs(255 * floating - expected).max() < 0.51
    deep = model.upscale(image.astype(np.uint16) * 257)
    assert deep.dtype == np.uint16
    assert np.abs(deep / 257 - expected).max() < 0.51
    grey = model.upscale(image[..., 0])
    assert np.array_equal(model.upscale(image[..., :1])[..., 0], grey)
    assert np.array_equal(np.asarray(model.upscale(Image.fromarray(image[..., 0]))), grey)


def test_orientation_and_profile_are_kept() -> None:
    image = Image.fromarray(photo(20, 16, 3))
    exif = image.getexif()
    exif[0x0112] = 8
    image.info.update(exif=exif.tobytes(), icc_profile=b"a profile")
    result = upscaler().upscale(image)
    assert result.size == (32, 40)
    assert result.getexif()[0x0112] == 8
    assert result.info["icc_profile"] == b"a profile"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((torch.rand(3, 4, 4),), r"expected luminance \(H, W\) in floating point"),
        ((torch.rand(0, 4),), r"expected luminance \(H, W\)"),
        ((torch.zeros(4, 4, dtype=torch.uint8),), "floating point, got"),
        ((torch.full((4, 4), torch.nan),), "NaN or infinity"),
        ((np.full((4, 4), np.inf),), "NaN or infinity"),
        ((torch.rand(4, 4), 1.0), "factor must be a number above 1"),
        ((torch.rand(4, 4), "2"), "factor must be a number above 1"),
    ],
)
def test_what_it_refuses(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        upscaler().upscale_luminance(*arguments)


def test_too_little_memory_says_how_much_is_needed() -> None:
    with pytest.raises(ValueError, match="a memory of 1e-05 GiB is too little for this model; give at least 0") as refused:
        upscaler().upscale(photo(9, 9, 3), memory_gib=1e-5)
    enough = float(str(refused.value).split()[-1])
    assert upscaler().upscale(photo(9, 9, 3), memory_gib=enough).shape == (18, 18, 3)
    with pytest.raises(ValueError, match="memory_gib must be a number above 0"):
        upscaler().upscale(photo(9, 9, 3), memory_gib=0)


@pytest.mark.parametrize(
    ("layer", "channels", "outputs", "per_pixel", "sentence"),
    [
        ({"padding": True}, 1, 1, True, "layer 1 of an upscaler's network must have padding = false"),
        ({"subsampling": 2.0}, 1, 1, True, "subsampling = 1"),
        ({"patch": 2}, 1, 1, True, "odd patch"),
        ({}, 3, 1, True, "in_channels must be 1, got 3"),
        ({}, 1, 4, True, "have 1 outputs, got per_pixel=True and 4"),
        ({}, 1, 1, False, "must act on pixels"),
    ],
)
def test_models_that_cannot_upscale(layer: dict, channels: int, outputs: int, per_pixel: bool, sentence: str) -> None:
    config = LayerConfig(**{"filters": 4, "patch": 3, "padding": False, **layer})
    model = KernelModel(CKN(NetworkConfig(channels, (config,))), torch.zeros(4, outputs), per_pixel=per_pixel)
    with pytest.raises(ValueError, match=sentence):
        Upscaler(model, UpscalerConfig(2))


@KINDS
def test_what_was_saved_comes_back(tmp_path: Path, scale: int, low_resolution: bool) -> None:
    model = upscaler(scale, low_resolution)
    again = load(save(model, tmp_path / "upscaler.safetensors"))
    assert isinstance(again, Upscaler)
    assert again.config == model.config
    y = 255 * torch.rand(12, 12)
    assert torch.equal(again.upscale_luminance(y), model.upscale_luminance(y))
    assert load_upscaler(tmp_path / "upscaler.safetensors").config == model.config
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds a network with a linear model alone, but an upscaler"):
        load_upscaler(save(model.model, tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scale": 2, "low_resolution": True}, "an upscaler that cannot work: at scale 2"),
        ({"scale": 1}, "cannot be read: scale must be a whole number of at least 2"),
        ({"factor": 2}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_a_damaged_description_is_named(tmp_path: Path, settings: Any, sentence: str) -> None:
    content = read_tensors(save(upscaler(), tmp_path / "a.safetensors"), ("Upscaler",))
    metadata = {**content.metadata, "upscaler": json.dumps(settings)}
    write_tensors(tmp_path / "b.safetensors", "Upscaler", content.tensors, metadata)
    with pytest.raises(CheckpointError, match=sentence):
        load(tmp_path / "b.safetensors")


def test_the_tiles_that_are_done_are_reported() -> None:
    told: list[tuple[int, int]] = []
    model = upscaler(2)
    model.upscale(np.zeros((40, 90, 3), np.uint8), 4, tile=20, progress=False, report=lambda *each: told.append(each))
    # two passes: on 40 x 90 pixels, then on 80 x 180
    assert told == [(done, 2 * 5 + 4 * 9) for done in range(1, 47)]
    told.clear()
    model.upscale_luminance(torch.zeros(40, 90), tile=45, report=lambda *each: told.append(each))
    assert told == [(1, 2), (2, 2)]


LARGE = """
import resource, sys
import numpy as np
from sckn import load
image = np.random.RandomState(0).randint(0, 256, (2000, 3000, 3)).astype(np.uint8)
assert load(sys.argv[1]).upscale(image).shape == (4000, 6000, 3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere peak memory is told in other units")
def test_twenty_four_megapixels_fit_in_two_gibibytes(tmp_path: Path) -> None:
    path = save(upscaler(low_resolution=True, layers=2), tmp_path / "upscaler.safetensors")
    run = subprocess.run([sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 2
