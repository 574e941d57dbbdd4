"""CIFAR-10's binary files, made up at their true size."""

import os
from pathlib import Path

import numpy as np
import pytest

from sckn.data.cifar10 import LabelledImages, read_cifar10

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
        with pytest.raises(ValueError, match=r"does not hold CIFAR-10.*data_batch_1\.bin.*https://") as caught:
            read_cifar10(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
