"""CIFAR-10 in its binary version: six files of 10,000 records, a label byte and 3 x 32 x 32 pixel bytes each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["LabelledImages", "read_cifar10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAINING_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000


@dataclass(frozen=True)
class LabelledImages:
    """Images (n, 3, 32, 32) in bytes and the index of each one's class."""

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...] = CLASSES


def read_cifar10(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set from `folder`, or from its subfolder cifar-10-batches-bin."""
    folder = Path(folder)
    for place in (folder, folder / "cifar-10-batches-bin"):
        if (place / TEST_FILES[0]).exists():
            return _read(place, TRAINING_FILES), _read(place, TEST_FILES)
    raise ValueError(
        f"{folder} does not hold CIFAR-10: expected {TRAINING_FILES[0]} to {TRAINING_FILES[-1]} and {TEST_FILES[0]} there "
        f"or in its subfolder cifar-10-batches-bin; unpack the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
    )


def _read(folder: Path, names: tuple[str, ...]) -> LabelledImages:
    records = np.concatenate([_read_file(folder / name) for name in names])
    return LabelledImages(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64))


def _read_file(path: Path) -> np.ndarray:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); unpack CIFAR-10 again") from None
    if data.size != RECORDS * RECORD:
        raise ValueError(f"{path} has {data.size} bytes, expected {RECORDS * RECORD}; unpack CIFAR-10 again")
    records = data.reshape(RECORDS, RECORD)
    if records[:, 0].max() >= len(CLASSES):
        raise ValueError(
            f"{path} holds the label {records[:, 0].max()}, expected 0 to {len(CLASSES) - 1}; unpack CIFAR-10 again"
        )
    return records
