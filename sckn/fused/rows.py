"""Rows of filters: scaled to unit norm, and moved on the sphere by a step of SGD; one program a row."""

from typing import Any

import torch
from torch import Tensor

from sckn.fused.gpu import tl, triton

__all__ = ["applies", "sphere_step", "unit_rows", "unit_rows_gradient"]

# pyright: reportInvalidTypeForm=false

LONGEST = 16384  # numbers in a row


def applies(rows: Tensor) -> bool:
    """Whether these rows (p, d) are on a GPU, in fp32, one after the other in memory, and not too long."""
    there = triton is not None and rows.is_cuda and rows.dtype == torch.float32
    return there and rows.dim() == 2 and 0 < rows.shape[1] <= LONGEST and rows.is_contiguous()


def unit_rows(rows: Tensor) -> Tensor:
    """Each row divided by its norm; a zero row stays zero."""
    result = torch.empty_like(rows)
    _launch(_unit, rows, result)
    return result


def unit_rows_gradient(rows: Tensor, gradient: Tensor) -> Tensor:
    """The gradient for the rows, from that for `unit_rows` of them; as it is for a zero row."""
    result = torch.empty_like(rows)
    _launch(_unit_backward, rows, gradient.contiguous(), result)
    return result


def sphere_step(rows: Tensor, gradient: Tensor, momentum: Tensor, lr: Tensor, decay: float, clip: float) -> None:
    """The step of `SphereSGD` without preconditioner, in place: momentum times `decay`, plus the tangent part of the
    gradient, no longer than `clip`; rows less lr times it, back on the sphere; momentum carried to the new tangent space."""
    _launch(_step, rows, gradient, momentum, lr, decay, clip)


def _launch(kernel: Any, rows: Tensor, *others: Any) -> None:
    with torch.cuda.device_of(rows):
        kernel[(len(rows),)](rows, *others, rows.shape[1], triton.next_power_of_2(rows.shape[1]))


_unit: Any = None
_unit_backward: Any = None
_step: Any = None

if triton is not None:

    @triton.jit
    def _unit(rows, result, width, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
        column = tl.arange(0, BLOCK)
        place, there = tl.program_id(0).to(tl.int64) * width + column, column < width
        z = tl.load(rows + place, mask=there, other=0.0)
        norm = tl.sqrt(tl.sum(z * z, axis=0))
        tl.store(result + place, z / tl.where(norm > 0, norm, 1.0), mask=there)

    @triton.jit
    def _unit_backward(rows, gradient, result, width, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
        column = tl.arange(0, BLOCK)
        place, there = tl.program_id(0).to(tl.int64) * width + column, column < width
        z = tl.load(rows + place, mask=there, other=0.0)
        g = tl.load(gradient + place, mask=there, other=0.0)
        norm = tl.sqrt(tl.sum(z * z, axis=0))
        length = tl.where(norm > 0, norm, 1.0)
        z /= length
        tl.store(result + place, (g - tl.sum(g * z, axis=0) * z) / length, mask=there)

    @triton.jit
    def _step(rows, gradient, momentum, lr, decay, clip, width, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
        column = tl.arange(0, BLOCK)
        place, there = tl.program_id(0).to(tl.int64) * width + column, column < width
        z = tl.load(rows + place, mask=there, other=0.0)
        z /= tl.sqrt(tl.sum(z * z, axis=0))
        g = tl.load(gradient + place, mask=there, other=0.0)
        m = tl.load(momentum + place, mask=there, other=0.0)
        g -= tl.sum(z * g, axis=0) / tl.sum(z * z, axis=0) * z
        length = tl.sqrt(tl.sum(g * g, axis=0))
        m = decay * m + g * tl.where(length > clip, clip / length, 1.0)
        z -= tl.load(lr) * m
        z /= tl.sqrt(tl.sum(z * z, axis=0))
        m -= tl.sum(z * m, axis=0) / tl.sum(z * z, axis=0) * z
        tl.store(rows + place, z, mask=there)
        tl.store(momentum + place, m, mask=there)
