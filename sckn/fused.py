"""The kernel map of a layer in one pass over memory, as Triton kernels for NVIDIA GPUs.

    out = |x| kappa(<z, x> / (|x| + offset)) = exp(scale <z, x> + shift),   one scale and shift a pixel

Plain PyTorch makes two passes forward and eight backward over a map of (B, p, H, W) numbers; here it is one each. Maps are in
channels-last order, so that a pixel's numbers lie together. `kernels.Exponential` has the plain form, which gives the
same numbers, and is used wherever this does not apply.
"""

from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

triton: Any = None
tl: Any = None
with suppress(ImportError):  # it comes with PyTorch for NVIDIA GPUs
    triton, tl = import_module("triton"), import_module("triton.language")

__all__ = ["applies", "exponential_of_line"]

# pyright: reportInvalidTypeForm=false

# A program holds whole pixels: this many numbers, and no more channels than that.
BLOCK = 4096


def applies(u: Tensor, scale: Tensor) -> bool:
    """Whether `exponential_of_line` can take these: a channels-last map on a GPU, with one scale a pixel."""
    if triton is None or not u.is_cuda or u.dim() != 4 or u.shape[1] > BLOCK or u.shape[1] == 1 or u.dtype == torch.float64:
        return False
    one_a_pixel = scale.shape == (u.shape[0], 1, *u.shape[2:]) and scale.dtype == torch.float32
    return one_a_pixel and u.is_contiguous(memory_format=torch.channels_last)


def exponential_of_line(u: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """exp(scale u + shift) for u (B, p, H, W) in channels-last order, scale and shift (B, 1, H, W); fp32, differentiable
    once."""
    value: Tensor = _ExponentialOfLine.apply(u, scale, shift)  # pyright: ignore[reportAssignmentType]
    return value


class _ExponentialOfLine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        scale, shift = scale.contiguous(), shift.contiguous()
        value = torch.empty_like(u, dtype=torch.float32)
        pixels, channels, block = _launch(u)
        with torch.cuda.device(u.device):
            _forward[(triton.cdiv(pixels, block),)](
                u, scale, shift, value, pixels, channels, block, triton.next_power_of_2(channels)
            )
        ctx.save_for_backward(u, scale, value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        u, scale, value = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        of_u, of_scale, of_shift = torch.empty_like(u), torch.empty_like(scale), torch.empty_like(scale)
        pixels, channels, block = _launch(u)
        with torch.cuda.device(u.device):
            _backward[(triton.cdiv(pixels, block),)](
                gradient, u, scale, value, of_u, of_scale, of_shift, pixels, channels, block, triton.next_power_of_2(channels)
            )
        return of_u, of_scale, of_shift


def _launch(u: Tensor) -> tuple[int, int, int]:
    """Pixels, channels, and how many pixels a program takes."""
    channels = u.shape[1]
    return u.numel() // max(1, channels), channels, max(1, BLOCK // triton.next_power_of_2(channels))


if triton is not None:

    @triton.jit
    def _forward(u, scale, shift, value, pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):  # noqa: ANN001, ANN202
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        a = tl.load(scale + pixel, mask=pixel < pixels, other=0.0)[:, None]
        b = tl.load(shift + pixel, mask=pixel < pixels, other=0.0)[:, None]
        x = tl.load(u + place, mask=there, other=0.0).to(tl.float32)
        tl.store(value + place, tl.exp(a * x + b), mask=there)

    @triton.jit
    def _backward(  # noqa: ANN202
        gradient,  # noqa: ANN001
        u,  # noqa: ANN001
        scale,  # noqa: ANN001
        value,  # noqa: ANN001
        of_u,  # noqa: ANN001
        of_scale,  # noqa: ANN001
        of_shift,  # noqa: ANN001
        pixels,  # noqa: ANN001
        channels,  # noqa: ANN001
        BLOCK_P: tl.constexpr,
        BLOCK_C: tl.constexpr,
    ):
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        a = tl.load(scale + pixel, mask=pixel < pixels, other=0.0)[:, None]
        x = tl.load(u + place, mask=there, other=0.0).to(tl.float32)
        weighted = tl.load(gradient + place, mask=there, other=0.0) * tl.load(value + place, mask=there, other=0.0)
        tl.store(of_u + place, (weighted * a).to(of_u.dtype.element_ty), mask=there)
        tl.store(of_scale + pixel, tl.sum(weighted * x, axis=1), mask=pixel < pixels)
        tl.store(of_shift + pixel, tl.sum(weighted, axis=1), mask=pixel < pixels)
