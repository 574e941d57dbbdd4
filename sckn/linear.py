"""The linear model on top of the network: a convex problem in W at fixed filters, equation (7).

    min over W   (1/n) sum_i sum_c L(y_ic, <W_c, x_i>) + (lambda/2) |W|^2

Solved by L-BFGS on the device that holds the features, or for the square loss in closed form.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from sckn import lbfgs
from sckn.inverse_root import full_precision
from sckn.losses import Loss, Square, SquaredHinge

__all__ = ["LinearModel", "best_exponent", "error_rate", "fit_linear", "one_vs_all", "validation_errors"]


@dataclass(frozen=True)
class LinearModel:
    """W (d, outputs), with the objective, the largest relative norm of the gradient and the iterations it took.

    The gradient of each column is compared with that at W = 0.
    """

    weights: Tensor
    objective: float
    gradient: float
    iterations: int


def one_vs_all(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets (n, classes): 1 for the class of each sample, -1 for the others."""
    return 2 * torch.nn.functional.one_hot(labels.long(), classes).to(dtype) - 1


@torch.no_grad()
def fit_linear(
    features: Tensor,
    targets: Tensor,
    regularization: float,
    *,
    loss: Loss | None = None,
    initial: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
) -> LinearModel:
    """Minimise the objective.

    Parameters
    ----------
    features: (n, d). targets: (n, outputs), 1 or -1 for classification.
    regularization: lambda, positive.
    loss: squared hinge where left out; the square loss is solved in closed form.
    initial: W (d, outputs) to start from.
    tolerance: stop when the gradient of every column is below this part of its norm at W = 0.
    """
    loss = SquaredHinge() if loss is None else loss
    if not 0 < regularization < torch.inf:
        raise ValueError(f"the regularisation lambda must be positive, got {regularization}")
    if len(features) == 0:
        raise ValueError("there are no samples to fit a linear model to")
    if features.dim() != 2 or targets.dim() != 2 or len(features) != len(targets):
        shapes = f"{tuple(features.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"expected features (n, d) and targets (n, outputs) for the same n samples, got {shapes}")
    start = features.new_zeros(features.shape[1], targets.shape[1]) if initial is None else initial.to(features)
    with full_precision(features.device):
        if not bool(torch.isfinite(features.sum(0)).all()):
            raise ValueError("the features hold NaN or infinity; check the images and the network")
        if isinstance(loss, Square):
            W, iterations = _ridge(features, targets, regularization), 1
        else:
            W, iterations = lbfgs.minimize(
                features, targets, loss, regularization, start, tolerance=tolerance, max_iterations=max_iterations
            )
        objective = float(loss(targets, features @ W).sum() / len(features) + regularization / 2 * W.square().sum())
        gradient = lbfgs.relative_gradient(features, targets, loss, regularization, W)
    return LinearModel(W, objective, gradient, iterations)


def _ridge(features: Tensor, targets: Tensor, regularization: float) -> Tensor:
    """The minimum for the square loss: (X'X/n + lambda I) W = X'Y/n, or the equal system of size n where n < d."""
    n, d = features.shape
    gram = (features.T @ features if d <= n else features @ features.T).double() / n
    gram.diagonal().add_(regularization)
    factor = torch.linalg.cholesky(gram)
    if d <= n:
        return torch.cholesky_solve((features.T @ targets).double() / n, factor).to(features.dtype)
    return features.T @ torch.cholesky_solve(targets.double() / n, factor).to(features.dtype)


def error_rate(scores: Tensor, labels: Tensor) -> float:
    """Percent of samples whose largest score is not that of their class."""
    return 100 * float((scores.argmax(1) != labels).double().mean())


def validation_errors(
    features: Tensor, labels: Tensor, kept: int, exponents: Iterable[int], *, tolerance: float = 1e-4
) -> dict[int, float]:
    """For each i the error in percent on the samples from `kept` on, of the model with lambda = 2^i/kept on those before."""
    targets = one_vs_all(labels, int(labels.max()) + 1, features.dtype)
    errors: dict[int, float] = {}
    weights = None
    for i in sorted(exponents, reverse=True):  # from strong to weak, each a start for the next
        model = fit_linear(features[:kept], targets[:kept], 2.0**i / kept, initial=weights, tolerance=tolerance)
        weights = model.weights
        errors[i] = error_rate(features[kept:] @ weights, labels[kept:])
    return errors


def best_exponent(errors: dict[int, float]) -> int:
    """The exponent with the least error; of equals the strongest regularisation."""
    return min(errors, key=lambda i: (errors[i], -i))
