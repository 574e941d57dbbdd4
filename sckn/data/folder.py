"""Any folder of images with one sub-folder a class.

If the folder has the sub-folders `train` and `test` (or `val`) with the classes inside, these are training and test set. If
not, a fifth of the files of each class are the test set, drawn with a fixed seed: it depends on the names of the files alone,
and is the same for all seeds of an experiment.
"""

import os
import warnings
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sckn.data.labelled import LabelledImages
from sckn.data.pictures import read_picture
from sckn.settings import whole_number

__all__ = ["ImageFiles", "files_below", "find_images", "printable", "read_folder"]

TEST_PART = 0.2
NAMED = 5  # how many of the images left out a warning names

ImageFiles = dict[str, list[Path]]  # the files of each class


def read_folder(folder: Path, image_size: int = 32) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set: RGB, `image_size` x `image_size`, classes in the order of their names.

    Images that cannot be read are left out, counted and named in a warning.
    """
    folder, size = Path(folder), whole_number("image_size", image_size)
    sets = [_read(folder, files, size) for files in find_images(folder)]
    skipped = [name for part in sets for name in part.skipped]
    if skipped:
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        total = len(skipped) + sum(len(part.labels) for part in sets)
        warnings.warn(
            f"{len(skipped)} of {total} images in {folder} cannot be read and are left out: {', '.join(skipped[:NAMED])}{more}",
            stacklevel=2,
        )
    train, test = sets
    empty = [name for index, name in enumerate(train.classes) if index not in train.labels]
    if empty or not len(test.labels):
        which = f"of the class {printable(empty[0])}" if empty else "to test with"
        raise ValueError(f"{folder} has no readable image {which}; expected two or more images in each class")
    return train, test


def find_images(folder: Path) -> tuple[ImageFiles, ImageFiles]:
    """The files of each class for training and test; hidden ones are passed over. Nothing is read."""
    train_folder = folder / "train"
    test_folder = next((folder / name for name in ("test", "val") if _sub_folders(folder / name)), None)
    if test_folder and _sub_folders(train_folder):
        train = {name: files_below(train_folder / name) for name in _sub_folders(train_folder)}
        test = {name: files_below(test_folder / name) for name in _sub_folders(test_folder)}
        unknown = sorted(set(test) - set(train))
        if unknown:
            raise ValueError(f"{test_folder} has the class {printable(unknown[0])}, which {train_folder} lacks; add it there")
        test = {name: test.get(name, []) for name in train}
    else:
        train, test = _split({name: files_below(folder / name) for name in _sub_folders(folder)})
    if len(train) < 2:
        raise ValueError(
            f"{folder} is no folder of images: expected two or more sub-folders, each with the images of one class, "
            "or train and test with such sub-folders"
        )
    return train, test


def _split(files: ImageFiles) -> tuple[ImageFiles, ImageFiles]:
    random = np.random.default_rng(0)
    train, test = {}, {}
    for name, paths in files.items():
        order = random.permutation(len(paths))
        count = max(round(TEST_PART * len(paths)), min(1, len(paths) - 1))
        test[name] = [paths[i] for i in sorted(order[:count])]
        train[name] = [paths[i] for i in sorted(order[count:])]
    return train, test


def _sub_folders(folder: Path) -> list[str]:
    if not os.path.isdir(folder):
        return []
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise ValueError(f"{folder} cannot be read ({error.strerror}); make it readable") from None


def files_below(folder: Path) -> list[Path]:
    """All plain files in a folder and the folders below it, sorted; hidden ones are passed over, and links to folders are not
    followed, as they may be rings."""
    found = []
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if os.path.isfile(path))


def _read(folder: Path, files: ImageFiles, size: int) -> LabelledImages:
    todo = [(path, index) for index, paths in enumerate(files.values()) for path in paths]
    try:
        images = np.empty((len(todo), 3, size, size), np.uint8)
    except (MemoryError, ValueError):
        raise ValueError(
            f"{len(todo)} images of {size} x {size} pixels do not fit into the memory; set a smaller image_size"
        ) from None
    labels, skipped = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about what it repairs by itself
        for path, label in tqdm(todo, desc=f"reading {folder.name}", unit="image", disable=None, leave=False):
            try:
                images[len(labels)] = read_picture(path, size)
                labels.append(label)
            except ValueError as error:
                skipped.append(f"{printable(str(path.relative_to(folder)))} ({error})")
    return LabelledImages(images[: len(labels)], np.array(labels, np.int64), tuple(files), tuple(skipped))


def printable(name: str) -> str:
    """File names may hold anything, but a sentence is one line."""
    return name if name.isprintable() else repr(name)
