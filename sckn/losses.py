"""Loss functions L(y, f) of equation (7), pointwise on targets and scores of one shape, with their derivatives in f.

For classification targets are 1 and -1: (n, classes), one against all, or (n, 1) for two classes. For regression they
are any numbers, (n, outputs), or maps (n, outputs, H, W).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Logistic", "Loss", "Square", "SquaredHinge"]


class Loss(ABC):
    """A convex loss with a continuous derivative."""

    @abstractmethod
    def __call__(self, targets: Tensor, scores: Tensor) -> Tensor:
        """L(y, f), differentiable."""

    @abstractmethod
    def derivative(self, targets: Tensor, scores: Tensor) -> Tensor:
        """dL/df."""

    @abstractmethod
    def curvature(self, targets: Tensor, scores: Tensor) -> Tensor:
        """d^2L/df^2, where it exists."""

    def gradient_is_zero(self, targets: Tensor, scores: Tensor) -> Tensor:
        """Whether a sample moves nothing, (n,): dL/df = 0 for all its outputs. Such samples leave the active set."""
        return (self.derivative(targets, scores) == 0).flatten(1).all(dim=1)


@dataclass(frozen=True)
class SquaredHinge(Loss):
    """max(0, 1 - y f)^2, without a factor 1/2."""

    def __call__(self, targets: Tensor, scores: Tensor) -> Tensor:
        return (1 - targets * scores).clamp_min(0).square()

    def derivative(self, targets: Tensor, scores: Tensor) -> Tensor:
        return -2 * targets * (1 - targets * scores).clamp_min(0)

    def curvature(self, targets: Tensor, scores: Tensor) -> Tensor:
        return 2 * (targets * scores < 1).to(scores.dtype)


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + exp(-y f))."""

    def __call__(self, targets: Tensor, scores: Tensor) -> Tensor:
        return F.softplus(-targets * scores)

    def derivative(self, targets: Tensor, scores: Tensor) -> Tensor:
        return -targets * torch.sigmoid(-targets * scores)

    def curvature(self, targets: Tensor, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores) * torch.sigmoid(-scores)


@dataclass(frozen=True)
class Square(Loss):
    """(f - y)^2 / 2."""

    def __call__(self, targets: Tensor, scores: Tensor) -> Tensor:
        return (scores - targets).square() / 2

    def derivative(self, targets: Tensor, scores: Tensor) -> Tensor:
        return scores - targets

    def curvature(self, targets: Tensor, scores: Tensor) -> Tensor:
        return torch.ones_like(scores)
