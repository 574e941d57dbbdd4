"""Gaussian pooling by any real factor: equation (4), the linear map P of equation (11), one small dense matrix for each axis.

An output pixel is a weighted mean of input pixels (its weights sum to 1 inside the image), so that a constant map
stays constant. A factor of exactly 1 means no pooling.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["PAPER_WIDTH", "gaussian_pool", "pooled_size", "pooling_matrix"]

# Standard deviation of the window, as a multiple of the factor.
PAPER_WIDTH = 2**-0.5


def pooled_size(size: int, factor: float) -> int:
    """Pixels left of `size` after pooling by `factor`; at least one."""
    return max(1, math.floor(size / factor + 0.5))


def pooling_matrix(size: int, factor: float, width: float = PAPER_WIDTH) -> Tensor:
    """Weights (pooled_size, size), float64.

    Pixel k sits at k + 1/2; output i is centred at (i + 1/2) size / pooled_size and sees exp(-distance^2 / 2 sigma^2)
    with sigma = width * factor, up to 3 sigma away.
    """
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"the subsampling factor must be at least 1, got {factor}")
    if factor == 1:
        return torch.eye(size, dtype=torch.float64)
    pooled = pooled_size(size, factor)
    sigma = width * factor
    if 3 * sigma < 0.5:  # the nearest pixel may be half a pixel away
        raise ValueError(
            f"a pooling width of {width} is too narrow for a factor of {factor}; it must be at least {1 / (6 * factor):.3g}"
        )
    centres = (torch.arange(pooled, dtype=torch.float64) + 0.5) * (size / pooled)
    distance = torch.arange(size, dtype=torch.float64) + 0.5 - centres[:, None]  # (pooled, size)
    # the margin keeps a pixel at exactly 3 sigma, whichever way its distance was rounded
    weights = torch.exp(-(distance**2) / (2 * sigma**2)) * (distance.abs() <= 3 * sigma + 1e-9)
    return weights / weights.sum(dim=1, keepdim=True)


@lru_cache(maxsize=256)
def _cached_matrix(size: int, factor: float, width: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a cached inference tensor could not be used in training later
        return pooling_matrix(size, factor, width).to(device, dtype)


def gaussian_pool(maps: Tensor, factor: float, width: float = PAPER_WIDTH) -> Tensor:
    """Pool (..., H, W) to (..., pooled H, pooled W)."""
    if factor == 1:
        return maps
    rows, columns = (_cached_matrix(size, factor, width, maps.dtype, maps.device) for size in maps.shape[-2:])
    return rows @ (maps @ columns.T)
