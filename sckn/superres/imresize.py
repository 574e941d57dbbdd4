"""Bicubic resizing as Matlab's `imresize` does it, on which every published figure of super-resolution rests.

Others differ: Pillow at the border, torch's own at the border or, without antialiasing, everywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sckn.settings import real_number, whole_number

__all__ = ["BAND", "Taps", "imresize", "reflected", "resample", "resize_taps", "resized_rows"]

BAND = 128  # rows of a large photograph that are held in floating point at a time
SUPPORT = 4.0  # the width of the cubic kernel, in pixels of the image


@dataclass(frozen=True)
class Taps:
    """The pixels along one side that each pixel of the result is a weighted sum of: indices and weights, (out, taps)."""

    indices: Tensor
    weights: Tensor

    def window(self, start: int, stop: int) -> "Taps":
        """Those of a part of the result, which can then be computed alone."""
        return Taps(self.indices[start:stop], self.weights[start:stop])


def imresize(
    image: Tensor, scale: float | None = None, *, size: tuple[int, int] | None = None, antialias: bool = True
) -> Tensor:
    """Resize an image, or several of one size, (..., H, W), by a factor, or to a size (height, width).

    Cubic convolution with a = -1/2, widened when it shrinks (`antialias`); beyond the border the image is mirrored, its
    last pixel included. As in Matlab a factor gives sizes rounded up. The work is done in float64 for whole numbers,
    which are rounded and clipped at the end, and for the other types in their own, at least in float32.

    Example
    -------
    >>> imresize(torch.tensor([[0, 50, 100, 150]], dtype=torch.uint8), size=(1, 2))
    tensor([[ 23, 127]], dtype=torch.uint8)
    """
    if image.dim() < 2 or 0 in image.shape[-2:]:
        raise ValueError(f"expected an image of shape (..., H, W) with pixels in it, got {tuple(image.shape)}")
    if (scale is None) == (size is None):
        raise ValueError("imresize needs either a scale or a size (height, width); give one of them")
    height, width = image.shape[-2:]
    if size is None:
        factor = real_number("scale", scale, above=0)
        sides = [(height, math.ceil(height * factor), factor), (width, math.ceil(width * factor), factor)]
    else:
        rows, columns = (whole_number("each side of size", side) for side in size)
        sides = [(height, rows, rows / height), (width, columns, columns / width)]
    whole = not image.is_floating_point()
    work = image.double() if whole else image.to(torch.promote_types(image.dtype, torch.float32))
    for dim, (before, after, factor) in zip((-2, -1), sides, strict=True):
        if (before, factor) != (after, 1.0):
            work = resample(work, resize_taps(before, after, factor, antialias=antialias), dim)
    if whole:
        limits = torch.iinfo(image.dtype)
        work = (work + 0.5).floor().clamp(limits.min, limits.max)
    return work.to(image.dtype)


@lru_cache(maxsize=16)  # photographs of a data set have few sizes
def resize_taps(before: int, after: int, scale: float | None = None, *, antialias: bool = True) -> Taps:
    """How a side of `before` pixels becomes one of `after`; `scale` is after / before unless it was rounded to get there."""
    scale = after / before if scale is None else scale
    stretch = min(scale, 1.0) if antialias else 1.0
    width = SUPPORT / stretch
    # pixel k of the image covers k to k + 1, pixel i of the result i / scale to (i + 1) / scale
    centres = (torch.arange(after, dtype=torch.float64) + 0.5) / scale - 0.5
    first = (centres - width / 2).floor().long()
    indices = first[:, None] + torch.arange(math.ceil(width) + 2)  # (after, taps)
    weights = stretch * _cubic(stretch * (centres[:, None] - indices))
    weights = weights / weights.sum(dim=1, keepdim=True)
    used = (weights != 0).any(dim=0)
    return Taps(reflected(indices[:, used], before), weights[:, used])


def resample(image: Tensor, taps: Taps, dim: int) -> Tensor:
    """The weighted sums along one side of an image in floating point."""
    shape = [1] * image.dim()
    shape[dim] = -1
    indices, weights = taps.indices.to(image.device), taps.weights.to(image)
    # one tap after the other: a matrix would be mostly zeros, and for a large photograph larger than the photograph
    result = image.index_select(dim, indices[:, 0]).mul_(weights[:, 0].view(shape))
    for index, weight in zip(indices.T[1:], weights.T[1:], strict=True):
        result.addcmul_(image.index_select(dim, index), weight.view(shape))
    return result


def resized_rows(rows_of: Callable[[slice], Tensor], taps: tuple[Taps, Taps], top: int, bottom: int) -> Tensor:
    """Some rows of the result, from only those rows (..., b, W) of the image that they need; `taps` of rows and columns."""
    rows = taps[0].window(top, bottom)
    first, last = int(rows.indices.min()), int(rows.indices.max())
    part = rows_of(slice(first, last + 1))
    return resample(resample(part, Taps(rows.indices - first, rows.weights), -2), taps[1], -1)


def reflected(indices: Tensor, size: int) -> Tensor:
    """Where a pixel beyond the border is found: the image is mirrored there, its last pixel included, again and again."""
    folded = indices.remainder(2 * size)
    return torch.where(folded < size, folded, 2 * size - 1 - folded)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel of cubic convolution with a = -1/2."""
    x = distance.abs()
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return torch.where(x <= 1, near, torch.where(x <= 2, far, 0.0))
