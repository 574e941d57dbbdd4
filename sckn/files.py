"""Writing files so that nothing half-written is ever left behind."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, renamed to `path` if the block succeeds and removed if it does not."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise OSError(
            error.errno, f"{path} cannot be written ({error.strerror}); choose a folder with room and write permission"
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written ({error.strerror or error}); nothing was left there") from None
    finally:
        temporary.unlink(missing_ok=True)
