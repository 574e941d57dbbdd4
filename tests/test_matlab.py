"""MATLAB 5 files, put together by the book, and what is none."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat

from sckn.data.matlab import read_matlab_arrays


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<2I", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(name: bytes, shape: tuple[int, ...], data: bytes, flags: int = 9) -> bytes:
    """A variable of a MATLAB 5 file, by the book."""
    sizes = struct.pack(f"<{len(shape)}i", *shape)
    parts = element(6, struct.pack("<2I", flags, 0)) + element(5, sizes) + element(1, name) + data
    return element(14, parts)


def compressed(content: bytes) -> bytes:
    packed = zlib.compress(content)
    return struct.pack("<2I", 15, len(packed)) + packed


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def test_the_format_by_the_book(tmp_path: Path) -> None:
    """The made-up file is one that scipy reads."""
    path = tmp_path / "a.mat"
    short = struct.pack("<2H", 2, 1) + b"\x07\0\0\0"  # up to four bytes stand beside their type and size
    path.write_bytes(HEADER + matrix(b"a", (2, 3), element(2, bytes(range(6)))) + compressed(matrix(b"b", (1, 1), short)))
    arrays = read_matlab_arrays(path, ("a", "b"), 100)
    assert {name: values.tolist() for name, values in arrays.items()} == {"a": [[0, 2, 4], [1, 3, 5]], "b": [[7]]}
    for name, values in arrays.items():
        np.testing.assert_array_equal(loadmat(path)[name], values, strict=True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "its header is another one"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "its header is another one"),
        (b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI", "its header is another one"),
        (HEADER + b"\x0e\0\0", "it ends too early"),
        (HEADER + matrix(b"X", (2**31 - 1,), element(2, b"abc")), "has 3 bytes of the type 2"),
        (HEADER + matrix(b"X", (2**31 - 1,) * 8, element(2, b"abc")), "has 3 bytes of the type 2"),
        (HEADER + matrix(b"X", (-1, -3), element(2, b"abc")), "X in it is no array of real numbers"),
        (HEADER + matrix(b"X", (3,), element(14, b"abc")), "has 3 bytes of the type 14"),
        (HEADER + matrix(b"X", (3,), element(2, b"abc"), flags=1), "X in it is no array of real numbers"),
        (HEADER + matrix(b"X", (2**30,), struct.pack("<2I", 2, 2**30) + b"abc"), "has 1073741824 bytes"),
        (HEADER + matrix(b"X", (10**6,), struct.pack("<2I", 2, 10**6) + b"abc"), "it ends too early"),
        (HEADER + matrix(b"X" * 300, (3,), element(2, b"abc")), "an element of the type 1 and 300 bytes where none belongs"),
        (HEADER + element(14, element(6, b"12")), "it ends too early"),
        (HEADER + struct.pack("<2I", 15, 2**32 - 1) + b"no zlib", "incorrect header check"),
        (HEADER + compressed(b""), "it ends too early"),
        (HEADER + compressed(matrix(b"X", (9,), element(2, bytes(9))))[:-1], "it ends too early"),
        (HEADER + compressed(matrix(b"X", (9,), element(2, bytes(9))))[:-1] + b"\0", "incorrect data check"),
        (HEADER + compressed(matrix(b"X", (9,), element(2, bytes(9))) + bytes(10**8)), "it unpacks to more than 2001024 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_whole_matlab_file_is_told(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^is no whole MATLAB 5 file of plain arrays") as caught:
        read_matlab_arrays(path, ("X",), 2_000_000)
    assert complaint in str(caught.value)


def test_many_small_variables_are_passed_over_but_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(HEADER + matrix(b"cell", (1, 1), bytes(8), flags=1) * 50 + matrix(b"X", (3,), element(2, b"abc")))
    assert read_matlab_arrays(path, ("X",), 100)["X"].tolist() == [97, 98, 99]
    path.write_bytes(HEADER + bytes(8) * 10**6)
    assert read_matlab_arrays(path, ("X",), 100) == {}
