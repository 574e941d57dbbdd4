"""The members of a .tar.gz, read as a stream: nothing is unpacked to the disk, so no name in it can do harm.

Python's tarfile can be kept busy for ever by the sizes that a header claims. The plain members that the official archives
have need little of the format: a block of 512 bytes with name, type and size, then the content in whole blocks.
"""

import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sckn.data.inflate import inflated

__all__ = ["is_archive", "read_members"]

BLOCK = 512
PLAIN_FILE = (b"0", b"\0")


def is_archive(path: Path) -> bool:
    """Whether a plain file begins as gzip files do, or is named as if it did: then what is wrong with it is worth telling."""
    if not os.path.isfile(path):
        return False
    if path.suffix in (".gz", ".tgz"):
        return True
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); make it readable") from None


def read_members(path: Path, sizes: Mapping[str, int], limit: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each plain file in the archive that `sizes` names with the most bytes that it may have.

    No more than `limit` bytes are unpacked. What is wrong is raised as ValueError without the name of the archive.
    """
    try:
        if path.stat().st_size > limit:
            raise ValueError(f"it has more than {limit} bytes")
        with path.open("rb") as file, inflated(file, limit) as stream:
            while (header := stream.read(BLOCK)).strip(b"\0"):  # a block of zeros is the end
                name, kind, size = _parsed(header)
                padding = -size % BLOCK
                if name in sizes and kind in PLAIN_FILE:
                    if size > sizes[name]:
                        raise ValueError(f"{name} in it has {size} bytes, expected at most {sizes[name]}")
                    content = stream.read(size)
                    _pass_over(stream, size - len(content) + padding)
                    yield name, content
                else:
                    _pass_over(stream, size + padding)
            while stream.read(2**20):  # to the end, where the checksum is
                pass
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _parsed(header: bytes) -> tuple[str, bytes, int]:
    """Name, type and size of a member."""
    size, checksum = (header[part].strip(b"\0 ") for part in (slice(124, 136), slice(148, 156)))
    numbers = re.fullmatch(rb"[0-7]+", size) and re.fullmatch(rb"[0-7]+", checksum)
    if len(header) < BLOCK or not numbers or sum(header[:148] + b" " * 8 + header[156:]) != int(checksum, 8):
        raise ValueError("it is no tar archive, or is damaged")
    name = header[:100].split(b"\0")[0].decode("utf-8", "replace").removeprefix("./")
    return name, header[156:157], int(size, 8)


def _pass_over(stream: io.BufferedReader, count: int) -> None:
    while count:
        piece = stream.read(min(count, 2**20))
        if not piece:
            raise ValueError("it ends too early")
        count -= len(piece)
