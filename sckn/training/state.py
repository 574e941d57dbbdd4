"""A training between two epochs, and where it is kept so that it can go on after an interruption."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sckn.model import KernelModel

__all__ = ["EpochRecord", "TrainingState", "TrainingStore"]

EpochRecord = dict[str, Any]


@dataclass(frozen=True)
class TrainingState:
    """All that a training needs to go on as if it had never stopped."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class TrainingStore(Protocol):
    """Where a training keeps its state and its figures; `RunFolder` is one."""

    def load_state(self) -> TrainingState | None: ...
    def save_state(self, state: TrainingState) -> None: ...
    def record(self, record: EpochRecord) -> None: ...
    def save_best(self, model: KernelModel) -> None: ...
