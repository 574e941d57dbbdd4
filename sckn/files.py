"""Writing files so that nothing half-written is ever left behind."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["append_line", "check_folder", "remove_leftovers", "written_whole"]


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder into which nothing can be written, before the work and not after it. It is made when there is something
    to put into it; `option` of the command names it."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not os.path.isdir(there):
        raise ValueError(f"{there} is not a folder; choose another place with {option}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"nothing may be written into {there}; choose another folder with {option}")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, renamed to `path` if the block succeeds and removed if it does not.

    At any moment, also that of a power cut, `path` is the old file or the new one; when the block has ended it is the new
    one, on the disk. Folders that it lacks are made, and left only if the block succeeds.
    """
    path = Path(path)
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        with _renamed_at_the_end(path) as temporary:
            yield temporary
    except BaseException:
        for folder in missing:  # which were made for this alone
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _renamed_at_the_end(path: Path) -> Iterator[Path]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the place of its folder" if in_the_way else error.strerror
        raise OSError(
            error.errno, f"{path} cannot be written ({reason}); choose a folder with room and write permission"
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private
        with temporary.open("rb+") as file:
            os.fsync(file)  # a rename may reach the disk before what the file holds
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        left = "the file that was there is intact" if os.path.isfile(path) else "nothing was left there"
        raise OSError(error.errno, f"{path} cannot be written ({error.strerror or error}); {left}") from None
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file, on the disk when this returns; what is there of a line that failed is removed."""
    path, rest = Path(path), f"{line}\n".encode()
    new = not path.exists()
    with path.open("ab", buffering=0) as file:  # a buffer would be written once more when the file is closed
        end = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file)
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise
    if new:
        _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that a process left which was killed while it wrote `path`."""
    path = Path(path)
    # as mkstemp names them; not .NAME.swp and the like, which editors make
    leftover = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(path.suffix)}")
    for file in path.parent.iterdir():
        if leftover.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk; not every system can, and the files are whole without it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
