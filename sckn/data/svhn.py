"""SVHN, the cropped digits, from the official train_32x32.mat, test_32x32.mat and, if wished, extra_32x32.mat."""

from pathlib import Path

import numpy as np

from sckn.data.labelled import LabelledImages
from sckn.data.matlab import read_matlab_arrays
from sckn.data.official import OfficialFile, file_size, warn_of_other_checksums, without_data

__all__ = ["EXTRA", "PAGE", "TEST", "TRAIN", "read_svhn"]

PAGE = "http://ufldl.stanford.edu/housenumbers"
TRAIN = OfficialFile(f"{PAGE}/train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373")
TEST = OfficialFile(f"{PAGE}/test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3")
EXTRA = OfficialFile(f"{PAGE}/extra_32x32.mat", 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7")
CLASSES = tuple("0123456789")
MOST_IMAGES = 531_131  # those of extra_32x32.mat


def read_svhn(folder: Path, extra: bool = False) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set; with `extra` the easier digits of extra_32x32.mat follow those of the training set.

    The files may have any number of images. A checksum that is not the official one is a warning.
    """
    folder = Path(folder)
    files = [TRAIN, TEST, *([EXTRA] if extra else [])]
    missing = [file.name for file in files if file_size(folder / file.name) is None]
    if missing:
        raise ValueError(
            f"{without_data(folder, 'SVHN')}: expected {' and '.join(missing)} there; "
            f"get it with sckn data svhn --data DIR --download{' --extra' if extra else ''}, or from {PAGE}"
        )
    test = _read([folder / TEST.name])
    train = _read([folder / file.name for file in files if file is not TEST])
    warn_of_other_checksums([(folder / file.name, [file.md5]) for file in files])
    return train, test


def _read(paths: list[Path]) -> LabelledImages:
    images, labels = [], []
    for path in paths:
        try:
            arrays = read_matlab_arrays(path, ("X", "y"), limit=MOST_IMAGES * 32 * 32 * 3)
            images.append(_images(arrays.get("X")))
            labels.append(_labels(arrays.get("y"), len(images[-1])))
        except ValueError as error:
            raise ValueError(f"{path} {error}; download it again from {PAGE}") from None
    joined = np.empty((sum(map(len, images)), 3, 32, 32), np.uint8)  # numpy's own choice would keep the order of the file
    return LabelledImages(np.concatenate(images, out=joined), np.concatenate(labels), CLASSES)


def _images(X: np.ndarray | None) -> np.ndarray:
    if X is None or X.dtype != np.uint8 or X.shape[:3] != (32, 32, 3) or X.ndim != 4:
        found = "none" if X is None else f"{X.dtype} {X.shape}"
        raise ValueError(f"has other images than expected: an array X of bytes (32, 32, 3, n), found {found}")
    return X.transpose(3, 2, 0, 1)  # rows, columns, colours, images as the file has them


def _labels(y: np.ndarray | None, count: int) -> np.ndarray:
    if y is None or y.shape not in ((count, 1), (1, count)):
        found = "none" if y is None else f"{y.shape}"
        raise ValueError(f"has other labels than expected: an array y of shape ({count}, 1), found {found}")
    wrong = y[~np.isin(y, np.arange(1, 11))]
    if len(wrong):
        raise ValueError(f"holds the label {wrong[0]}, expected 1 to 10")
    return y.ravel().astype(np.int64) % 10  # the digit 0 has the label 10
