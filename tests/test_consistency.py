"""The image nearest to another one among those that become a given small image, against dense linear algebra."""

import numpy as np
import pytest
import torch

from sckn.superres.consistency import (
    FILTER_REACH,
    least_image,
    move_to_nearest_image,
    nearest_image,
    sharpening_weights,
)
from sckn.superres.imresize import imresize

SHAPES = pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 6), (3, 2), (9, 12), (23, 5)])
SCALES = pytest.mark.parametrize("scale", [2, 3, 4, 7])


def shrinking(height: int, width: int, scale: int) -> np.ndarray:
    """D as a matrix (height width, scale height scale width): what becomes of each single pixel."""
    pixels = torch.eye(scale**2 * height * width, dtype=torch.float64).view(-1, scale * height, scale * width)
    return imresize(pixels, size=(height, width)).flatten(1).T.numpy()


@SCALES
@SHAPES
def test_it_is_the_projection(height: int, width: int, scale: int) -> None:
    """numpy's least-squares solution of the shortest way to the plane."""
    image = 100 * torch.randn(scale * height, scale * width, dtype=torch.float64)
    small = 100 * torch.randn(height, width, dtype=torch.float64)
    D = shrinking(height, width, scale)
    missing = small.flatten().numpy() - D @ image.flatten().numpy()
    way = np.linalg.lstsq(D, missing, rcond=None)[0]  # of all solutions the shortest
    found = nearest_image(image, small, scale)
    assert np.allclose(found.numpy(), image.numpy() + way.reshape(image.shape), atol=1e-4)
    assert torch.allclose(imresize(found, size=(height, width)), small, atol=1e-4)


@SCALES
def test_the_least_image_is_nearest_to_nothing(scale: int) -> None:
    small = torch.randn(7, 8, dtype=torch.float64)
    nothing = torch.zeros(7 * scale, 8 * scale, dtype=torch.float64)
    expected = np.linalg.pinv(shrinking(7, 8, scale)) @ small.flatten().numpy()
    assert torch.equal(least_image(small, scale), nearest_image(nothing, small, scale))
    assert np.allclose(least_image(small, scale).numpy().ravel(), expected, atol=1e-6)


@SCALES
@pytest.mark.parametrize("error", [0.0, 0.5, 10.0, 200.0])
def test_no_photograph_gets_further_away(scale: int, error: float) -> None:
    random = torch.Generator().manual_seed(0)
    photo = 255 * torch.rand(12 * scale, 9 * scale, generator=random, dtype=torch.float64)
    said = photo + error * torch.randn(photo.shape, generator=random, dtype=torch.float64)
    found = nearest_image(said, imresize(photo, size=(12, 9)), scale)
    assert float((found - photo).norm()) <= float((said - photo).norm()) + 1e-4


@SCALES
def test_the_filter_is_short(scale: int) -> None:
    """What is left out is of no account: the outermost weight is, and each is less than 0.45 of the one before."""
    weights = np.abs(sharpening_weights(scale)[FILTER_REACH:])
    assert weights[-1] < 1e-7
    assert (weights[1:] < 0.45 * weights[:-1]).all()
    assert sum(sharpening_weights(scale)) == pytest.approx(1)


def test_types_constants_and_several_images() -> None:
    small = torch.full((2, 1, 5, 4), 77.0)
    assert torch.allclose(least_image(small, 3), torch.full((2, 1, 15, 12), 77.0))
    images = torch.rand(2, 1, 15, 12)
    found = nearest_image(images, small, 3)
    assert found.dtype == torch.float32
    assert torch.equal(found[1, 0], nearest_image(images[1, 0], small[1, 0], 3))
    assert torch.equal(nearest_image(images.half(), small.half(), 3), nearest_image(images.half().float(), small, 3))


def test_bands_leave_no_trace_and_the_image_may_be_moved_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    image, small = torch.rand(60, 50), torch.rand(30, 25)
    whole = nearest_image(image, small, 2)
    assert not torch.equal(image, whole)
    monkeypatch.setattr("sckn.superres.consistency.BAND", 7)
    assert move_to_nearest_image(image, small, 2) is image
    assert torch.equal(image, whole)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match=r"expected an image in floating point, got torch\.uint8"):
        least_image(torch.zeros(4, 4, dtype=torch.uint8), 2)
    with pytest.raises(ValueError, match=r"images that become \(4, 4\) at scale 2 cannot have the shape \(1, 1\)"):
        nearest_image(torch.rand(1, 1), torch.rand(4, 4), 2)
    with pytest.raises(ValueError, match="scale must be a whole number of at least 2"):
        least_image(torch.rand(4, 4), 1)
