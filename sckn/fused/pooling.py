"""Gaussian pooling of small maps: both axes at once, each number read once and written once.

    out[i, j] = sum over y and x of rows[i, y] columns[j, x] in[y, x],   for each channel

As two products of matrices the map between them is written and read, too, and sides such as 23 or 11, which are not aligned,
keep cuBLAS from its fastest kernels. `sckn.pooling` has the plain form.
"""

from typing import Any

import torch
from torch import Tensor

from sckn.fused.gpu import channels_last_on_gpu, tl, triton

__all__ = ["applies", "pool"]

# pyright: reportInvalidTypeForm=false

LARGEST = 32  # a side; a program holds whole maps
CHANNELS = 32  # of a program at most: in fp32 a line of memory, 128 bytes
THREADS = 256  # of a program at most


def applies(maps: Tensor) -> bool:
    """Whether `pool` can take (B, c, H, W): small channels-last maps on a GPU that knows TF32.

    Channels are in sixteens, so that several numbers can be read at once.
    """
    if not channels_last_on_gpu(maps) or maps.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    small = maps.shape[1] % 16 == 0 and max(maps.shape[2:]) <= LARGEST
    return small and torch.cuda.get_device_capability(maps.device) >= (8, 0)


def pool(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, c, H, W), (H', H) and (W', W) in fp32 -> (B, c, H', W') in the type of the maps, in channels-last order.

    Added up in fp32. Factors are in fp32, too, unless PyTorch may multiply matrices in TF32, or the maps have no more digits
    than that anyway. No side may be longer than `LARGEST`. The maps, not the matrices, can be differentiated any number of
    times: the gradient is pooled by the transposed matrices.
    """
    value: Tensor = _Pooling.apply(maps, rows, columns)  # pyright: ignore[reportAssignmentType]
    return value


class _Pooling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(rows, columns)
        maps = maps.contiguous(memory_format=torch.channels_last)  # a gradient may lie in any order
        count, channels, *sides = maps.shape
        pooled = (len(rows), len(columns))
        shape, order = (count, channels, *pooled), torch.channels_last
        result = torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=order)
        tf32 = maps.dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision == "tf32"
        # tl.dot takes powers of two, from 16 on
        padded = [max(16, triton.next_power_of_2(side)) for side in (*sides, *pooled)]
        area = max(padded[0], padded[2]) * max(padded[1], padded[3])
        # numbers of the map in a thread, beside the result: without tensor cores all factors are in its registers, too
        held = 64 if tf32 else 32
        block = min(CHANNELS, THREADS * held // area)
        with torch.cuda.device_of(maps):
            _pool[(count * triton.cdiv(channels, block),)](
                *(maps, rows, columns, result, channels, *sides, *pooled, *rows.stride(), *columns.stride()),
                *(*padded, block, "tf32" if tf32 else "ieee"),
                num_warps=block * area // (32 * held),
                maxnreg=128 if tf32 else None,  # so that one program computes while another waits for memory
            )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, columns = ctx.saved_tensors
        return pool(gradients[0], rows.T, columns.T), None, None


_pool: Any = None

if triton is not None:

    @triton.jit
    def _pool(  # noqa: ANN202
        maps,  # noqa: ANN001
        rows,  # noqa: ANN001
        columns,  # noqa: ANN001
        result,  # noqa: ANN001
        channels,  # noqa: ANN001
        height,  # noqa: ANN001
        width,  # noqa: ANN001
        pooled_height,  # noqa: ANN001
        pooled_width,  # noqa: ANN001
        rows_i,  # noqa: ANN001
        rows_y,  # noqa: ANN001
        columns_j,  # noqa: ANN001
        columns_x,  # noqa: ANN001
        Y: tl.constexpr,
        X: tl.constexpr,
        I: tl.constexpr,  # noqa: E741
        J: tl.constexpr,
        BLOCK: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        blocks = tl.cdiv(channels, BLOCK)  # those of an image one after the other: they share lines of memory
        image = (tl.program_id(0) // blocks).to(tl.int64)
        channel = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK))[None, None, :]
        y, x, i, j = tl.arange(0, Y), tl.arange(0, X), tl.arange(0, I), tl.arange(0, J)
        there = (i[:, None] < pooled_height) & (y[None, :] < height)
        row_weights = tl.load(rows + i[:, None] * rows_i + y[None, :] * rows_y, mask=there, other=0.0)
        place = (y[:, None, None] * width + x[None, :, None]) * channels + channel
        there = (y[:, None, None] < height) & (x[None, :, None] < width) & (channel < channels)
        given = tl.load(maps + image * height * width * channels + place, mask=there, other=0.0).to(tl.float32)
        half = _product(row_weights, tl.reshape(given, (Y, X * BLOCK)), PRECISION)
        half = tl.permute(tl.reshape(half, (I, X, BLOCK)), (1, 0, 2))
        # read only now: beside the factors of the first product there is no room for them
        there = (j[:, None] < pooled_width) & (x[None, :] < width)
        column_weights = tl.load(columns + j[:, None] * columns_j + x[None, :] * columns_x, mask=there, other=0.0)
        value = _product(column_weights, tl.reshape(half, (X, I * BLOCK)), PRECISION)
        value = tl.reshape(value, (J, I, BLOCK)).to(result.dtype.element_ty)
        place = (i[None, :, None] * pooled_width + j[:, None, None]) * channels + channel
        there = (i[None, :, None] < pooled_height) & (j[:, None, None] < pooled_width) & (channel < channels)
        tl.store(result + image * pooled_height * pooled_width * channels + place, value, mask=there)

    @triton.jit
    def _product(a, b, PRECISION: tl.constexpr):  # noqa: ANN001, ANN202
        if PRECISION == "tf32":
            a, b = _nearest_tf32(a), _nearest_tf32(b)
        return tl.dot(a, b, input_precision=PRECISION)

    @triton.jit
    def _nearest_tf32(x):  # noqa: ANN001, ANN202
        """Tensor cores leave out the last 13 bits, which would make all pooled maps smaller by 0.1 %."""
        bits = x.to(tl.int32, bitcast=True)
        return tl.where(x == x, ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True), x)  # NaN stays
