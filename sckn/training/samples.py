"""Images with their targets, checked, on the device where they are used."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from sckn.data.batches import floating_point
from sckn.linear import one_vs_all
from sckn.processes import ALONE, Processes

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """Images (n, c, H, W) and targets (n, outputs) or (n, outputs, h, w); n is the share of this process."""

    images: Tensor
    targets: Tensor
    processes: Processes = ALONE

    @classmethod
    def checked(
        cls,
        images: Tensor | np.ndarray,
        targets: Tensor | np.ndarray,
        *,
        like: Tensor,
        classification: bool,
        classes: int | None = None,
        processes: Processes = ALONE,
    ) -> Self:
        """From what a user gives, in the type and on the device of `like`.

        With `classification`, targets are class numbers (n,), or 1 and -1. `classes` is how many outputs there must be, for
        validation those of the training set.
        """
        images, targets = _tensor(images).to(like.device), _tensor(targets).to(like.device)
        images = floating_point(images).to(like.dtype)
        if images.dim() != 4:
            raise ValueError(f"expected images of shape (n, c, H, W), got {tuple(images.shape)}")
        if len(images) != len(targets):
            raise ValueError(f"there are {len(images)} images, but targets for {len(targets)}; give one for each image")
        if classification and targets.dim() == 1:
            targets = _from_class_numbers(targets, classes, like.dtype, processes)
        targets = targets.to(like.dtype)
        targets = targets[:, None] if targets.dim() == 1 else targets
        if targets.dim() not in (2, 4):
            raise ValueError(f"expected targets (n,), (n, outputs) or (n, outputs, h, w), got {tuple(targets.shape)}")
        if classes is not None and targets.shape[1] != classes:
            raise ValueError(f"the targets have {targets.shape[1]} outputs, but the model learns {classes}")
        for name, values in (("images", images), ("targets", targets)):
            if not bool(torch.isfinite(values).all()):
                raise ValueError(f"the {name} hold NaN or infinity; clean them first")
        if classification and not bool((targets.abs() == 1).all()):
            raise ValueError("for classification targets must be class numbers (n,), or 1 and -1")
        return cls(images, targets, processes)

    @property
    def per_pixel(self) -> bool:
        """Whether each pixel of the last map has its own targets."""
        return self.targets.dim() == 4

    def first(self, count: int | None) -> "Samples":
        """So many of all processes' samples, to within one for each process, or all."""
        share = slice(None if count is None else math.ceil(count / self.processes.count))
        return Samples(self.images[share], self.targets[share], self.processes)

    def total(self) -> int:
        """Samples of all processes, which all must ask."""
        return int(self.processes.sum(torch.tensor(len(self.images), device=self.images.device)))


def _tensor(values: Tensor | np.ndarray) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))


def _from_class_numbers(labels: Tensor, classes: int | None, dtype: torch.dtype, processes: Processes) -> Tensor:
    if labels.is_floating_point() or (len(labels) and int(labels.min()) < 0):
        raise ValueError("class numbers must be whole numbers from 0 on; other targets have the shape (n, outputs)")
    found = torch.zeros(processes.count, dtype=torch.long, device=labels.device)
    found[processes.rank] = int(labels.max()) + 1 if len(labels) else 0
    found = int(processes.sum(found).max())
    if classes is not None and found > classes:
        raise ValueError(f"there are images of {found} classes, but the model learns only {classes}")
    return one_vs_all(labels, classes or max(2, found), dtype)
