"""Downloads from the official sites: whole and with the official checksum, or not at all."""

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from sckn.data.official import OfficialFile
from sckn.files import remove_leftovers, written_whole

__all__ = ["download"]

CHUNK = 2**20
PATIENCE = 60  # seconds without a byte


def download(file: OfficialFile, folder: Path) -> Path:
    """Fetch a file into a folder, with a progress bar; a file that is there already is replaced once the new one is whole."""
    path = Path(folder) / file.name
    if path.parent.is_dir():
        remove_leftovers(path)
    with written_whole(path) as temporary:
        _fetch(file, temporary)
    return path


def _fetch(file: OfficialFile, path: Path) -> None:
    """Errors of the network are ValueErrors, so that they are not taken for those of the disk."""
    digest, received = hashlib.md5(usedforsecurity=False), 0
    try:
        response = urllib.request.urlopen(file.address, timeout=PATIENCE)
    except (OSError, HTTPException) as error:
        raise _failed(file, error) from None
    bar = tqdm(total=file.size, desc=file.name, unit="B", unit_scale=True, disable=None)
    with response, bar, path.open("wb") as out:
        while received <= file.size:
            try:
                chunk = response.read(CHUNK)
            except (OSError, HTTPException) as error:
                raise _failed(file, error) from None
            if not chunk:
                break
            out.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            bar.update(len(chunk))
    if received != file.size or digest.hexdigest() != file.md5:
        wrong = f"{received} bytes, expected {file.size}" if received != file.size else "another MD5 checksum"
        raise ValueError(f"{file.address} gave another file than the official one ({wrong}); it was not kept, try again")


def _failed(file: OfficialFile, error: Exception) -> ValueError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        reason = f"{error.code} {reason}"
    words = " ".join(str(reason).split())  # some have several lines
    return ValueError(f"{file.address} cannot be fetched ({words}); check the network and try again")
