"""Single images of all kinds as RGB bytes of one size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_data import write_image
from PIL import Image

from sckn.data.pictures import read_picture
from sckn.superres.photos import open_photo

MODES = [
    ("L", 100, (100, 100, 100), "png"),
    ("1", 1, (255, 255, 255), "png"),
    ("LA", (100, 255), (100, 100, 100), "png"),
    ("LA", (100, 0), (255, 255, 255), "png"),
    ("RGBA", (10, 20, 30, 255), (10, 20, 30), "png"),
    ("RGBA", (10, 20, 30, 0), (255, 255, 255), "png"),
    ("RGBA", (0, 0, 0, 51), (204, 204, 204), "png"),
    ("P", 0, (0, 0, 0), "gif"),
    ("I;16", 51_200, (200, 200, 200), "png"),
    ("I;16", 51_200, (200, 200, 200), "tiff"),
    ("RGB", (10, 20, 30), (10, 20, 30), "bmp"),
    ("RGB", (10, 20, 30), (10, 20, 30), "ppm"),
    ("RGB", (10, 20, 30), (10, 20, 30), "tiff"),
    ("CMYK", (0, 255, 255, 0), (255, 0, 0), "tiff"),
]


@pytest.mark.parametrize(("mode", "color", "expected", "form"), MODES)
def test_every_kind_of_image_becomes_rgb(mode: str, color: Any, expected: tuple[int, ...], form: str, tmp_path: Path) -> None:
    """Over white where it is transparent."""
    image = read_picture(write_image(tmp_path / f"image.{form}", color, mode=mode), 4)
    assert (image.shape, image.dtype) == ((3, 4, 4), np.uint8)
    assert image.reshape(3, -1).T.tolist() == [list(expected)] * 16


def test_grey_in_16_bits_of_a_pgm_file(tmp_path: Path) -> None:
    """The most significant byte comes first, says its format."""
    (tmp_path / "deep.pgm").write_bytes(b"P5 4 4 65535\n" + (51_200).to_bytes(2, "big") * 16)
    assert read_picture(tmp_path / "deep.pgm", 4).tolist() == [[[200] * 4] * 4] * 3
    deep = open_photo(tmp_path / "deep.pgm")
    assert (deep.mode, deep.getpixel((0, 0))) == ("I;16", 51_200)


@pytest.mark.parametrize(("form", "options"), [("jpeg", {"quality": 95}), ("webp", {"lossless": True})])
def test_compressed_formats(form: str, options: dict[str, Any], tmp_path: Path) -> None:
    image = read_picture(write_image(tmp_path / f"image.{form}", (200, 100, 50), **options), 4)
    np.testing.assert_allclose(image.reshape(3, -1).T.astype(int), [[200, 100, 50]] * 16, atol=4)


def halves(width: int, height: int) -> Image.Image:
    """White above, black below."""
    image = Image.new("RGB", (width, height), "black")
    image.paste("white", (0, 0, width, height // 2))
    return image


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [(1, [[255, 255], [0, 0]]), (3, [[0, 0], [255, 255]]), (6, [[0, 255], [0, 255]]), (8, [[255, 0], [255, 0]])],
)
def test_images_are_turned_as_the_camera_was(orientation: int, expected: list[list[int]], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    halves(16, 16).save(tmp_path / "image.png", exif=exif)
    np.testing.assert_allclose(read_picture(tmp_path / "image.png", 2)[0], expected, atol=25)


def test_what_is_not_square_is_stretched_and_not_cut(tmp_path: Path) -> None:
    halves(40, 80).save(tmp_path / "image.png")
    np.testing.assert_allclose(read_picture(tmp_path / "image.png", 4)[0, [0, 3]], [[255] * 4, [0] * 4], atol=25)


def test_fine_patterns_become_their_mean(tmp_path: Path) -> None:
    row, column = np.indices((64, 64))
    Image.fromarray(((row + column) % 2 * 255).astype(np.uint8)).save(tmp_path / "image.png")
    np.testing.assert_allclose(read_picture(tmp_path / "image.png", 4), 127.5, atol=10)


def test_formats_that_are_programs_are_not_opened(tmp_path: Path) -> None:
    """For EPS, Pillow starts Ghostscript, which runs what it finds there."""
    write_image(tmp_path / "image.png", (1, 2, 3), format="EPS")
    with pytest.raises(ValueError, match=r"^not an image of a known format$"):
        read_picture(tmp_path / "image.png", 4)
