"""Colours of printers and of measuring devices become those that they are on a screen."""

import io

import numpy as np
import pytest
from PIL import Image, ImageCms

from sckn.superres.picture import LeftOutWarning, Picture
from sckn.superres.print_colours import in_rgb

LAB_PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def screen_grey(lightness: float) -> float:
    """The level 0 to 255 in sRGB of a grey of CIE lightness 0 to 100, by the formulas of the two standards."""
    part = (lightness + 16) / 116
    linear = part**3 if part > 6 / 29 else lightness * 27 / 24389
    return 255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("profile", [LAB_PROFILE, b"damaged", None])
def test_greys_of_measuring_devices(profile: bytes | None) -> None:
    for level in (0, 40, 128, 200, 255):
        image = Image.new("LAB", (2, 2), (level, 128, 128))
        if profile is not None:
            image.info["icc_profile"] = profile
        shown, _ = in_rgb(image)
        assert np.abs(np.asarray(shown).astype(float) - screen_grey(level / 2.55)).max() <= 1.5


def test_inks_are_what_is_missing_from_white() -> None:
    shown, profile = in_rgb(Image.new("CMYK", (1, 1), (255, 0, 51, 0)))
    assert shown.getpixel((0, 0)) == (0, 255, 204)
    assert profile is None


@pytest.mark.parametrize(
    ("mode", "profile", "kept"),
    [("CMYK", b"of a printer", None), ("YCbCr", b"of a screen", b"of a screen"), ("HSV", None, None)],
)
def test_a_picture_of_them_is_one_in_rgb(mode: str, profile: bytes | None, kept: bytes | None) -> None:
    colours = np.random.RandomState(0).randint(0, 256, (5, 4, 3)).astype(np.uint8)
    image = Image.fromarray(colours).convert(mode)
    image.info["dpi"] = (300, 300)
    if profile is not None:
        image.info["icc_profile"] = profile
    with pytest.warns(LeftOutWarning, match=f"its {mode} colours are made RGB"):
        picture = Picture.of(image)
    back = picture.restored(picture.from_levels(picture.levels()))
    assert (back.mode, back.info.get("icc_profile"), back.info["dpi"]) == ("RGB", kept, (300, 300))
    # on the way there and back Pillow drops what is behind the point: of Y up to 1, of Cb up to 1.8, of the end up to 1
    assert np.abs(np.asarray(back).astype(int) - colours).max() <= (8 if mode == "HSV" else 3)


def test_a_profile_that_is_followed_is_replaced_by_that_of_screens() -> None:
    image = Image.new("LAB", (2, 2), (128, 128, 128))
    image.info["icc_profile"] = LAB_PROFILE
    _, profile = in_rgb(image)
    assert profile is not None
    described = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(profile)))
    assert "sRGB" in described
