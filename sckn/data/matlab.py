"""Arrays of numbers from MATLAB 5 files, compressed or not.

Only what such arrays need is read: cells, structures and objects, which may be nested without end, are passed over, and what
a file says about sizes is checked before memory is taken.
"""

import io
import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from sckn.data.inflate import inflated

__all__ = ["read_matlab_arrays"]

INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
# How numbers are stored; MATLAB stores those of any class in the smallest type that holds them.
STORAGE = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMBER_CLASSES = range(6, 16)  # double, single, whole numbers of 8 to 64 bits
COMPLEX = 0x0800
MOST_VARIABLES = 100


def read_matlab_arrays(path: Path, names: Collection[str], limit: int) -> dict[str, np.ndarray]:
    """Those of the named arrays that a file holds, each of at most `limit` bytes.

    What is wrong is raised as ValueError, in words that follow on the file's name.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            header = file.read(128)
            if header[124:] != b"\x00\x01IM":
                raise ValueError("its header is another one")
            for _ in range(MOST_VARIABLES):
                tag = file.read(8)
                if not tag or len(arrays) == len(names):
                    break
                kind, size = _unpacked("<2I", tag)
                end = file.tell() + size
                if kind == COMPRESSED:
                    with inflated(file, limit + 1024) as stream:  # the array and what stands before it
                        kind, _ = _unpacked("<2I", stream.read(8))
                        found = _variable(stream, names, limit) if kind == MATRIX else {}
                        while found and stream.read(2**20):  # to the end, where the checksum is
                            pass
                    arrays |= found
                elif kind == MATRIX:
                    arrays |= _variable(file, names, limit)
                file.seek(end)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except (ValueError, zlib.error) as error:
        raise ValueError(f"is no whole MATLAB 5 file of plain arrays ({error})") from None
    return arrays


def _variable(stream: io.BufferedReader, names: Collection[str], limit: int) -> dict[str, np.ndarray]:
    """The array that begins here, by its name, if it is one of `names`."""
    flags, _ = _unpacked("<2I", _element(stream, UINT32))
    sizes = _element(stream, INT32)
    shape = _unpacked(f"<{len(sizes) // 4}i", sizes)
    name = _element(stream, INT8).decode("latin-1")
    if name not in names:
        return {}
    if flags & 0xFF not in NUMBER_CLASSES or flags & COMPLEX or min(shape, default=0) < 1:
        raise ValueError(f"{name} in it is no array of real numbers")
    kind, size, inside = _tag(stream)
    dtype, count = np.dtype(STORAGE.get(kind, "V1")), math.prod(shape)
    if dtype.kind == "V" or size != count * dtype.itemsize or size > limit:
        raise ValueError(f"{name} in it, of shape {shape}, has {size} bytes of the type {kind}")
    if inside:
        return {name: np.frombuffer(inside, dtype).reshape(shape, order="F")}
    values = np.empty(count, dtype)
    if stream.readinto(values.view(np.uint8).data) != size:
        raise ValueError("it ends too early")
    return {name: values.reshape(shape, order="F")}


def _element(stream: io.BufferedReader, kind: int) -> bytes:
    """One of the short descriptions that an array begins with."""
    found, size, inside = _tag(stream)
    if found != kind or size > 256:
        raise ValueError(f"an element of the type {found} and {size} bytes where none belongs")
    return inside or stream.read(-(-size // 8) * 8)[:size]  # padded to a multiple of eight bytes


def _tag(stream: io.BufferedReader) -> tuple[int, int, bytes]:
    """Type, size and, if it is of no more than four bytes, the content of the next element."""
    tag = stream.read(8)
    kind, size = _unpacked("<2I", tag)
    if kind >> 16:
        return kind & 0xFFFF, kind >> 16, tag[4 : 4 + (kind >> 16)]
    return kind, size, b""


def _unpacked(form: str, data: bytes) -> tuple[int, ...]:
    if len(data) != struct.calcsize(form):
        raise ValueError("it ends too early")
    return struct.unpack(form, data)
