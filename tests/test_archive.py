"""Archives that are damaged, or made to keep a reader busy."""

import gzip
import io
import os
import re
import tarfile
from pathlib import Path

import pytest
from alarm import within

from sckn.data.archive import read_members

LIMIT = 10**6


def header(name: str = "a/b", size: int = 3, kind: bytes = tarfile.REGTYPE, raw_size: bytes | None = None) -> bytes:
    """One block; with `raw_size` a size that tarfile would not write."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    if raw_size is not None:
        block[124:136] = raw_size
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


GOOD = header() + padded(b"abc")
END = bytes(1024)


def read(tmp_path: Path, content: bytes) -> list[tuple[str, bytes]]:
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(gzip.compress(content))
    with within(20):
        return list(read_members(path, {"a/b": 100}, LIMIT))


def test_plain_members_are_read(tmp_path: Path) -> None:
    archive = header("other") + padded(b"xyz") + GOOD + END
    assert read(tmp_path, archive) == [("a/b", b"abc")]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_forms_of_tar(form: int, tmp_path: Path) -> None:
    """With a member whose name and owner need what goes beyond the first form, if it may."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=form) as archive:
        for name in ("./a/b", "x" * (50 if form == tarfile.USTAR_FORMAT else 300)):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    assert read(tmp_path, held.getvalue()) == [("a/b", b"abc")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"x" * 1024, "it is no tar archive, or is damaged"),
        (GOOD[:100], "it is no tar archive, or is damaged"),
        (GOOD[:300] + b"x" + GOOD[301:], "it is no tar archive, or is damaged"),
        (GOOD + b"\xff" * 512, "it is no tar archive, or is damaged"),
        (GOOD[:-400], "it ends too early"),
        (header(size=50) + b"abc", "it ends too early"),
        (header(size=101) + padded(bytes(101)), "a/b in it has 101 bytes, expected at most 100"),
        (header(raw_size=b"\xff" * 12) + GOOD + END, "it is no tar archive, or is damaged"),  # minus one
        (header("x", raw_size=b"\xff" * 10 + b"\xfc\0") + GOOD, "it is no tar archive, or is damaged"),  # back by two blocks
        (header("x", raw_size=b"\x80" + b"\xff" * 11) + GOOD, "it is no tar archive, or is damaged"),  # 2^88
        (header("x", raw_size=b"-0000000512\0") + GOOD, "it is no tar archive, or is damaged"),
        (header("x", size=2**33 - 1) + b"x" * 5000, "it ends too early"),
        (header("x", kind=b"x", size=2**33 - 1) + bytes(2 * LIMIT), "it unpacks to more than 1000000 bytes"),
    ],
)
def test_what_is_wrong_is_told(content: bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        read(tmp_path, content)


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    """Not links, folders, devices, sparse files; descriptions of other members are passed over."""
    others = b"".join(header(kind=bytes([kind]), size=3) + padded(b"xyz") for kind in b"1234567SxgLKDMV")
    assert read(tmp_path, others + END) == []
    assert read(tmp_path, others + GOOD + END) == [("a/b", b"abc")]
    assert read(tmp_path, b"") == read(tmp_path, END + GOOD) == []


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 20])
def test_an_archive_that_is_cut_is_told(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(gzip.compress(GOOD + END)[:-cut])
    with pytest.raises(ValueError, match=r"^it ends too early$"):
        list(read_members(path, {"a/b": 100}, LIMIT))


def test_a_large_file_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(gzip.compress(GOOD + END))
    os.truncate(path, 2**40)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"^it has more than 1000000 bytes$"):
        list(read_members(path, {"a/b": 100}, LIMIT))
