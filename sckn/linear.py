"""The linear model on top of the network: a convex problem in W at fixed filters, equation (7).

    min over W   (1/n) sum_i sum_c L(y_ic, <W_c, x_i>) + (lambda/2) |W|^2

Solved by L-BFGS on the device that holds the features, by accelerated MISO on the CPU, or for the square loss in closed
form.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from sckn import lbfgs, miso
from sckn.losses import Loss, Square, SquaredHinge
from sckn.precision import full_precision
from sckn.processes import ALONE, Processes
from sckn.settings import one_of

__all__ = [
    "LinearModel",
    "Solver",
    "best_exponent",
    "error_rate",
    "fit_linear",
    "objective",
    "one_vs_all",
    "penalty",
    "validation_errors",
]

Solver = Literal["lbfgs", "miso"]

ROWS = 1 << 16  # of features that the closed form holds in double


@dataclass(frozen=True)
class LinearModel:
    """W (d, outputs), with the objective, the largest relative norm of the gradient and the iterations it took.

    The gradient of each column is compared with that at W = 0. MISO adds its dual variables, (n, outputs).
    """

    weights: Tensor
    objective: float
    gradient: float
    iterations: int
    dual: Any = field(default=None, repr=False)


def one_vs_all(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets (n, classes): 1 for the class of each sample, -1 for the others."""
    return 2 * torch.nn.functional.one_hot(labels.long(), classes).to(dtype) - 1


@torch.no_grad()
def objective(
    features: Tensor, targets: Tensor, W: Tensor, regularization: float, *, loss: Loss, processes: Processes = ALONE
) -> float:
    """Equation (7) as it is: the mean over samples of the loss, summed over outputs, and the penalty."""
    n = lbfgs.number_of_samples(features, processes)
    return float(processes.sum(loss(targets, features @ W).sum()) / n) + penalty(W, regularization)


def penalty(W: Tensor, regularization: float) -> float:
    """(lambda/2) |W|^2."""
    return regularization / 2 * float(W.detach().double().square().sum())


@torch.no_grad()
def fit_linear(
    features: Tensor,
    targets: Tensor,
    regularization: float,
    *,
    loss: Loss | None = None,
    initial: LinearModel | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
    solver: Solver = "lbfgs",
    processes: Processes = ALONE,
) -> LinearModel:
    """Minimise the objective.

    Parameters
    ----------
    features: (n, d). targets: (n, outputs), 1 or -1 for classification.
    regularization: lambda, positive.
    loss: squared hinge where left out; the square loss is solved in closed form, whatever the solver.
    initial: a model of a similar problem to start from: its W, for MISO also the dual variables of as many samples.
    tolerance: stop when the gradient of every column is below this part of its norm at W = 0.
    max_iterations: for MISO epochs, that is passes over the samples.
    solver: "lbfgs", or "miso" on the CPU.
    processes: those that share the samples. Each gives its rows of features and targets, possibly none, and the same
        for all else; each gets the same model. Not with MISO.
    """
    loss = SquaredHinge() if loss is None else loss
    solver = one_of("solver", solver, get_args(Solver))
    if not 0 < regularization < torch.inf:
        raise ValueError(f"the regularisation lambda must be positive, got {regularization}")
    if features.dim() != 2 or targets.dim() != 2 or len(features) != len(targets):
        shapes = f"{tuple(features.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"expected features (n, d) and targets (n, outputs) for the same n samples, got {shapes}")
    shape = features.shape[1], targets.shape[1]
    if initial is not None and tuple(initial.weights.shape) != shape:
        raise ValueError(f"expected a model with weights {shape} to start from, got {tuple(initial.weights.shape)}")
    if solver == "miso" and processes.count > 1 and not isinstance(loss, Square):
        raise ValueError(f'solver="miso" works in one process, not in {processes.count}; solver="lbfgs" does in several')
    n = lbfgs.number_of_samples(features, processes)
    if n == 0:
        raise ValueError("there are no samples to fit a linear model to")
    start = features.new_zeros(shape) if initial is None else initial.weights.to(features)
    dual, limits = None, {"tolerance": tolerance, "max_iterations": max_iterations}
    with full_precision(features.device):
        if not bool(torch.isfinite(processes.sum(features.sum(0))).all()):
            raise ValueError("the features hold NaN or infinity; check the images and the network")
        if isinstance(loss, Square):
            W, iterations = _ridge(features, targets, regularization, n, processes), 1
        elif solver == "miso":
            dual = None if initial is None else initial.dual
            W, dual, iterations = miso.minimize(features, targets, loss, regularization, start, dual, **limits)
        else:
            W, iterations = lbfgs.minimize(features, targets, loss, regularization, start, **limits, processes=processes)
        W = processes.same(W)  # all have computed it; on unlike machines the last bits could differ
        value = objective(features, targets, W, regularization, loss=loss, processes=processes)
        gradient = lbfgs.relative_gradient(features, targets, loss, regularization, W, processes=processes)
    return LinearModel(W, value, gradient, iterations, dual)


def _ridge(features: Tensor, targets: Tensor, regularization: float, n: int, processes: Processes) -> Tensor:
    """The minimum for the square loss: (X'X/n + lambda I) W = X'Y/n, or the equal system of size n where n < d.

    That other system is one of pairs of samples: only for a process that holds them all.
    """
    X, Y = features, targets.double()
    if n < features.shape[1] and processes.count == 1:
        X = X.double()
        return (X.T @ _solve_ridge(X @ X.T / n, regularization, Y / n)).to(features.dtype)
    d = features.shape[1]
    gram, moments = (torch.zeros(d, columns, dtype=torch.float64, device=X.device) for columns in (d, Y.shape[1]))
    for start in range(0, len(X), ROWS):  # in double: in fp32 the products would not know a small lambda
        rows = X[start : start + ROWS].double()
        gram.addmm_(rows.T, rows)
        moments.addmm_(rows.T, Y[start : start + ROWS])
    return _solve_ridge(processes.sum(gram) / n, regularization, processes.sum(moments) / n).to(features.dtype)


def _solve_ridge(gram: Tensor, regularization: float, right: Tensor) -> Tensor:
    gram.diagonal().add_(regularization)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed):
        raise ValueError(f"lambda = {regularization:.3g} is too small for these features; raise it")
    return torch.cholesky_solve(right, factor)


def error_rate(scores: Tensor, labels: Tensor) -> float:
    """Percent of samples whose largest score is not that of their class."""
    return 100 * float((scores.argmax(1) != labels).double().mean())


def validation_errors(
    features: Tensor, labels: Tensor, kept: int, exponents: Iterable[int], *, tolerance: float = 1e-4
) -> dict[int, float]:
    """For each i the error in percent on the samples from `kept` on, of the model with lambda = 2^i/kept on those before."""
    targets = one_vs_all(labels, int(labels.max()) + 1, features.dtype)
    errors: dict[int, float] = {}
    model = None
    for i in sorted(exponents, reverse=True):  # from strong to weak, each a start for the next
        model = fit_linear(features[:kept], targets[:kept], 2.0**i / kept, initial=model, tolerance=tolerance)
        errors[i] = error_rate(features[kept:] @ model.weights, labels[kept:])
    return errors


def best_exponent(errors: dict[int, float]) -> int:
    """The exponent with the least error; of equals the strongest regularisation."""
    return min(errors, key=lambda i: (errors[i], -i))
