"""Data sets in the official formats, made up and small, for tests of the readers."""

import hashlib
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from sckn.data import svhn
from sckn.data.cifar_files import Batch, Cifar, Version
from sckn.data.official import OfficialFile


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def small(cifar: Cifar, records: int) -> Cifar:
    """The same data set with fewer images in each file, and without checksums."""

    def batches(given: tuple[Batch, ...]) -> tuple[Batch, ...]:
        return tuple(Batch(batch.name, records) for batch in given)

    versions = [replace(each, training=batches(each.training), test=batches(each.test)) for each in cifar.versions]
    return replace(cifar, versions=tuple(replace(each, archive=replace(each.archive, md5="none")) for each in versions))


def with_checksums(cifar: Cifar, folder: Path) -> Cifar:
    """The same data set with the checksums of those of its files that lie in `folder`."""

    def batches(version: Version, given: tuple[Batch, ...]) -> tuple[Batch, ...]:
        paths = [folder / version.folder / batch.name for batch in given]
        return tuple(
            replace(batch, md5=md5(path)) if path.exists() else batch for batch, path in zip(given, paths, strict=True)
        )

    def archive(file: OfficialFile) -> OfficialFile:
        path = folder / file.name
        return replace(file, md5=md5(path), size=path.stat().st_size) if path.exists() else file

    versions = [replace(v, training=batches(v, v.training), test=batches(v, v.test)) for v in cifar.versions]
    return replace(cifar, versions=tuple(replace(v, archive=archive(v.archive)) for v in versions))


def contents(cifar: Cifar, seed: int = 0) -> list[dict[str, Any]]:
    """For each file the pixels (n, 3072) and the labels."""
    random = np.random.default_rng(seed)
    return [
        {
            "data": random.integers(0, 256, (batch.records, 3072), dtype=np.uint8),
            **{name: random.integers(0, classes, batch.records) for name, classes in cifar.labels},
        }
        for batch in cifar.versions[0].batches
    ]


def write_binary(cifar: Cifar, folder: Path, seed: int = 0) -> Path:
    """The binary version in its own folder inside `folder`."""
    place = folder / cifar.versions[0].folder
    place.mkdir(parents=True)
    for batch, content in zip(cifar.versions[0].batches, contents(cifar, seed), strict=True):
        labels = [content[name][:, None].astype(np.uint8) for name, _ in cifar.labels]
        (place / batch.name).write_bytes(np.concatenate([*labels, content["data"]], 1).tobytes())
    return place


def write_python(cifar: Cifar, folder: Path, seed: int = 0, protocol: int | None = None) -> Path:
    """The Python version in its own folder: as Python 2 wrote the official files, or by Python 3 with this protocol."""
    place = folder / cifar.versions[1].folder
    place.mkdir(parents=True)
    for batch, content in zip(cifar.versions[1].batches, contents(cifar, seed), strict=True):
        values = {name.encode(): content[name].tolist() for name, _ in cifar.labels}
        values[b"filenames"] = [b"image_%d.png" % i for i in range(batch.records)]
        values[b"batch_label"] = b"a batch"
        if protocol is None:
            (place / batch.name).write_bytes(python_2_pickle(content["data"], values))
        else:
            (place / batch.name).write_bytes(pickle.dumps({b"data": content["data"], **values}, protocol))
    return place


def python_2_pickle(data: np.ndarray, values: dict[bytes, Any]) -> bytes:
    """What Python 2 with its numpy writes for a dictionary with one array of bytes, in protocol 2."""

    def string(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def plain(value: Any) -> bytes:
        if isinstance(value, list):
            return b"](" + b"".join(map(plain, value)) + b"e"
        return string(value) if isinstance(value, bytes) else b"K" + bytes([value])

    shape = b"".join(b"J" + struct.pack("<i", side) for side in data.shape)
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nq\x03U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"(K\x01(" + shape + b"t" + dtype + b"\x89" + string(data.tobytes()) + b"tb"
    items = b"".join(string(key) + plain(value) for key, value in values.items())
    return b"\x80\x02}q\x00(" + string(b"data") + array + items + b"u."


def pack(place: Path, archive: Path) -> Path:
    """A .tar.gz with one folder."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(place, place.name)
    return archive


def write_svhn(folder: Path, counts: tuple[int, ...] = (7, 5), seed: int = 0, **options: Any) -> list[dict[str, np.ndarray]]:
    """train_32x32.mat, test_32x32.mat and, with a third count, extra_32x32.mat; what they hold."""
    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    held = []
    for file, count in zip((svhn.TRAIN, svhn.TEST, svhn.EXTRA), counts, strict=False):
        images = random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        held.append({"X": images, "y": random.integers(1, 11, (count, 1)).astype(np.uint8)})
        savemat(folder / file.name, held[-1], **{"do_compression": True, **options})
    return held


def write_image(path: Path, color: Any, size: tuple[int, int] = (8, 8), mode: str = "RGB", **options: Any) -> Path:
    """An image of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)
    return path
