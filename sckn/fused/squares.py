"""The sum of squares over the channels of a map, |x|^2 of each pixel, in one pass forward and one backward."""

from typing import Any

import torch
from torch import Tensor

from sckn.fused.gpu import channels_last_on_gpu, pixels_and_block, tl, triton

__all__ = ["applies", "squares_gradient", "sum_of_squares"]

# pyright: reportInvalidTypeForm=false

applies = channels_last_on_gpu


def sum_of_squares(maps: Tensor) -> Tensor:
    """(B, c, H, W) in channels-last order -> (B, 1, H, W) in fp32."""
    total = torch.empty(maps.shape[0], 1, *maps.shape[2:], dtype=torch.float32, device=maps.device)
    _launch(_sum, maps, total)
    return total


def squares_gradient(maps: Tensor, gradient: Tensor) -> Tensor:
    """2 x g for maps x (B, c, H, W) and the gradient g (B, 1, H, W), in the type of the maps."""
    result = torch.empty_like(maps)
    _launch(_times, maps, gradient.contiguous(), result)
    return result


def _launch(kernel: Any, maps: Tensor, *others: Tensor) -> None:
    pixels, block = pixels_and_block(maps)
    channels = maps.shape[1]
    with torch.cuda.device_of(maps):
        kernel[(triton.cdiv(pixels, block),)](maps, *others, pixels, channels, block, triton.next_power_of_2(channels))


_sum: Any = None
_times: Any = None

if triton is not None:

    @triton.jit
    def _sum(maps, total, pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):  # noqa: ANN001, ANN202
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        x = tl.load(maps + pixel[:, None] * channels + channel[None, :], mask=there, other=0.0).to(tl.float32)
        tl.store(total + pixel, tl.sum(x * x, axis=1), mask=pixel < pixels)

    @triton.jit
    def _times(maps, gradient, result, pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):  # noqa: ANN001, ANN202
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        x = tl.load(maps + place, mask=there, other=0.0).to(tl.float32)
        g = tl.load(gradient + pixel, mask=pixel < pixels, other=0.0)[:, None]
        tl.store(result + place, (2 * x * g).to(result.dtype.element_ty), mask=there)
