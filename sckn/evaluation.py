"""How often a classifier is wrong: the error with its interval, the error of each class, which classes it confuses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from sckn.classifier import ImageClassifier
from sckn.data.labelled import LabelledImages

__all__ = ["Evaluation", "confusion_matrix", "evaluate", "wilson_interval"]


def wilson_interval(wrong: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Bounds of a rate of which `wrong` of `count` were seen, after Wilson (1927); unlike the usual approximation they stay
    between 0 and 1, and have a width where nothing was wrong."""
    if not 0 <= wrong <= count or not count:
        raise ValueError(f"expected some images, of which none or some are wrong, got {wrong} of {count}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, weight = wrong / count, z**2 / count
    centre = (rate + weight / 2) / (1 + weight)
    half = math.sqrt(rate * (1 - rate) * weight + weight**2 / 4) / (1 + weight)
    return (0.0 if wrong == 0 else centre - half), (1.0 if wrong == count else centre + half)


def confusion_matrix(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """How many images of each class (row) got each answer (column)."""
    return np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Names of the classes, and how many images of each (row) were taken for each (column)."""

    classes: tuple[str, ...]
    confusion: np.ndarray

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def wrong(self) -> int:
        return self.images - int(np.trace(self.confusion))

    @property
    def error(self) -> float:
        """In percent."""
        return 100 * self.wrong / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """Of 95 %, for the error in percent: what other images of the same kind may give. It says nothing of other seeds."""
        low, high = wilson_interval(self.wrong, self.images)
        return 100 * low, 100 * high

    @property
    def class_errors(self) -> list[float | None]:
        """In percent; None for a class without images."""
        counts, right = self.confusion.sum(axis=1), np.diagonal(self.confusion)
        return [100 * int(count - hits) / int(count) if count else None for count, hits in zip(counts, right, strict=True)]

    def confusions(self, most: int) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: class, answer, how many."""
        mistakes = self.confusion - np.diag(np.diagonal(self.confusion))
        order = np.argsort(-mistakes, axis=None, kind="stable")[:most]
        pairs = [divmod(int(place), len(self.classes)) for place in order]
        return [(self.classes[i], self.classes[j], int(mistakes[i, j])) for i, j in pairs if mistakes[i, j]]

    def to_dict(self) -> dict[str, Any]:
        """A form for JSON."""
        return {
            "images": self.images,
            "wrong": self.wrong,
            "error": self.error,
            "interval": list(self.interval),
            "class_errors": dict(zip(self.classes, self.class_errors, strict=True)),
            "classes": list(self.classes),
            "confusion": self.confusion.tolist(),
        }

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """What `to_dict` described."""
        classes, confusion = tuple(map(str, content["classes"])), np.array(content["confusion"], np.int64)
        if confusion.shape != (len(classes), len(classes)) or not confusion.sum() or confusion.min() < 0:
            raise ValueError("the confusion matrix does not fit the classes")
        return cls(classes, confusion)


def evaluate(classifier: ImageClassifier, data: LabelledImages, batch_size: int = 256, *, progress: bool = False) -> Evaluation:
    """Classify images whose classes are known; these are matched by their names, or by number where the data has none."""
    labels = _labels_of_classifier(data, classifier.classes)
    answers = classifier.predict(data.images, batch_size, progress=progress).argmax(1).cpu().numpy()
    return Evaluation(classifier.classes, confusion_matrix(labels, answers, len(classifier.classes)))


def _labels_of_classifier(data: LabelledImages, classes: Sequence[str]) -> np.ndarray:
    if not len(data.labels):
        raise ValueError("there are no images to test with; give a folder with some")
    names = data.classes or tuple(classes) + tuple(map(str, range(len(classes), int(data.labels.max()) + 1)))
    unknown = [names[label] for label in np.unique(data.labels) if names[label] not in classes]
    if unknown:
        raise ValueError(
            f"there are images of the class {unknown[0]!r}, which the model does not know; it knows {', '.join(classes)[:200]}"
        )
    numbers = [classes.index(name) if name in classes else -1 for name in names]
    return np.array(numbers, np.int64)[data.labels]
