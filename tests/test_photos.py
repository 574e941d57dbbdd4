"""Files of photographs: read whole or refused in one sentence, written with what belongs to them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sckn.superres.photos import open_photo, photo_files, read_luminance, write_photo


@pytest.fixture
def image() -> Image.Image:
    """Eight by five, all pixels different, said to be turned by a quarter, with a profile."""
    image = Image.fromarray(np.arange(5 * 8 * 3, dtype=np.uint8).reshape(5, 8, 3))
    exif = image.getexif()
    exif[0x0112] = 6
    image.info.update(exif=exif.tobytes(), icc_profile=b"a profile")
    return image


def test_the_files_of_a_folder_in_order(tmp_path: Path, image: Image.Image) -> None:
    for name in ("b.png", "a.JPG", ".hidden.png", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in photo_files(tmp_path)] == ["a.JPG", "b.png"]


def test_luminance_of_colours_grey_and_alpha(tmp_path: Path) -> None:
    colours = np.random.RandomState(0).randint(0, 256, (4, 6, 3)).astype(np.uint8)
    expected = np.floor(16 + colours @ np.array([65.481, 128.553, 24.966]) / 255 + 0.5)
    for name, mode in (("rgb.png", "RGB"), ("rgba.png", "RGBA")):
        Image.fromarray(colours).convert(mode).save(tmp_path / name)
        found = read_luminance(tmp_path / name)
        assert found.dtype == torch.uint8
        assert np.array_equal(found.numpy(), expected)
    Image.fromarray(colours[:, :, 0]).save(tmp_path / "grey.png")
    assert np.array_equal(read_luminance(tmp_path / "grey.png").numpy(), colours[:, :, 0])
    deep = colours[:, :, 0].astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(read_luminance(tmp_path / "deep.png").numpy(), colours[:, :, 0])


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
def test_orientation_and_profile_are_in_the_file(tmp_path: Path, image: Image.Image, suffix: str) -> None:
    again = open_photo(write_photo(image, tmp_path / f"photo{suffix}"))
    assert ImageOps.exif_transpose(again).size == (5, 8)
    assert again.getexif().get(0x0112) == (None if suffix == ".tif" else 6)  # Pillow turns TIFF files when it reads them
    assert again.info["icc_profile"] == b"a profile"


def test_where_there_is_no_place_for_orientation_it_is_upright(tmp_path: Path, image: Image.Image) -> None:
    again = open_photo(write_photo(image, tmp_path / "photo.bmp"))
    assert again.size == (5, 8)
    assert again.tobytes() == ImageOps.exif_transpose(image).tobytes()


def test_broken_files_are_named(tmp_path: Path, image: Image.Image) -> None:
    whole = tmp_path / "whole.png"
    Image.effect_noise((64, 64), 50).save(whole)
    for name, content in (("cut.png", whole.read_bytes()[:600]), ("text.png", b"not an image"), ("empty.jpg", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as an image \(.*\); give a whole one"):
            read_luminance(tmp_path / name)
    with pytest.raises(ValueError, match="does not exist"):
        open_photo(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        open_photo(tmp_path)
    image.convert("F").save(tmp_path / "numbers.tif")
    with pytest.raises(ValueError, match=r"numbers\.tif: the image has pixels of the kind F"):
        read_luminance(tmp_path / "numbers.tif")


def test_what_cannot_be_written(tmp_path: Path, image: Image.Image) -> None:
    with pytest.raises(ValueError, match="should end in one of"):
        write_photo(image, tmp_path / "photo.xyz")
    with pytest.raises(ValueError, match=r"photo\.jpg cannot hold an image of mode RGBA"):
        write_photo(image.convert("RGBA"), tmp_path / "photo.jpg")
    assert list(tmp_path.iterdir()) == []
