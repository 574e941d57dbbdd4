"""The kernel map of a layer with an exponential kernel, equation (11) before pooling, in one pass over memory.

    out = |x| exp(alpha (c - 1)),             c = <z, x> / (|x| + offset),   0 where x is 0,
    out = |x| (exp(alpha c) - 1) / sqrt(alpha (exp(alpha) - 1)),

where c, which rounding may take far beyond 1 (`kernels.WithAlpha`), counts as at most 1.
Plain PyTorch makes two passes forward and eight backward over a map of (B, p, H, W) numbers, and dozens of small ones over
the norms; here it is one each. `kernels.Exponential` and `kernels.CentredExponential` have the plain forms; the difference
costs the latter's digits here where alpha is far below 1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sckn.fused.gpu import channels_last_on_gpu, pixels_and_block, tl, triton

__all__ = ["applies", "exponential_map"]

# pyright: reportInvalidTypeForm=false


def applies(projected: Tensor, squares: Tensor) -> bool:
    """Whether `exponential_map` can take these: a channels-last map on a GPU, with one squared norm a pixel."""
    one_a_pixel = squares.shape == (projected.shape[0], 1, *projected.shape[2:]) and squares.dtype == torch.float32
    return channels_last_on_gpu(projected) and one_a_pixel


def exponential_map(
    projected: Tensor, squares: Tensor, alpha: float | Tensor, offset: float, *, centred: bool = False
) -> Tensor:
    """From <z, x> (B, p, H, W) in channels-last order and |x|^2 (B, 1, H, W); computed in fp32, differentiable once, also
    with respect to alpha. The result is fp32. With `centred`, that of `kernels.CentredExponential`."""
    value: Tensor = _ExponentialMap.apply(projected, squares, alpha, offset, centred)  # pyright: ignore[reportAssignmentType]
    return value


class _ExponentialMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, squares: Tensor, alpha: float | Tensor, offset: float, centred: bool) -> Tensor:
        squares, value = squares.contiguous(), torch.empty_like(u, dtype=squares.dtype)
        pixels, block = pixels_and_block(u)
        learned = isinstance(alpha, Tensor)
        channels = u.shape[1]
        with torch.cuda.device_of(u):
            _forward[(triton.cdiv(pixels, block),)](
                u, squares, alpha, value, pixels, channels, offset, learned, centred, block, triton.next_power_of_2(channels)
            )
        ctx.save_for_backward(u, squares, value, *([alpha] if learned else []))
        ctx.alpha, ctx.offset, ctx.centred = None if learned else alpha, offset, centred
        return value

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        u, squares, value, *learned = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        of_u, of_squares = torch.empty_like(u), torch.empty_like(squares)
        of_alpha = torch.empty_like(squares) if learned else of_squares  # not written where alpha is a number
        pixels, block = pixels_and_block(u)
        channels, alpha = u.shape[1], learned[0] if learned else ctx.alpha
        with torch.cuda.device_of(u):
            _backward[(triton.cdiv(pixels, block),)](
                *(gradient, u, squares, alpha, value, of_u, of_squares, of_alpha),
                *(pixels, channels, ctx.offset, bool(learned), ctx.centred, block, triton.next_power_of_2(channels)),
            )
        return of_u, of_squares, of_alpha.sum().to(learned[0].dtype).view_as(learned[0]) if learned else None, None, None


if triton is not None:

    @triton.jit
    def _forward(  # noqa: ANN202
        u,  # noqa: ANN001
        squares,  # noqa: ANN001
        alpha,  # noqa: ANN001
        value,  # noqa: ANN001
        pixels,  # noqa: ANN001
        channels,  # noqa: ANN001
        offset,  # noqa: ANN001
        LEARNED: tl.constexpr,
        CENTRED: tl.constexpr,
        BLOCK_P: tl.constexpr,
        BLOCK_C: tl.constexpr,
    ):
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        a = tl.load(alpha) if LEARNED else alpha
        norm = tl.sqrt(tl.load(squares + pixel, mask=pixel < pixels, other=0.0))
        present = norm != 0  # NaN is not taken for zero
        length = tl.where(present, norm, 1.0)
        divisor = (length + offset)[:, None]
        scale = tl.where(present, a, 0.0)[:, None] / divisor
        shift = tl.where(present, tl.log(length) - a, float("-inf"))
        x = tl.load(u + place, mask=there, other=0.0).to(tl.float32)
        x = tl.where(x > divisor, divisor, x)  # NaN stays
        result = (
            (norm / tl.sqrt(a * (tl.exp(a) - 1)))[:, None] * (tl.exp(scale * x) - 1)
            if CENTRED
            else tl.exp(scale * x + shift[:, None])
        )
        tl.store(value + place, result, mask=there)

    @triton.jit
    def _backward(  # noqa: ANN202
        gradient,  # noqa: ANN001
        u,  # noqa: ANN001
        squares,  # noqa: ANN001
        alpha,  # noqa: ANN001
        value,  # noqa: ANN001
        of_u,  # noqa: ANN001
        of_squares,  # noqa: ANN001
        of_alpha,  # noqa: ANN001
        pixels,  # noqa: ANN001
        channels,  # noqa: ANN001
        offset,  # noqa: ANN001
        LEARNED: tl.constexpr,
        CENTRED: tl.constexpr,
        BLOCK_P: tl.constexpr,
        BLOCK_C: tl.constexpr,
    ):
        pixel = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        channel = tl.arange(0, BLOCK_C)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel[:, None] < pixels) & (channel[None, :] < channels)
        a = tl.load(alpha) if LEARNED else alpha
        norm = tl.sqrt(tl.load(squares + pixel, mask=pixel < pixels, other=0.0))
        present = norm != 0  # NaN is not taken for zero
        length = tl.where(present, norm, 1.0)
        divisor = length + offset
        x = tl.load(u + place, mask=there, other=0.0).to(tl.float32)
        x = tl.where(x > divisor[:, None], divisor[:, None], x)
        weighted = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
        scale = tl.where(present, a / divisor, 0.0)
        if CENTRED:
            weighted *= (norm / tl.sqrt(a * (tl.exp(a) - 1)))[:, None]
            rising = tl.exp(scale[:, None] * x)
            total = tl.sum(weighted * (rising - 1), axis=1)
            weighted *= rising
            by_alpha = total * (1 / a + 1 / (1 - tl.exp(-a))) / 2
        else:
            weighted *= tl.load(value + place, mask=there, other=0.0)
            total = tl.sum(weighted, axis=1)
            by_alpha = total
        tl.store(of_u + place, (weighted * scale[:, None]).to(of_u.dtype.element_ty), mask=there)
        inner = tl.sum(weighted * x, axis=1)
        slope = (total / length - a * inner / (divisor * divisor)) / (2 * length)
        tl.store(of_squares + pixel, tl.where(present, slope, 0.0), mask=pixel < pixels)
        if LEARNED:
            tl.store(of_alpha + pixel, tl.where(present, inner / divisor - by_alpha, 0.0), mask=pixel < pixels)
