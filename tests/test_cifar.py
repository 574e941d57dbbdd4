"""CIFAR-10's binary files, made up at their true size; small ones of both data sets in all their forms."""

import gzip
import io
import os
import pickle
import re
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_data import contents, pack, small, with_checksums, write_binary, write_python

from sckn.data.cifar import read_cifar, read_cifar10, read_cifar100
from sckn.data.cifar_files import CIFAR10, CIFAR100, Cifar
from sckn.data.labelled import LabelledImages

pytestmark = pytest.mark.filterwarnings("ignore:.* not as handed out by the official site")

FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
RECORD, RECORDS = 3073, 10_000


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files with random labels; the first and last records have random pixels, the others none."""
    folder = tmp_path_factory.mktemp("cifar10") / "cifar-10-batches-bin"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in FILES:
        records = np.zeros((RECORDS, RECORD), np.uint8)
        records[:, 0] = generator.integers(0, 10, RECORDS)
        records[[0, 1, -1], 1:] = generator.integers(0, 256, (3, RECORD - 1))
        records.tofile(folder / name)
    return folder


@pytest.fixture(scope="session")
def read(made_up: Path) -> tuple[LabelledImages, LabelledImages]:
    return read_cifar10(made_up)


def linked(made_up: Path, folder: Path, *, without: str) -> Path:
    """A folder with links to all files but one."""
    for name in FILES:
        if name != without:
            (folder / name).symlink_to(made_up / name)
    return folder


def test_shapes_and_classes(read: tuple[LabelledImages, LabelledImages]) -> None:
    train, test = read
    assert (train.images.shape, train.images.dtype) == ((50_000, 3, 32, 32), np.uint8)
    assert (test.images.shape, test.images.dtype) == ((10_000, 3, 32, 32), np.uint8)
    assert (train.labels.shape, train.labels.dtype) == ((50_000,), np.int64)
    assert (test.labels.shape, test.labels.dtype) == ((10_000,), np.int64)
    assert train.classes == test.classes
    assert (len(train.classes), train.classes[0], train.classes[3], train.classes[9]) == (10, "airplane", "cat", "truck")


def test_every_record_is_where_the_format_says(made_up: Path, read: tuple[LabelledImages, LabelledImages]) -> None:
    """A label byte, then 1024 bytes of red, of green and of blue, each row by row."""
    train, test = read
    for index, name in enumerate(FILES):
        content = (made_up / name).read_bytes()
        data, start = (test, 0) if name == "test_batch.bin" else (train, index * RECORDS)
        assert data.labels[start : start + RECORDS].tolist() == list(content[::RECORD])
        for record in (0, 1, RECORDS - 1):
            image = data.images[start + record]
            for channel, row, column in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 17, 5), (2, 31, 30), (2, 31, 31)]:
                assert image[channel, row, column] == content[record * RECORD + 1 + channel * 1024 + row * 32 + column]
            assert image.tobytes() == content[record * RECORD + 1 : (record + 1) * RECORD]


def test_the_parent_folder_will_do(made_up: Path, read: tuple[LabelledImages, LabelledImages]) -> None:
    train, test = read_cifar10(made_up.parent)
    np.testing.assert_array_equal(train.labels, read[0].labels)
    np.testing.assert_array_equal(test.images, read[1].images)


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin"])
@pytest.mark.parametrize("size", [0, 1, RECORD * RECORDS - 1, RECORD * RECORDS + 1, RECORD * (RECORDS - 1)])
def test_a_file_of_another_size_is_named(name: str, size: int, made_up: Path, tmp_path: Path) -> None:
    folder = linked(made_up, tmp_path, without=name)
    (folder / name).touch()
    os.truncate(folder / name, size)
    with pytest.raises(ValueError, match=rf"{name} has {size} bytes, expected 30730000; unpack CIFAR-10 again"):
        read_cifar10(folder)


@pytest.mark.parametrize("label", [10, 255])
@pytest.mark.parametrize("name", ["data_batch_2.bin", "test_batch.bin"])
def test_a_label_that_is_none_is_named(name: str, label: int, made_up: Path, tmp_path: Path) -> None:
    folder = linked(made_up, tmp_path, without=name)
    with (folder / name).open("wb") as file:
        file.seek(RECORD * 1234)
        file.write(bytes([label]))
        file.truncate(RECORD * RECORDS)
    with pytest.raises(ValueError, match=rf"{name} holds the label {label}, expected 0 to 9; unpack CIFAR-10 again"):
        read_cifar10(folder)


@pytest.mark.parametrize("name", ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"])
def test_a_missing_file_is_named(name: str, made_up: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}.* unpack "):
        read_cifar10(linked(made_up, tmp_path, without=name))


def test_a_folder_in_the_place_of_a_file_is_named(made_up: Path, tmp_path: Path) -> None:
    folder = linked(made_up, tmp_path, without="data_batch_1.bin")
    (folder / "data_batch_1.bin").mkdir()
    with pytest.raises(ValueError, match=r"data_batch_1\.bin cannot be read \(.+\); unpack CIFAR-10 again"):
        read_cifar10(folder)


def test_folders_without_the_data_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("", "none", "file", "none/deeper"):
        there = "does not hold CIFAR-10" if (tmp_path / name).exists() else "does not exist"
        with pytest.raises(ValueError, match=rf"{there}: expected data_batch_1\.bin.*https://") as caught:
            read_cifar10(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


SMALL = [small(CIFAR10, 6), small(CIFAR100, 6)]
FORMS: dict[str, Callable[[Cifar, Path], Path]] = {
    "binary": write_binary,
    "python 2": write_python,
    "python 3, protocol 2": lambda cifar, folder: write_python(cifar, folder, protocol=2),
    "python 3, protocol 4": lambda cifar, folder: write_python(cifar, folder, protocol=4),
}
small_ones = pytest.mark.parametrize("cifar", SMALL, ids=lambda cifar: cifar.key)
all_forms = pytest.mark.parametrize("form", FORMS)


def check(cifar: Cifar, read: tuple[LabelledImages, LabelledImages]) -> None:
    """Both sets are what was made up, in its order."""
    expected = contents(cifar)
    for part, held in zip(read, (expected[:-1], expected[-1:]), strict=True):
        np.testing.assert_array_equal(
            part.images.reshape(len(part.images), -1), np.concatenate([each["data"] for each in held])
        )
        np.testing.assert_array_equal(part.labels, np.concatenate([each[cifar.labels[-1][0]] for each in held]))
        assert (part.images.shape[1:], part.images.dtype, part.labels.dtype) == ((3, 32, 32), np.uint8, np.int64)
        assert (part.classes, part.skipped) == (cifar.classes, ())


@small_ones
@all_forms
def test_all_forms_of_the_same_data_read_equal(cifar: Cifar, form: str, tmp_path: Path) -> None:
    """The folder itself, the folder around it, its archive, a folder around that."""
    place = FORMS[form](cifar, tmp_path)
    check(cifar, read_cifar(cifar, place))
    check(cifar, read_cifar(cifar, tmp_path))
    names = [version.archive.name for version in cifar.versions if version.folder == place.name]
    (tmp_path / "packed").mkdir()
    archive = pack(place, tmp_path / "packed" / names[0])
    check(cifar, read_cifar(cifar, archive))
    check(cifar, read_cifar(cifar, archive.parent))
    check(cifar, read_cifar(cifar, archive.rename(tmp_path / "of another name")))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([place.name, "packed", "of another name"])


@small_ones
def test_the_made_up_python_files_are_pickles_as_python_2_wrote_them(cifar: Cifar, tmp_path: Path) -> None:
    place = write_python(cifar, tmp_path)
    for batch, content in zip(cifar.versions[1].batches, contents(cifar), strict=True):
        held = pickle.loads((place / batch.name).read_bytes(), encoding="bytes")  # our own file
        np.testing.assert_array_equal(held[b"data"], content["data"])
        assert held[cifar.labels[-1][0].encode()] == content[cifar.labels[-1][0]].tolist()


def test_the_classes_of_cifar_100() -> None:
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)
    assert (CIFAR100.classes[0], CIFAR100.classes[90], CIFAR100.classes[99]) == ("apple", "train", "worm")


def test_cifar_100_at_its_true_size(tmp_path: Path) -> None:
    """A coarse label, a fine label, then the pixels."""
    for name, count in (("train.bin", 50_000), ("test.bin", 10_000)):
        records = np.zeros((count, 3074), np.uint8)
        records[:, 0], records[:, 1] = np.arange(count) % 20, np.arange(count) % 100
        records[-1, 2:] = np.arange(3072) % 251
        records.tofile(tmp_path / name)
    train, test = read_cifar100(tmp_path)
    assert (len(train.labels), len(test.labels)) == (50_000, 10_000)
    assert train.labels[:101].tolist() == [*range(100), 0]
    np.testing.assert_array_equal(test.images[-1].ravel(), np.arange(3072) % 251)


def test_whole_files_come_before_archives_and_these_before_a_part(tmp_path: Path) -> None:
    cifar = SMALL[0]
    place = write_binary(cifar, tmp_path)
    pack(write_python(cifar, tmp_path / "other"), tmp_path / "cifar-10-python.tar.gz")
    check(cifar, read_cifar(cifar, tmp_path))
    (place / "data_batch_3.bin").unlink()
    check(cifar, read_cifar(cifar, tmp_path))
    (tmp_path / "cifar-10-python.tar.gz").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3\.bin cannot be read \(it does not exist\); unpack CIFAR-10 again"):
        read_cifar(cifar, tmp_path)


@small_ones
@all_forms
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.filterwarnings("error")
def test_official_checksums_are_silent_and_others_a_warning(cifar: Cifar, form: str, packed: bool, tmp_path: Path) -> None:
    place = FORMS[form](cifar, tmp_path)
    if packed:
        version = next(version for version in cifar.versions if version.folder == place.name)
        path = pack(place, tmp_path / version.archive.name)
    else:
        path = place
    known = with_checksums(cifar, tmp_path)
    check(cifar, read_cifar(known, path))
    version = next(version for version in known.versions if version.folder == place.name)
    damaged = replace(version.training[0], md5="0" * 32)
    other = replace(version, training=(damaged, *version.training[1:]), archive=replace(version.archive, md5="0" * 32))
    with pytest.warns(UserWarning, match="not as handed out") as caught:
        check(cifar, read_cifar(replace(known, versions=(other,)), path))
    assert [str(warning.message) for warning in caught] == [
        f"{path if packed else place / damaged.name} is not as handed out by the official site (another MD5 checksum); "
        "unless that is on purpose, get the data set again"
    ]


def test_many_other_checksums_are_one_warning(made_up: Path) -> None:
    with pytest.warns(UserWarning, match=r"data_batch_1\.bin and 5 more there are not as handed out") as caught:
        read_cifar10(made_up)
    assert len(caught) == 1


def refused(cifar: Cifar, path: Path) -> str:
    """The one sentence that an attempt to read gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            read_cifar(cifar, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({b"data": np.zeros((6, 3071), np.uint8)}, "does not hold an array 'data' of 6 x 3072 bytes"),
        ({b"data": np.zeros((6, 3072), np.int8)}, "does not hold an array 'data' of 6 x 3072 bytes"),
        ({b"data": [0] * 6}, "does not hold an array 'data' of 6 x 3072 bytes"),
        ({b"labels": [0] * 5}, "does not hold a list 'labels' of 6 whole numbers"),
        ({b"labels": None}, "does not hold a list 'labels' of 6 whole numbers"),
        ({b"labels": [0, 1, 2, 3, 4, 1.5]}, "does not hold a list 'labels' of 6 whole numbers"),
        ({b"labels": [0, 1, 2, 3, 4, True]}, "does not hold a list 'labels' of 6 whole numbers"),
        ({b"labels": [0, 1, 2, 3, 4, 10**5000]}, "does not hold a list 'labels' of 6 whole numbers"),
        ({b"labels": [0, 1, 2, 3, 4, 10]}, "holds the label 10, expected 0 to 9"),
        ({b"labels": [0, 1, 2, 3, 4, -1]}, "holds the label -1, expected 0 to 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_pickle_of_something_else_is_named(values: dict[bytes, object], complaint: str, tmp_path: Path) -> None:
    cifar = SMALL[0]
    place = write_python(cifar, tmp_path)
    held = {b"data": np.zeros((6, 3072), np.uint8), b"labels": [0] * 6, **values}
    (place / "data_batch_2").write_bytes(pickle.dumps(held, 2))
    assert refused(cifar, place) == f"{place / 'data_batch_2'} {complaint}; unpack CIFAR-10 again"


def test_a_pickle_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    place = write_python(SMALL[0], tmp_path)
    os.truncate(place / "test_batch", 2**40)  # takes no room on the disk
    assert "test_batch has 1099511627776 bytes, expected at most 36864" in refused(SMALL[0], place)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    place = write_python(SMALL[0], tmp_path)
    (place / "test_batch").unlink()
    os.mkfifo(place / "test_batch")
    assert "test_batch cannot be read (it is no plain file)" in refused(SMALL[0], place)


def archive_of(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_archives_without_the_files_are_named(tmp_path: Path) -> None:
    """Neither names that lead elsewhere nor links nor folders of a file's name are taken for files."""
    strange = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    strange.type, strange.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for number, name in enumerate(["../../escaped", "/absolute", "data_batch_1.bin", "other/data_batch_1.bin"]):
        path = archive_of(tmp_path / f"{number}.tar.gz", [(tarfile.TarInfo(name), bytes(100)), (strange, b"")])
        assert "it lacks cifar-10-batches-bin/data_batch_1.bin; download it again" in refused(SMALL[0], path)
    assert len(list(tmp_path.parent.rglob("escaped"))) == 0


def test_a_member_that_is_too_large_is_named(tmp_path: Path) -> None:
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    path = archive_of(tmp_path / "large.tar.gz", [(member, bytes(10**6))])
    assert "data_batch_1.bin in it has 1000000 bytes, expected at most 18438" in refused(SMALL[0], path)


def test_an_archive_that_unpacks_without_end_is_left(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        header = tarfile.TarInfo("endless")
        header.size = 2**33
        file.write(header.tobuf())
        for _ in range(300):
            file.write(bytes(2**20))
    assert path.stat().st_size < 3e6
    assert "it unpacks to more than 268435456 bytes" in refused(SMALL[0], path)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_what_came_in_the_place_of_an_archive_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(content)
    for place in (path, tmp_path):
        assert f"{path} is no whole archive of CIFAR-10: " in refused(SMALL[0], place)


def test_the_last_bytes_of_an_archive_are_checked(tmp_path: Path) -> None:
    """There is its checksum, without which damaged pixels would go unseen."""
    path = pack(write_binary(SMALL[0], tmp_path), tmp_path / "cifar-10-binary.tar.gz")
    content = path.read_bytes()
    path.write_bytes(content[:-8] + bytes([content[-8] ^ 1]) + content[-7:])
    assert "incorrect data check" in refused(SMALL[0], path)
