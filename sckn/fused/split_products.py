"""Products of matrices as precise as in fp32, but on tensor cores: each number is the sum of two in fp16.

    x = high + low / 2048,   a b = high high + (high low + low high) / 2048

`high` is x rounded to fp16, and `low`, times 2048 so that it is not below the smallest number of fp16, what is left of it: 22
bits of fp32's 24. Numbers beyond 65,504 become infinite. Matrices stay split from one product of an iteration to the next.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sckn.fused.gpu import tl, triton
from sckn.fused.products import SMALL

__all__ = ["Split", "applies", "joined", "product", "split"]

# pyright: reportInvalidTypeForm=false

LOW = 2048.0
BLOCK, BLOCK_K = 64, 64


@dataclass(frozen=True, eq=False)
class Split:
    """Matrices (b, p, p) as (2, b, p, p) in fp16: high and low."""

    parts: Tensor


def applies(matrices: Tensor) -> bool:
    """Whether these are batches (b, p, p) on a GPU, in fp32, too large for the small blocks of `products`."""
    there = triton is not None and matrices.is_cuda and matrices.dtype == torch.float32
    return there and matrices.dim() == 3 and matrices.shape[-1] > SMALL


def split(matrices: Tensor) -> Split:
    """In fp32 or more -> split."""
    high = matrices.half()
    return Split(torch.stack([high, ((matrices - high) * LOW).half()]))


def joined(matrices: Split) -> Tensor:
    """Split -> fp32."""
    high, low = matrices.parts.float().unbind()
    return torch.add(high, low, alpha=1 / LOW)


def product(a: Split, b: Split, alpha: float, base: Split | None, beta: float, *, symmetric: bool) -> Split:
    """alpha a b + beta base; `symmetric` tells that base and the result are, of which half is computed then."""
    result = torch.empty_like(a.parts)
    count, size = result.shape[1], result.shape[-1]
    tiles = triton.cdiv(size, BLOCK)
    with torch.cuda.device_of(result):
        _product[(tiles, tiles, count)](
            *(a.parts, b.parts, a.parts if base is None else base.parts, result, alpha, beta, count * size * size),
            *(size, base is not None, symmetric, LOW, BLOCK, BLOCK_K),
            num_warps=4,
            num_stages=3,
        )
    return Split(result)


_product: Any = None

if triton is not None:

    @triton.jit
    def _product(  # noqa: ANN202
        a,  # noqa: ANN001
        b,  # noqa: ANN001
        base,  # noqa: ANN001
        result,  # noqa: ANN001
        alpha,  # noqa: ANN001
        beta,  # noqa: ANN001
        part,  # noqa: ANN001
        SIZE: tl.constexpr,
        BASE: tl.constexpr,
        SYMMETRIC: tl.constexpr,
        LOW: tl.constexpr,
        BLOCK: tl.constexpr,
        BLOCK_K: tl.constexpr,
    ):
        i, j, matrix = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64) * SIZE * SIZE
        if SYMMETRIC and j > i:
            return
        row, column, inner = i * BLOCK + tl.arange(0, BLOCK), j * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
        large = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        small = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for start in range(0, SIZE, BLOCK_K):
            k = start + inner
            there_a = (row[:, None] < SIZE) & (k[None, :] < SIZE)
            place_a = matrix + row[:, None] * SIZE + k[None, :]
            high_a = tl.load(a + place_a, mask=there_a, other=0.0)
            low_a = tl.load(a + part + place_a, mask=there_a, other=0.0)
            there_b = (k[:, None] < SIZE) & (column[None, :] < SIZE)
            place_b = matrix + k[:, None] * SIZE + column[None, :]
            high_b = tl.load(b + place_b, mask=there_b, other=0.0)
            low_b = tl.load(b + part + place_b, mask=there_b, other=0.0)
            large = tl.dot(high_a, high_b, large)
            small = tl.dot(high_a, low_b, small)
            small = tl.dot(low_a, high_b, small)
        place = matrix + row[:, None] * SIZE + column[None, :]
        there = (row[:, None] < SIZE) & (column[None, :] < SIZE)
        value = alpha * (large + small / LOW)
        if BASE:
            high = tl.load(base + place, mask=there, other=0.0).to(tl.float32)
            value += beta * (high + tl.load(base + part + place, mask=there, other=0.0).to(tl.float32) / LOW)
        if SYMMETRIC and i == j:
            value = (value + tl.trans(value)) / 2
        high = value.to(tl.float16)
        low = ((value - high.to(tl.float32)) * LOW).to(tl.float16)
        tl.store(result + place, high, mask=there)
        tl.store(result + part + place, low, mask=there)
        if SYMMETRIC and i != j:
            mirrored = matrix + column[:, None] * SIZE + row[None, :]
            there = (column[:, None] < SIZE) & (row[None, :] < SIZE)
            tl.store(result + mirrored, tl.trans(high), mask=there)
            tl.store(result + part + mirrored, tl.trans(low), mask=there)
