"""What every reader gives: images in bytes, the class of each, the names of the classes."""

from dataclasses import dataclass

import numpy as np

__all__ = ["LabelledImages"]


@dataclass(frozen=True)
class LabelledImages:
    """Images (n, c, h, w) in bytes (uint8) and the index of each one's class (int64).

    `classes` has the names of the classes, `skipped` the images that could not be read, each with the reason.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
