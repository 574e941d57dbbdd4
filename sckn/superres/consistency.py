"""Images that become a given small one: what is certain about a photograph that was made smaller.

Making smaller is linear: D, of the images that D makes `small` the photograph is one, and they are a plane. So whatever a
network says, the point of the plane that is nearest to it is nearer to the photograph, or the network was right already.
The way there is orthogonal to the plane:

    x + D' (D D')^-1 (small - D x)

For a whole factor s, bicubic interpolation U is s^2 D', at the border, too. D U is a convolution along each side, of
condition 2, and its inverse G a short filter: D' (D D')^-1 = U G is bicubic interpolation of a filtered small image.
"""

from functools import cache

import torch
from torch import Tensor

from sckn.superres.imresize import Taps, imresize, reflected, resample, resize_taps

__all__ = ["FILTER_REACH", "least_image", "nearest_image", "sharpening_weights"]

# Pixels on each side that G looks at. Each weight is a third of the one before: what is left out is below 1e-7.
FILTER_REACH = 16
PERIOD = 128  # pixels along which G is found; at half of that its weights are 0 in float64


@cache
def sharpening_weights(scale: int) -> Tensor:
    """G along one side: (2 FILTER_REACH + 1,), in float64."""
    shrinking = resize_taps(scale * PERIOD, PERIOD, 1 / scale)
    enlarging = resize_taps(PERIOD, scale * PERIOD, float(scale))
    D, U = (torch.zeros(PERIOD, scale * PERIOD, dtype=torch.float64) for _ in range(2))
    D.scatter_add_(1, shrinking.indices, shrinking.weights)
    U.T.scatter_add_(1, enlarging.indices, enlarging.weights)
    middle = PERIOD // 2
    weights = torch.linalg.inv(D @ U.T)[middle, middle - FILTER_REACH : middle + FILTER_REACH + 1]
    return weights / weights.sum()  # so that a constant image stays what it is


def least_image(small: Tensor, scale: int) -> Tensor:
    """U G: of the images (..., scale h, scale w) that become `small` (..., h, w) the one of the least norm."""
    for dim in (-2, -1):
        small = resample(small, _sharpening(small.shape[dim], scale), dim)
    return imresize(small, scale)


def nearest_image(image: Tensor, small: Tensor, scale: int) -> Tensor:
    """Of the images that become `small` (..., h, w) the one nearest to `image` (..., scale h, scale w)."""
    height, width = small.shape[-2:]
    return image + least_image(small - imresize(image, size=(height, width)), scale)


def _sharpening(side: int, scale: int) -> Taps:
    reach = torch.arange(-FILTER_REACH, FILTER_REACH + 1)
    indices = reflected(torch.arange(side)[:, None] + reach, side)
    return Taps(indices, sharpening_weights(scale).expand(side, -1))
