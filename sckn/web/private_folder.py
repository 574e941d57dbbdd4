"""A folder for files of visitors, which are gone when the server is."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

__all__ = ["private_folder"]

PREFIX = "sckn-serve-"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Only this user can look into it. At the end it is removed, and at the start what servers left that were killed."""
    _remove_leftovers(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    lock = _locked(folder)
    # only now has it the name under which others look whether it is locked
    folder = folder.rename(folder.with_name(folder.name.removeprefix("new-")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # of other users, or removed by another server that starts
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock that the system takes away when the process ends, however it does; an OSError if another process has it."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
