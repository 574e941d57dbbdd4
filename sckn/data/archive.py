"""The members of a .tar.gz, read as a stream: nothing is unpacked to the disk, so no name in it can do harm."""

import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sckn.data.inflate import inflated

__all__ = ["is_gzip", "read_members"]

# What tarfile and zlib raise at archives that are damaged, or made to be.
UNREADABLE = (tarfile.TarError, zlib.error, ValueError, OverflowError, RecursionError, OSError)


def is_gzip(path: Path) -> bool:
    """Whether a plain file begins as gzip files do."""
    if not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); make it readable") from None


def read_members(path: Path, sizes: Mapping[str, int], limit: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each plain file in the archive that `sizes` names with the most bytes it may have.

    No more than `limit` bytes are unpacked. What is wrong is raised as ValueError without the name of the archive.
    """
    try:
        if path.stat().st_size > limit:
            raise ValueError(f"it has more than {limit} bytes")
        # mode "r|" only ever goes forward, and so comes to an end whatever the headers say
        with path.open("rb") as file, inflated(file, limit) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in sizes and member.isreg() and not member.issparse():
                    if not 0 <= member.size <= sizes[name]:
                        raise ValueError(f"{name} in it has {member.size} bytes, expected at most {sizes[name]}")
                    content = archive.extractfile(member)
                    data = content.read() if content else b""
                    if len(data) != member.size:
                        raise ValueError("it ends too early")
                    yield name, data
            while stream.read(2**20):  # to the end, where the checksum is
                pass
    except UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from None
