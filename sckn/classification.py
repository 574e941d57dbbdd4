"""Image files in, names of classes with their scores out; a file that cannot be read does not hold up the others."""

import io
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sckn.classifier import ImageClassifier
from sckn.data.folder import files_below
from sckn.data.pictures import read_picture
from sckn.settings import whole_number

__all__ = ["STANDARD_INPUT", "Answer", "classify_files"]

STANDARD_INPUT = "-"
MOST_BYTES = 2**28  # of an image on standard input, whose size nobody tells beforehand


@dataclass(frozen=True)
class Answer:
    """The best classes of an image, best first, each with its score; or the problem that there was with it."""

    image: str
    best: tuple[tuple[str, float], ...] = ()
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A form for JSON."""
        if self.problem is not None:
            return {"image": self.image, "problem": self.problem}
        return {"image": self.image, "best": [{"class": name, "score": round(score, 6)} for name, score in self.best]}


def classify_files(
    classifier: ImageClassifier, sources: Iterable[str], standard_input: BinaryIO, *, top: int = 3, batch_size: int = 256
) -> Iterator[Answer]:
    """An answer for each image file, each file in a folder, or "-" for an image on standard input, in their order.

    Images are read as those of a folder are for training. No more than `batch_size` of them are held at a time.
    """
    if classifier.channels != 3:
        raise ValueError(f"image files are read in 3 colours, but the model takes images with {classifier.channels} channels")
    top = min(whole_number("top", top), len(classifier.classes))
    files = _files(sources)
    while batch := list(islice(files, whole_number("batch_size", batch_size))):
        read = [_read(name, classifier.image_size, standard_input) for name in batch]
        images = [image for image in read if isinstance(image, np.ndarray)]
        best = iter(_best(classifier, np.stack(images), top) if images else ())
        for name, image in zip(batch, read, strict=True):
            yield Answer(name, problem=image) if isinstance(image, str) else Answer(name, next(best))


def _files(sources: Iterable[str]) -> Iterator[str]:
    """Files as they are, also such as do not exist; folders as the files in them, also where there are none."""
    for source in sources:
        if source != STANDARD_INPUT and os.path.isdir(source):
            yield from map(str, files_below(Path(source)) or [Path(source)])
        else:
            yield source


def _read(name: str, size: int, standard_input: BinaryIO) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    source: Path | BinaryIO = Path(name)
    if name == STANDARD_INPUT:
        content = standard_input.read(MOST_BYTES + 1)
        if not content or len(content) > MOST_BYTES:
            return "there are too many bytes" if content else "there is nothing on standard input"
        source = io.BytesIO(content)
    elif os.path.isdir(name):
        return "there are no files in this folder"
    elif not os.path.isfile(name):  # a pipe could be waited for without end
        return "it is no plain file" if os.path.exists(name) else "it does not exist"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about what it repairs by itself
            return read_picture(source, size)
    except ValueError as error:
        return str(error)


def _best(classifier: ImageClassifier, images: np.ndarray, top: int) -> list[tuple[tuple[str, float], ...]]:
    scores, places = classifier.predict(images, len(images)).topk(top, dim=1)
    pairs = zip(scores.tolist(), places.tolist(), strict=True)
    return [tuple((classifier.classes[j], score) for score, j in zip(*pair, strict=True)) for pair in pairs]
