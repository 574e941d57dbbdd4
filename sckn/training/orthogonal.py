"""Matrices made nearly orthogonal by products alone, for steps that follow all directions of a gradient alike.

Of G = U diag(s) V' the nearest orthogonal matrix is U V'. An odd polynomial of G acts on s alone, and one that sends every s
between 0 and 1 near 1 after a few repetitions is enough here: how long a direction is followed matters little.

References
----------
Jordan and others, Muon: an optimizer for hidden layers in neural networks (2024): the use, and the polynomial.
"""

import torch
from torch import Tensor

from sckn.precision import without_autocast

__all__ = ["orthogonalized"]

# s <- a s + b s^3 + c s^5: from 0 on as steep as possible; values then stay between 0.68 and 1.21.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
REPETITIONS = 6


def orthogonalized(matrices: Tensor) -> Tensor:
    """U V' for each of (n, p, d), but for singular values near 1: between 0.68 and 1.21 for those of at least 1/1000 of the
    Frobenius norm, and less for smaller ones. A zero matrix stays zero. Under autocast the products are in half precision,
    which moves these bounds by a few hundredths."""
    wide = matrices.shape[1] <= matrices.shape[2]
    X = matrices if wide else matrices.mT
    norms = torch.linalg.matrix_norm(X, keepdim=True)
    X = X / torch.where(norms > 0, norms, 1)
    if torch.is_autocast_enabled(X.device.type):
        X = X.to(torch.get_autocast_dtype(X.device.type))
    a, b, c = POLYNOMIAL
    with without_autocast(X.device):
        for _ in range(REPETITIONS):
            square = X @ X.mT
            X = torch.baddbmm(X, torch.baddbmm(square, square, square, beta=b, alpha=c), X, beta=a)
    return (X if wide else X.mT).to(matrices.dtype)
