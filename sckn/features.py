"""Between the network and the linear model: features are centred, decorrelated and scaled, and get a constant.

Pooled maps vary a thousand times more in some directions than in others, so that a linear model on them is slow to
fit and its penalty |W|^2 says little. As in the whitening of images, half the way to a white spectrum helps most.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sckn.inverse_root import inverse_square_root
from sckn.precision import full_precision

__all__ = ["FeatureTransform"]

# Directions are treated as if they had at least this part of the mean variance.
VARIANCE_FLOOR = 1e-3
ROWS = 2048


@dataclass(frozen=True)
class FeatureTransform:
    """x -> scale (C + floor I)^(-1/4) (x - mean), followed by a constant of the size of the mean norm.

    The matrix acts on groups of `len(matrix)` features: all of them, or the channels at each position of the last map.
    """

    mean: Tensor
    matrix: Tensor
    scale: float
    constant: float

    @classmethod
    def fit(cls, features: Tensor, group: int, norm: float = 10.0) -> Self:
        """Learn the transform from features (n, d) of which `group` (a divisor of d) are decorrelated together.

        Afterwards the features have mean norm `norm`, the constant not counted.
        """
        mean = features.mean(dim=0)
        covariance = torch.zeros(group, group, dtype=features.dtype, device=features.device)
        with full_precision(features.device):
            for rows in features.split(ROWS):
                columns = _grouped(rows - mean, group).transpose(0, 1).flatten(1)  # (group, ROWS d / group)
                covariance += columns @ columns.T
            covariance = covariance.double()
            covariance.div_(covariance.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny))
            covariance.diagonal().add_(VARIANCE_FLOOR)
            # C^(-1/4) = (C C^(-1/2))^(-1/2)
            method = "newton_schulz" if features.is_cuda else "eigh"
            root = covariance @ inverse_square_root(covariance, method)
            matrix = inverse_square_root((root + root.T) / 2, method).to(features.dtype)
        unscaled = cls(mean, matrix, 1.0, 0.0)
        total = sum(float(torch.linalg.vector_norm(unscaled(rows)[:, :-1], dim=1).sum()) for rows in features.split(ROWS))
        return cls(mean, matrix, norm * len(features) / total if total > 0 else 1.0, norm)

    def __call__(self, features: Tensor) -> Tensor:
        """Features (n, d) -> (n, d + 1)."""
        transformed = features.new_empty(len(features), features.shape[1] + 1)
        transformed[:, -1] = self.constant
        matrix = self.matrix * self.scale
        for rows, out in zip(features.split(ROWS), transformed.split(ROWS), strict=True):
            out[:, :-1] = (matrix @ _grouped(rows - self.mean, len(matrix))).flatten(1)
        return transformed


def _grouped(rows: Tensor, group: int) -> Tensor:
    """(n, d) -> (n, group, d / group): channels first, as a flattened map has them."""
    return rows.reshape(len(rows), group, -1)
