"""What `sckn data` tells: which data sets a folder holds, what is missing, and where to get it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sckn.data.cifar import find_cifar
from sckn.data.cifar_files import CIFAR10, CIFAR100, Cifar
from sckn.data.folder import find_images, printable
from sckn.data.official import OfficialFile, file_size, is_official
from sckn.data.svhn import EXTRA, TEST, TRAIN

__all__ = ["OFFICIAL", "DatasetName", "Inventory", "megabytes", "take_inventory"]

DatasetName = Literal["cifar10", "cifar100", "svhn", "folder"]
OFFICIAL: tuple[DatasetName, ...] = ("cifar10", "cifar100", "svhn")  # those that can be downloaded


@dataclass(frozen=True)
class Inventory:
    """What there is of a data set and what is missing, a line each, and the official files that would complete or extend it."""

    title: str
    found: tuple[str, ...]
    missing: tuple[str, ...] = ()
    downloads: tuple[OfficialFile, ...] = ()
    optional: tuple[OfficialFile, ...] = ()


def take_inventory(name: DatasetName, folder: Path) -> Inventory:
    """Look for a data set; files are hashed where a checksum is known, but nothing is decoded."""
    folder = Path(folder)
    match name:
        case "cifar10":
            return _cifar(CIFAR10, folder)
        case "cifar100":
            return _cifar(CIFAR100, folder)
        case "svhn":
            return _svhn(folder)
        case "folder":
            return _images(folder)


def megabytes(size: int) -> str:
    """A size in bytes, for people."""
    return f"{size / 1e6:,.1f} MB"


def _cifar(cifar: Cifar, folder: Path) -> Inventory:
    title = f"{cifar.name}, 50,000 training and 10,000 test images of {len(cifar.classes)} classes"
    archive = cifar.versions[0].archive  # the binary version needs no unpickling
    place = find_cifar(cifar, folder)
    if place is None:
        return Inventory(title, (), (archive.name,), (archive,))
    if place.version is None:
        return Inventory(title, (_described(place.path, [version.archive.md5 for version in cifar.versions]),))
    missing = place.missing()
    found = [batch for batch in place.version.batches if batch.name not in missing]
    return Inventory(
        title,
        tuple(_described(place.path / batch.name, [batch.md5] if batch.md5 else []) for batch in found),
        tuple(str(place.path / name) for name in missing),
        (archive,) if missing else (),
    )


def _svhn(folder: Path) -> Inventory:
    found = [file for file in (TRAIN, TEST, EXTRA) if file_size(folder / file.name) is not None]
    missing = tuple(file for file in (TRAIN, TEST) if file not in found)
    return Inventory(
        "SVHN, 73,257 training and 26,032 test images of digits, and 531,131 extra ones",
        tuple(_described(folder / file.name, [file.md5]) for file in found),
        tuple(file.name for file in missing),
        missing,
        () if EXTRA in found else (EXTRA,),
    )


def _images(folder: Path) -> Inventory:
    train, test = find_images(folder)
    counts = [sum(map(len, files.values())) for files in (train, test)]
    lines = [f"{printable(name)}: {len(paths)} files to train with, {len(test[name])} to test" for name, paths in train.items()]
    title = f"{len(train)} classes, {counts[0]:,} files to train with, {counts[1]:,} to test"
    return Inventory(title, tuple(lines))


def _described(path: Path, md5s: list[str]) -> str:
    checksum = {
        True: "official checksum",
        False: "NOT the official checksum (remove it to get it anew)",
        None: "no official checksum known",
    }
    return f"{path}  {megabytes(file_size(path) or 0)}, {checksum[is_official(path, md5s)]}"
