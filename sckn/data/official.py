"""The files that the official sites hand out: where they are, how large, and their checksums."""

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

__all__ = ["OfficialFile", "file_size", "is_official", "read_bounded", "warn_of_other_checksums", "without_data"]


@dataclass(frozen=True)
class OfficialFile:
    """A file that can be downloaded; `size` is in bytes."""

    address: str
    size: int
    md5: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.address).name


def without_data(path: Path, name: str) -> str:
    """What is wrong with a place where a data set is not; more words follow."""
    return f"{path} does not hold {name}" if os.path.lexists(path) else f"{path} does not exist"


def file_size(path: Path) -> int | None:
    """Bytes of a plain file; None if there is none, as for a pipe, which one could wait for without end."""
    return os.path.getsize(path) if os.path.isfile(path) else None


def read_bounded(path: Path, most: int, *, exactly: bool = False) -> bytes:
    """A whole file of at most `most` bytes, or of so many.

    What is wrong is raised as ValueError, in words that follow on the file's name.
    """
    size = file_size(path)
    if size is None:
        raise ValueError(f"cannot be read ({'it is no plain file' if path.exists() else 'it does not exist'})")
    if size > most or (exactly and size < most):
        raise ValueError(f"has {size} bytes, expected {'' if exactly else 'at most '}{most}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None


def is_official(path: Path, md5s: Sequence[str]) -> bool | None:
    """Whether a file has one of the checksums; None if none is known."""
    if not md5s:
        return None
    try:
        state = os.stat(path)
        return _md5(path, state.st_ino, state.st_size, state.st_mtime_ns) in md5s
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); make it readable") from None


def warn_of_other_checksums(files: Sequence[tuple[Path, Sequence[str]]]) -> None:
    """One warning if files do not have (one of) their official checksums; they may still be what the user wants."""
    others = [path for path, md5s in files if is_official(path, md5s) is False]
    if others:
        which = f"{others[0]} is" if len(others) == 1 else f"{others[0]} and {len(others) - 1} more there are"
        warnings.warn(
            f"{which} not as handed out by the official site (another MD5 checksum); "
            "unless that is on purpose, get the data set again",
            stacklevel=3,
        )


@lru_cache(maxsize=64)
def _md5(path: Path, *_state: int) -> str:
    """Hashing takes seconds for large files, and is done once as long as the file stays as it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
