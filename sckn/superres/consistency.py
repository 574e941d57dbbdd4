"""Images that, made smaller, are a given small one: what is certain about a photograph that bicubic interpolation made smaller.

Making smaller is linear, D. The images that D turns into `small` are a plane, and the photograph is one of them. So of an image
x beside the plane the nearest point of it is nearer to the photograph than x, whatever the photograph is:

    x + D' (D D')^-1 (small - D x)

For a whole factor s, bicubic interpolation U is s^2 D', at the border, too. D U is a convolution along each side, of condition
2.1 at most, and its inverse G a short filter: D' (D D')^-1 = U G is bicubic interpolation of a filtered small image.
"""

from functools import cache

import torch
from torch import Tensor

from sckn.settings import whole_number
from sckn.superres.imresize import BAND, Taps, imresize, reflected, resample, resize_taps, resized_rows

__all__ = ["FILTER_REACH", "least_image", "move_to_nearest_image", "nearest_image", "sharpening_weights"]

# Pixels on each side that G looks at. Weights alternate in sign and fall to a third with each: less than 1e-7 is left out.
FILTER_REACH = 16
PERIOD = 128  # pixels along which G is found; at half of that its weights are below the rounding of float64


@cache
def sharpening_weights(scale: int) -> tuple[float, ...]:
    """G along one side, 2 FILTER_REACH + 1 weights."""
    scale = whole_number("scale", scale, least=2)
    shrinking = resize_taps(scale * PERIOD, PERIOD, 1 / scale)
    enlarging = resize_taps(PERIOD, scale * PERIOD, float(scale))
    D, U = (torch.zeros(PERIOD, scale * PERIOD, dtype=torch.float64) for _ in range(2))
    D.scatter_add_(1, shrinking.indices, shrinking.weights)
    U.T.scatter_add_(1, enlarging.indices, enlarging.weights)
    middle = PERIOD // 2
    weights = torch.linalg.inv(D @ U.T)[middle, middle - FILTER_REACH : middle + FILTER_REACH + 1]
    return tuple((weights / weights.sum()).tolist())  # so that a constant image stays what it is


def least_image(small: Tensor, scale: int) -> Tensor:
    """U G: of the images (..., scale h, scale w) that become `small` (..., h, w) the one of the least norm."""
    return imresize(_sharpened(_checked(small), scale), scale)


def nearest_image(image: Tensor, small: Tensor, scale: int) -> Tensor:
    """Of the images that become `small` (..., h, w) the one nearest to `image` (..., scale h, scale w)."""
    return move_to_nearest_image(_checked(image).clone(), small, scale)


def move_to_nearest_image(image: Tensor, small: Tensor, scale: int) -> Tensor:
    """`nearest_image` in the place of `image`, some rows at a time: a copy of a large photograph would take much memory."""
    height, width = small.shape[-2:]
    size = scale * height, scale * width
    if image.shape != (*small.shape[:-2], *size):
        raise ValueError(f"images that become {tuple(small.shape)} at scale {scale} cannot have the shape {tuple(image.shape)}")
    shrinking = resize_taps(size[0], height, 1 / scale), resize_taps(size[1], width, 1 / scale)
    missing = _checked(small).to(image, copy=True)
    for top in range(0, height, BAND):
        bottom = min(top + BAND, height)
        missing[..., top:bottom, :] -= resized_rows(lambda rows: image[..., rows, :], shrinking, top, bottom)
    missing = _sharpened(missing, scale)
    enlarging = resize_taps(height, size[0], float(scale)), resize_taps(width, size[1], float(scale))
    for top in range(0, size[0], BAND):
        bottom = min(top + BAND, size[0])
        image[..., top:bottom, :] += resized_rows(lambda rows: missing[..., rows, :], enlarging, top, bottom)
    return image


def _checked(image: Tensor) -> Tensor:
    """In fp32 at least, of which G needs the digits."""
    if not image.is_floating_point():
        raise ValueError(f"expected an image in floating point, got {image.dtype}")
    return image.to(torch.promote_types(image.dtype, torch.float32))


def _sharpened(small: Tensor, scale: int) -> Tensor:
    """G along both sides; beyond the border the image is mirrored."""
    for dim in (-2, -1):
        side = small.shape[dim]
        indices = reflected(torch.arange(side)[:, None] + torch.arange(-FILTER_REACH, FILTER_REACH + 1), side)
        weights = torch.tensor(sharpening_weights(scale), dtype=torch.float64)
        small = resample(small, Taps(indices, weights.expand(side, -1)), dim)
    return small
