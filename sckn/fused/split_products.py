"""Products of matrices as precise as in fp32, but on tensor cores: each number is the sum of two in fp16.

    x = high + low / 2048,   a b = high high + (high low + low high) / 2048

`high` is x rounded to fp16, and `low`, times 2048 so that it is not below the smallest number of fp16, what is left of it: 22
bits of fp32's 24. Numbers beyond 65,504 become NaN. Matrices stay split from one product of an iteration to the next.

Tensor cores cut off the digits that a sum has too many, instead of rounding: for a sum of BLOCK_K numbers that is harmless,
for one of a whole row it is not. So they begin a new sum with each block, and these sums are added as ever.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sckn.fused.gpu import tl, triton
from sckn.fused.products import SMALL

__all__ = ["Split", "applies", "combination", "joined", "product", "row_products", "split"]

# pyright: reportInvalidTypeForm=false

LOW = 2048.0
BLOCK, BLOCK_K = 64, 32
NUMBERS = 4096  # split or joined by a program


@dataclass(frozen=True, eq=False)
class Split:
    """Matrices (b, p, q) as (2, b, p, q) in fp16: high and low."""

    parts: Tensor


def applies(matrices: Tensor) -> bool:
    """Whether these are batches (b, p, q) on a GPU, in fp32, with p too large for the small blocks of `products`."""
    there = triton is not None and matrices.is_cuda and matrices.dtype == torch.float32
    return there and matrices.dim() == 3 and matrices.shape[1] > SMALL


def split(matrices: Tensor) -> Split:
    """In fp32 or more -> split."""
    return combination(matrices, 1.0, 0.0)


def combination(matrices: Tensor, by: Tensor | float, identity: Tensor | float) -> Split:
    """`by` times the matrices plus `identity` times I, split; both are numbers, or (b, 1, 1)."""
    if not matrices.is_cuda or matrices.dtype != torch.float32:
        value = by * matrices + identity * torch.eye(*matrices.shape[-2:], dtype=matrices.dtype, device=matrices.device)
        high = value.half()
        return Split(torch.stack([high, ((value - high) * LOW).half()]))
    whole, each = matrices.contiguous(), matrices.shape[-2] * matrices.shape[-1]
    parts = torch.empty(2, *whole.shape, dtype=torch.float16, device=whole.device)
    factors = [factor if isinstance(factor, Tensor) else None for factor in (by, identity)]
    numbers = [1.0 if isinstance(factor, Tensor) else factor for factor in (by, identity)]
    given = [whole if factor is None else factor.contiguous() for factor in factors]
    with torch.cuda.device_of(whole):
        _combine[(triton.cdiv(each, NUMBERS), whole.numel() // each)](
            *(whole, parts, *given, *numbers, whole.numel(), each, whole.shape[-1]),
            *(factors[0] is not None, factors[1] is not None, LOW, NUMBERS),
        )
    return Split(parts)


def joined(matrices: Split) -> Tensor:
    """Split -> fp32."""
    parts = matrices.parts
    if not parts.is_cuda:
        high, low = parts.float().unbind()
        return torch.add(high, low, alpha=1 / LOW)
    whole = torch.empty(parts.shape[1:], dtype=torch.float32, device=parts.device)
    with torch.cuda.device_of(whole):
        _join[(triton.cdiv(whole.numel(), NUMBERS),)](whole, parts, whole.numel(), LOW, NUMBERS)
    return whole


def product(a: Split, b: Split, alpha: float, base: Split | None, beta: float, *, symmetric: bool) -> Split:
    """alpha a b + beta base of square matrices; `symmetric` tells that base and the result are, of which half is computed."""
    result = torch.empty_like(a.parts)
    count, size = result.shape[1], result.shape[-1]
    with torch.cuda.device_of(result):
        _product[_grid(count, size, symmetric)](
            *(a.parts, b.parts, a.parts if base is None else base.parts, result, alpha, beta, count * size * size),
            *(size, size, size, 1, base is not None, symmetric, False, LOW, BLOCK, BLOCK_K),
            num_warps=4,
            num_stages=3,
        )
    return Split(result)


def row_products(Z: Tensor) -> Tensor:
    """Z Z' for each of (b, p, d), in fp32."""
    parts, (count, size, length) = split(Z).parts, Z.shape
    result = torch.empty(count, size, size, dtype=torch.float32, device=Z.device)
    with torch.cuda.device_of(Z):
        _product[_grid(count, size, True)](
            *(parts, parts, parts, result, 1.0, 0.0, count * size * length),
            *(size, length, 1, length, False, True, True, LOW, BLOCK, BLOCK_K),
            num_warps=4,
            num_stages=3,
        )
    return result


def _grid(count: int, size: int, symmetric: bool) -> tuple[int, int, int]:
    """Of the blocks of the result; those of a symmetric one on and below the diagonal fill a rectangle, see `_product`."""
    tiles = triton.cdiv(size, BLOCK)
    even = tiles + tiles % 2
    return (even + 1, even // 2, count) if symmetric else (tiles, tiles, count)


_product: Any = None
_combine: Any = None
_join: Any = None

if triton is not None:

    @triton.jit
    def _combine(  # noqa: ANN202
        whole,  # noqa: ANN001
        parts,  # noqa: ANN001
        factors,  # noqa: ANN001
        identities,  # noqa: ANN001
        factor,  # noqa: ANN001
        identity,  # noqa: ANN001
        part,  # noqa: ANN001
        each,  # noqa: ANN001
        width,  # noqa: ANN001
        FACTORS: tl.constexpr,
        IDENTITIES: tl.constexpr,
        LOW: tl.constexpr,
        NUMBERS: tl.constexpr,
    ):
        matrix, inside = tl.program_id(1).to(tl.int64), tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
        place, there = matrix * each + inside, inside < each
        value = factor * tl.load(whole + place, mask=there, other=0.0)
        if FACTORS:
            value *= tl.load(factors + matrix)
        if IDENTITIES:
            identity *= tl.load(identities + matrix)
        value += tl.where(inside // width == inside % width, identity, 0.0)
        high = value.to(tl.float16)
        tl.store(parts + place, high, mask=there)
        tl.store(parts + part + place, ((value - high.to(tl.float32)) * LOW).to(tl.float16), mask=there)

    @triton.jit
    def _join(whole, parts, numbers, LOW: tl.constexpr, NUMBERS: tl.constexpr):  # noqa: ANN001, ANN202
        place = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
        high = tl.load(parts + place, mask=place < numbers, other=0.0).to(tl.float32)
        low = tl.load(parts + numbers + place, mask=place < numbers, other=0.0).to(tl.float32)
        tl.store(whole + place, high + low / LOW, mask=place < numbers)

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
        LENGTH: tl.constexpr,
        B_ROW: tl.constexpr,
        B_COLUMN: tl.constexpr,
        BASE: tl.constexpr,
        SYMMETRIC: tl.constexpr,
        WHOLE: tl.constexpr,
        LOW: tl.constexpr,
        BLOCK: tl.constexpr,
        BLOCK_K: tl.constexpr,
    ):
        """(SIZE, LENGTH) times (LENGTH, SIZE), whose rows and columns are so far apart; WHOLE is a result in fp32."""
        i, j, matrix = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
        if SYMMETRIC:
            # of a rectangle of 2 n + 1 by n blocks the part below its diagonal is the left half of the triangle, and the
            # others, turned around, the right one
            left, last = i > j, 2 * tl.num_programs(1) - 1
            i, j = tl.where(left, i - 1, last - i), tl.where(left, j, last - j)
        row, column, inner = i * BLOCK + tl.arange(0, BLOCK), j * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
        factor = matrix * SIZE * LENGTH
        large = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        small = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for start in range(0, LENGTH, BLOCK_K):
            k = start + inner
            there_a = (row[:, None] < SIZE) & (k[None, :] < LENGTH)
            place_a = factor + row[:, None] * LENGTH + k[None, :]
            high_a = tl.load(a + place_a, mask=there_a, other=0.0)
            low_a = tl.load(a + part + place_a, mask=there_a, other=0.0)
            there_b = (k[:, None] < LENGTH) & (column[None, :] < SIZE)
            place_b = factor + k[:, None] * B_ROW + column[None, :] * B_COLUMN
            high_b = tl.load(b + place_b, mask=there_b, other=0.0)
            low_b = tl.load(b + part + place_b, mask=there_b, other=0.0)
            large += alpha * tl.dot(high_a, high_b)  # times a variable: `large` cannot become the start of the block's sum
            small = tl.dot(high_a, low_b, small)
            small = tl.dot(low_a, high_b, small)
        place = matrix * SIZE * SIZE + row[:, None] * SIZE + column[None, :]
        there = (row[:, None] < SIZE) & (column[None, :] < SIZE)
        value = large + alpha * (small / LOW)
        if BASE:
            high = tl.load(base + place, mask=there, other=0.0).to(tl.float32)
            value += beta * (high + tl.load(base + part + place, mask=there, other=0.0).to(tl.float32) / LOW)
        if SYMMETRIC and i == j:
            value = (value + tl.trans(value)) / 2
        mirrored = matrix * SIZE * SIZE + column[:, None] * SIZE + row[None, :]
        there_mirrored = (column[:, None] < SIZE) & (row[None, :] < SIZE)
        if WHOLE:
            tl.store(result + place, value, mask=there)
            if SYMMETRIC:
                tl.store(result + mirrored, tl.trans(value), mask=there_mirrored)
        else:
            high = value.to(tl.float16)
            low = ((value - high.to(tl.float32)) * LOW).to(tl.float16)
            tl.store(result + place, high, mask=there)
            tl.store(result + part + place, low, mask=there)
            if SYMMETRIC:
                tl.store(result + mirrored, tl.trans(high), mask=there_mirrored)
                tl.store(result + part + mirrored, tl.trans(low), mask=there_mirrored)
