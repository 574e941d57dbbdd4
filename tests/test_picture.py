"""Images of every kind come in and go out as they were; what is no image is named."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sckn.superres.colour import luminance
from sckn.superres.picture import Picture

RANDOM = np.random.RandomState(0)


def array(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    values = RANDOM.rand(*shape)
    return values.astype(dtype) if np.issubdtype(dtype, np.floating) else (values * np.iinfo(dtype).max).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, np.float16, ">u2"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 2), (5, 4, 3), (5, 4, 4)])
def test_arrays_come_back(dtype: Any, shape: tuple[int, ...]) -> None:
    image = array(*shape, dtype=np.dtype(dtype))
    picture = Picture.of(image)
    channels = shape[2] if len(shape) == 3 else 1
    assert tuple(picture.pixels.shape) == (channels, 5, 4)
    assert picture.size == (5, 4)
    assert picture.colours == (3 if channels > 2 else 1)
    levels = picture.levels()
    assert levels.dtype == torch.float32
    assert 0 <= float(levels.min()) <= float(levels.max()) <= 255
    back = picture.restored(picture.from_levels(levels))
    assert back.shape == image.shape
    assert back.dtype == image.dtype.newbyteorder("=")
    assert np.allclose(back.astype(float), image.astype(float), atol=0 if np.issubdtype(image.dtype, np.integer) else 1e-3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (3, 5, 4), (4, 5, 4)])
def test_tensors_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    image = torch.rand(shape) if dtype.is_floating_point else torch.randint(0, 256, shape, dtype=torch.int32).to(dtype)
    picture = Picture.of(image)
    back = picture.restored(picture.from_levels(picture.levels()))
    assert back.shape == image.shape
    assert back.dtype == dtype
    assert torch.allclose(back.float(), image.float(), atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "after"), [("L", "L"), ("LA", "LA"), ("RGB", "RGB"), ("RGBA", "RGBA"), ("1", "L"), ("P", "RGB")]
)
def test_pillow_images_come_back(mode: str, after: str) -> None:
    image = Image.fromarray(array(5, 4, 3)).convert("RGB").convert(mode)
    picture = Picture.of(image)
    back = picture.restored(picture.from_levels(picture.levels()))
    assert back.mode == after
    assert back.tobytes() == image.convert(after).tobytes()


def test_sixteen_bits_of_pillow() -> None:
    values = array(5, 4, dtype=np.uint16)
    picture = Picture.of(Image.fromarray(values))
    back = picture.restored(picture.from_levels(picture.levels()))
    assert back.mode == "I;16"
    assert np.array_equal(np.asarray(back), values)


def test_a_transparent_colour_becomes_alpha() -> None:
    image = Image.new("P", (4, 4))
    image.info["transparency"] = 0
    assert len(Picture.of(image).pixels) == 4


def test_exif_and_profile_are_kept() -> None:
    image = Image.fromarray(array(6, 4, 3))
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    exif.get_ifd(0x8769).update({40962: 4, 40963: 6, 37386: 50.0})
    image.info.update(icc_profile=b"a profile", exif=exif.tobytes(), comment=b"not kept")
    picture = Picture.of(image)
    result = picture.restored(torch.zeros(3, 12, 8, dtype=torch.uint8))
    assert result.info["icc_profile"] == b"a profile"
    assert "comment" not in result.info
    assert result.getexif()[0x0112] == 6
    details = result.getexif().get_ifd(0x8769)
    assert (details[40962], details[40963]) == (8, 12)  # its own size, not that of the small picture
    assert float(details[37386]) == 50.0


def test_levels_are_rounded_and_clipped() -> None:
    picture = Picture.of(np.zeros((1, 4), np.uint8))
    levels = torch.tensor([[[-3.0, 1.5, 1.49, 260.0]]])
    assert picture.from_levels(levels).tolist() == [[[0, 2, 1, 255]]]
    wide = Picture.of(np.zeros((1, 4), np.uint16))
    assert wide.from_levels(levels).to(torch.int32).tolist() == [[[0, 386, 383, 65535]]]


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (np.zeros((4, 4, 5), np.uint8), "1 to 4 channels"),
        (np.zeros((0, 4), np.uint8), "pixels in it"),
        (np.zeros(4, np.uint8), r"array \(H, W\)"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"array \(H, W\)"),
        (torch.zeros(4), "1 to 4 channels"),
        (torch.zeros(2, 3, 4, 4), "1 to 4 channels"),
        (np.zeros((4, 4), np.int64), "expected pixels in bytes"),
        (np.zeros((4, 4), complex), "expected pixels in bytes"),
        (np.array([["a"]]), "expected pixels in bytes"),
        (np.full((4, 4), np.nan), "NaN or infinity"),
        (np.full((4, 4), 200.0), "from 0 to 1, got 200 to 200; divide bytes by 255"),
        (Image.new("F", (4, 4)), "pixels of the kind F; expected grey or colours in 8 or 16 bits"),
    ],
)
def test_what_is_no_image(image: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Picture.of(image)


def test_what_is_of_no_known_kind() -> None:
    with pytest.raises(TypeError, match="got list"):
        Picture.of([[1, 2], [3, 4]])  # pyright: ignore[reportArgumentType]


def test_luminance_in_bands() -> None:
    image = array(300, 4, 4)
    expected = luminance(torch.from_numpy(image[..., :3]).permute(2, 0, 1).float())
    assert torch.allclose(Picture.of(image).luminance(), expected)
    assert torch.equal(Picture.of(image[..., :2]).luminance(), torch.from_numpy(image[..., 0]).float())
