"""Triton, where it is installed, and how kernels that work on the pixels or rows of a tensor are launched."""

from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

__all__ = ["BLOCK", "channels_last_on_gpu", "pixels_and_block", "tl", "triton"]

triton: Any = None
tl: Any = None
with suppress(ImportError):  # it comes with PyTorch for NVIDIA GPUs
    triton, tl = import_module("triton"), import_module("triton.language")

# A program holds whole pixels: this many numbers, and no more channels than that.
BLOCK = 4096


def channels_last_on_gpu(maps: Tensor) -> bool:
    """Whether the numbers of a pixel of (B, c, H, W) lie together, on a GPU, and are few enough for one program."""
    if triton is None or not maps.is_cuda or maps.dim() != 4 or maps.dtype == torch.float64:
        return False
    return 1 < maps.shape[1] <= BLOCK and maps.is_contiguous(memory_format=torch.channels_last)


def pixels_and_block(maps: Tensor) -> tuple[int, int]:
    """Pixels of the maps, and how many of them a program takes."""
    channels = maps.shape[1]
    return maps.numel() // max(1, channels), max(1, BLOCK // triton.next_power_of_2(channels))
