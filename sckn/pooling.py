"""Gaussian pooling by any real factor: equation (4), the linear map P of equation (11), one small dense matrix for each axis.

An output pixel is a weighted mean of input pixels (its weights sum to 1 inside the image), so that a constant map
stays constant. A factor of exactly 1 means no pooling.
"""

import math

import torch
from torch import Tensor

from sckn.capture import capturing
from sckn.fused import pooling as fused

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


# Matrices made so far, the oldest first. A plain dict: torch.compile traces through functools.lru_cache as if it were not
# there, and would build the matrix on the CPU, and copy it, at every call.
_matrices: dict[tuple[object, ...], Tensor] = {}
MOST_MATRICES = 256

# Those that a CUDA graph reads: it knows their addresses alone, so that they may never go.
_captured: dict[tuple[object, ...], Tensor] = {}


def _cached_matrix(size: int, factor: float, width: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`pooling_matrix`, made once for each dtype and device."""
    key = (size, factor, width, dtype, device)
    matrix = _matrices.get(key)
    if matrix is None:
        if capturing(device):
            raise RuntimeError("run the network once on maps of this size before a CUDA graph captures it")
        with torch.inference_mode(False):  # a cached inference tensor could not be used in training later
            matrix = pooling_matrix(size, factor, width).to(device, dtype)
        if len(_matrices) >= MOST_MATRICES:
            _matrices.pop(next(iter(_matrices)), None)
        _matrices[key] = matrix
    if capturing(device):
        _captured[key] = matrix
    return matrix


def gaussian_pool(maps: Tensor, factor: float, width: float = PAPER_WIDTH) -> Tensor:
    """Pool (..., H, W) to (..., pooled H, pooled W)."""
    if factor == 1:
        return maps
    in_one_pass = fused.applies(maps)
    dtype = torch.float32 if in_one_pass else maps.dtype
    rows, columns = (_cached_matrix(size, factor, width, dtype, maps.device) for size in maps.shape[-2:])
    if in_one_pass:
        return fused.pool(maps, rows, columns)
    if maps.dim() == 4 and not maps.is_contiguous() and maps.is_contiguous(memory_format=torch.channels_last):
        # the same in the order in which the numbers lie, (B, H, W, c): nothing need be copied
        count, channels, height, _ = maps.shape
        pooled = rows @ maps.permute(0, 2, 3, 1).reshape(count, height, -1)  # (B, H', W c)
        return (columns @ pooled.reshape(count, len(rows), -1, channels)).permute(0, 3, 1, 2)
    return rows @ (maps @ columns.T)
