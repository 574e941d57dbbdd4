"""What images in floating point must be."""

import torch
from torch import Tensor

__all__ = ["check_unit_range"]


def check_unit_range(pixels: Tensor) -> None:
    """Refuse pixels in floating point that are not numbers from 0 to 1; bytes that were made floats are the usual mistake."""
    if not bool(torch.isfinite(pixels).all()):
        raise ValueError("the image holds NaN or infinity; clean it first")
    low, high = (float(each) for each in torch.aminmax(pixels))
    if low < 0 or high > 1:
        raise ValueError(f"pixels in floating point must be from 0 to 1, got {low:g} to {high:g}; divide bytes by 255")
