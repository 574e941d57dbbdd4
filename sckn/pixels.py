"""What the pixels of images must be, and arrays of them as tensors."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["check_unit_range", "tensor_of"]


def check_unit_range(pixels: Tensor) -> None:
    """Refuse pixels in floating point that are not numbers from 0 to 1; bytes that were made floats are the usual mistake."""
    if not bool(torch.isfinite(pixels).all()):
        raise ValueError("the pixels hold NaN or infinity; clean them first")
    low, high = (float(each) for each in torch.aminmax(pixels))
    if low < 0 or high > 1:
        raise ValueError(f"pixels in floating point must be from 0 to 1, got {low:g} to {high:g}; divide bytes by 255")


def tensor_of(array: np.ndarray) -> Tensor:
    """Of any array of numbers that torch knows: in the byte order of the machine, not read-only, nowhere backwards."""
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(native if native.flags.writeable else native.copy())
    except TypeError:
        raise ValueError(f"expected pixels in bytes (uint8) or floating point, got {array.dtype}; convert them") from None
