"""Colours against the values that the standard names, Pillow's luminance, and the way there and back."""

import pytest
import torch
from skimage.color import rgb2ycbcr

from sckn.superres.colour import luminance, rgb_to_ycbcr, ycbcr_to_rgb

CORNERS = {
    (0, 0, 0): (16, 128, 128),
    (255, 255, 255): (235, 128, 128),
    (255, 0, 0): (81.481, 90.203, 240),
    (0, 255, 0): (144.553, 53.797, 34.214),
    (0, 0, 255): (40.966, 240, 109.786),
}


def test_the_corners_of_the_colour_cube() -> None:
    for rgb, ycbcr in CORNERS.items():
        pixel = torch.tensor(rgb, dtype=torch.float64).view(3, 1, 1)
        assert torch.allclose(rgb_to_ycbcr(pixel).flatten(), torch.tensor(ycbcr, dtype=torch.float64))
        assert torch.allclose(ycbcr_to_rgb(rgb_to_ycbcr(pixel)), pixel, atol=1e-9)


def test_as_in_scikit_image() -> None:
    image = torch.rand(5, 7, 3, dtype=torch.float64)
    expected = torch.from_numpy(rgb2ycbcr(image.numpy()))
    assert torch.allclose(rgb_to_ycbcr(255 * image.permute(2, 0, 1)).permute(1, 2, 0), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_luminance_is_the_first_channel(dtype: torch.dtype) -> None:
    images = 255 * torch.rand(2, 3, 4, 5, dtype=dtype)
    assert torch.allclose(luminance(images), rgb_to_ycbcr(images)[:, 0])
    assert torch.equal(luminance(images[:, :1]), images[:, 0])
    assert luminance(images).dtype == dtype


def test_what_is_no_colour_image() -> None:
    for image in (torch.rand(4, 4), torch.rand(2, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="expected a colour image"):
            rgb_to_ycbcr(image)
