"""CIFAR-10 and CIFAR-100 from the official files: binary or Python version, unpacked or as the .tar.gz."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sckn.data.archive import is_archive, read_members
from sckn.data.cifar_files import CIFAR10, CIFAR100, Batch, Cifar, Version
from sckn.data.labelled import LabelledImages
from sckn.data.official import file_size, read_bounded, warn_of_other_checksums, without_data
from sckn.data.plain_pickle import read_plain_pickle

__all__ = ["Place", "find_cifar", "read_cifar", "read_cifar10", "read_cifar100"]

PIXELS = 3 * 32 * 32
MOST_UNPACKED = 2**28  # bytes; the official archives hold 186 MB

Records = tuple[np.ndarray, np.ndarray]  # pixels (n, 3072) in bytes, labels (n,)


def read_cifar10(path: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set. `path` is the archive, a folder with the unpacked files, or a folder in which these lie."""
    return read_cifar(CIFAR10, path)


def read_cifar100(path: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set with the 100 fine labels; `path` as for CIFAR-10."""
    return read_cifar(CIFAR100, path)


@dataclass(frozen=True)
class Place:
    """Where a data set lies: a folder with the files of a version, or an archive, whose version its content tells."""

    path: Path
    version: Version | None

    def missing(self) -> list[str]:
        """The files that the folder lacks."""
        batches = self.version.batches if self.version else ()
        return [batch.name for batch in batches if file_size(self.path / batch.name) is None]


def find_cifar(cifar: Cifar, path: Path) -> Place | None:
    """A folder with all files, or else an archive, or else a folder with some; the binary version before the other."""
    if is_archive(path):
        return Place(path, None)
    folders = [Place(folder, version) for version in cifar.versions for folder in (path, path / version.folder)]
    archives = [Place(path / version.archive.name, None) for version in cifar.versions]
    whole = [place for place in folders if not place.missing()]
    packed = [place for place in archives if is_archive(place.path)]
    begun = [place for place in folders if place.version and len(place.missing()) < len(place.version.batches)]
    return next(iter(whole + packed + begun), None)


def read_cifar(cifar: Cifar, path: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set. A checksum that is not the official one is a warning, all else that is wrong an error."""
    place = find_cifar(cifar, Path(path))
    if place is None:
        first, folders = cifar.versions[0].training[0].name, " or ".join(version.folder for version in cifar.versions)
        archives = " or ".join(version.archive.name for version in cifar.versions)
        raise ValueError(
            f"{without_data(path, cifar.name)}: expected {first} and so on, the folder {folders}, "
            f"or the archive {archives}; get it with sckn data {cifar.key} --data DIR --download, or from {cifar.page}"
        )
    if place.version is None:
        version, records = _read_archive(cifar, place.path)
        checksums = [(place.path, [version.archive.md5])]
    else:
        version, records = place.version, _read_folder(cifar, place.version, place.path)
        checksums = [(place.path / batch.name, [batch.md5] if batch.md5 else []) for batch in version.batches]
    warn_of_other_checksums(checksums)
    return _joined(cifar, version.training, records), _joined(cifar, version.test, records)


def _read_folder(cifar: Cifar, version: Version, folder: Path) -> dict[str, Records]:
    records = {}
    for batch in version.batches:
        path = folder / batch.name
        try:
            content = read_bounded(path, _most_bytes(cifar, version, batch), exactly=not version.pickled)
            records[batch.name] = _decoded(cifar, version, batch, content)
        except ValueError as error:
            raise ValueError(f"{path} {error}; unpack {cifar.name} again") from None
    return records


def _read_archive(cifar: Cifar, path: Path) -> tuple[Version, dict[str, Records]]:
    files = {f"{version.folder}/{batch.name}": (version, batch) for version in cifar.versions for batch in version.batches}
    sizes = {name: _most_bytes(cifar, *file) for name, file in files.items()}
    found: dict[str, dict[str, Records]] = {version.folder: {} for version in cifar.versions}
    try:
        for name, content in read_members(path, sizes, MOST_UNPACKED):
            version, batch = files[name]
            try:
                found[version.folder][batch.name] = _decoded(cifar, version, batch, content)
            except ValueError as error:
                raise ValueError(f"{name} in it {error}") from None
        version = max(cifar.versions, key=lambda version: len(found[version.folder]))
        records = found[version.folder]
        missing = [batch.name for batch in version.batches if batch.name not in records]
        if missing:
            raise ValueError(f"it lacks {version.folder}/{missing[0]}")
    except ValueError as error:
        raise ValueError(f"{path} is no whole archive of {cifar.name}: {error}; download it again") from None
    return version, records


def _most_bytes(cifar: Cifar, version: Version, batch: Batch) -> int:
    """A binary file has exactly this size; a pickle has more than pixels, and Python 3 may write two bytes for one."""
    return batch.records * 2 * PIXELS if version.pickled else batch.records * (len(cifar.labels) + PIXELS)


def _decoded(cifar: Cifar, version: Version, batch: Batch, content: bytes) -> Records:
    pixels, labels = _from_pickle(cifar, batch, content) if version.pickled else _from_binary(cifar, batch, content)
    for (_, classes), values in zip(cifar.labels, labels, strict=True):
        for label in (min(values), max(values)):
            if not 0 <= label < classes:
                raise ValueError(f"holds the label {label}, expected 0 to {classes - 1}")
    return pixels, np.array(labels[-1], np.int64)


def _from_binary(cifar: Cifar, batch: Batch, content: bytes) -> tuple[np.ndarray, list[list[int]]]:
    """Each record is a byte for each label, then 1024 bytes of red, of green and of blue, each row by row."""
    record = len(cifar.labels) + PIXELS
    if len(content) != batch.records * record:
        raise ValueError(f"has {len(content)} bytes, expected {batch.records * record}")
    records = np.frombuffer(content, np.uint8).reshape(batch.records, record)
    return records[:, len(cifar.labels) :], [records[:, i].tolist() for i in range(len(cifar.labels))]


def _from_pickle(cifar: Cifar, batch: Batch, content: bytes) -> tuple[np.ndarray, list[list[int]]]:
    """A dictionary with the pixels of all records, in the same order, as `data`, and a list for each label."""
    values = read_plain_pickle(content)
    pixels, labels = values.get("data"), []
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape == (batch.records, PIXELS)):
        raise ValueError(f"does not hold an array 'data' of {batch.records} x {PIXELS} bytes")
    for name, _ in cifar.labels:
        numbers = values.get(name)
        if not (isinstance(numbers, list) and len(numbers) == batch.records and all(map(_is_number, numbers))):
            raise ValueError(f"does not hold a list {name!r} of {batch.records} whole numbers")
        labels.append(numbers)
    return pixels, labels


def _is_number(value: object) -> bool:
    return type(value) is int and value.bit_length() < 64


def _joined(cifar: Cifar, batches: tuple[Batch, ...], records: dict[str, Records]) -> LabelledImages:
    pixels, labels = zip(*(records[batch.name] for batch in batches), strict=True)
    return LabelledImages(np.concatenate(pixels).reshape(-1, 3, 32, 32), np.concatenate(labels), cifar.classes)
