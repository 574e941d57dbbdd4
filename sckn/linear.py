"""The linear model on top of the network: a convex problem in W at fixed filters, equation (7).

    min over W   (1/n) sum_i sum_c L(y_ic, <W_c, x_i>) + (lambda/2) |W|^2

One-vs-all: the classes are independent problems, solved side by side by one limited-memory BFGS on the device that
holds the features. Scores X W are carried along, so that an iteration needs two passes over the features and its
exact line search none.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from sckn.inverse_root import full_precision

__all__ = ["LinearModel", "error_rate", "fit_linear", "one_vs_all", "squared_hinge", "strongest_best", "validation_errors"]


@dataclass(frozen=True)
class LinearModel:
    """W (d, classes), with the objective, the largest relative gradient norm and the iterations it took."""

    weights: Tensor
    objective: float
    gradient: float
    iterations: int


def one_vs_all(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets (n, classes): 1 for the class of each sample, -1 for the others."""
    return 2 * torch.nn.functional.one_hot(labels.long(), classes).to(dtype) - 1


def squared_hinge(targets: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """max(0, 1 - y f)^2 (no 1/2), with its first and second derivative in f, for targets y of 1 and -1."""
    slack = (1 - targets * scores).clamp_min(0)
    return slack.square(), -2 * targets * slack, 2 * (slack > 0).to(scores.dtype)


@torch.no_grad()
def fit_linear(
    features: Tensor,
    targets: Tensor,
    regularization: float,
    *,
    initial: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
    memory: int = 20,
) -> LinearModel:
    """Minimise the objective with the squared hinge loss.

    Parameters
    ----------
    features: (n, d). targets: (n, classes), 1 or -1.
    regularization: lambda, positive.
    initial: W (d, classes) to start from.
    tolerance: stop when the gradient of every class is below this part of its norm at W = 0.
    """
    if not 0 < regularization < torch.inf:
        raise ValueError(f"the regularisation lambda must be positive, got {regularization}")
    n = len(features)
    if n == 0:
        raise ValueError("there are no samples to fit a linear model to")

    def objective(scores: Tensor, weights: Tensor) -> Tensor:
        return squared_hinge(targets, scores)[0].sum(0) / n + regularization / 2 * weights.square().sum(0)

    def gradient(scores: Tensor, weights: Tensor) -> Tensor:
        return features.T @ (squared_hinge(targets, scores)[1] / n) + regularization * weights

    with full_precision(features.device):
        W = torch.zeros(features.shape[1], targets.shape[1], dtype=features.dtype, device=features.device)
        scale = torch.linalg.vector_norm(gradient(torch.zeros_like(targets), W), dim=0).clamp_min(torch.finfo(W.dtype).tiny)
        W = W if initial is None else initial.to(W, copy=True)
        scores = features @ W  # (n, classes)
        slope = gradient(scores, W)  # (d, classes)
        pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=memory)
        if not bool(torch.isfinite(slope).all()):
            raise ValueError("the features hold NaN or infinity; check the images and the network")
        iterations, relative = 0, float((torch.linalg.vector_norm(slope, dim=0) / scale).max())
        while relative > tolerance and iterations < max_iterations:
            direction = -_inverse_hessian(pairs, slope)
            change = features @ direction
            step = _exact_step(targets, scores, change, W, direction, regularization)
            W += step * direction
            scores += step * change
            new_slope = gradient(scores, W)
            difference = new_slope - slope
            # a class that has converged moves no more: its pair would divide by 0
            curvature = (step * direction * difference).sum(0)
            pairs.append((step * direction, difference, torch.where(curvature > 0, 1 / curvature, 0)))
            slope, iterations = new_slope, iterations + 1
            relative = float((torch.linalg.vector_norm(slope, dim=0) / scale).max())
    return LinearModel(W, float(objective(features @ W, W).sum()), relative, iterations)


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


def strongest_best(errors: dict[int, float]) -> int:
    """The exponent with the least error; of equals the strongest regularisation."""
    return min(errors, key=lambda i: (errors[i], -i))


def _inverse_hessian(pairs: deque[tuple[Tensor, Tensor, Tensor]], slope: Tensor) -> Tensor:
    """The two loops of limited-memory BFGS, for each class by itself."""
    q, kept = slope.clone(), []
    for s, y, rho in reversed(pairs):
        a = rho * (s * q).sum(0)
        q -= a * y
        kept.append(a)
    if pairs:
        s, y, rho = pairs[-1]
        q *= torch.where(rho > 0, 1 / (rho * y.square().sum(0)), 1)
    for (s, y, rho), a in zip(pairs, reversed(kept), strict=True):
        q += s * (a - rho * (y * q).sum(0))
    return q


def _exact_step(targets: Tensor, scores: Tensor, change: Tensor, W: Tensor, direction: Tensor, regularization: float) -> Tensor:
    """The step (classes,) that minimises the objective along the direction, by Newton's method on its derivative.

    Along a line the objective is convex and piecewise quadratic with a derivative of at least slope `bend`, so Newton's
    method ends after a few of its pieces; where it oscillates between two, halving the bracket goes on.
    """
    n = len(targets)
    along, bend = regularization * (W * direction).sum(0), regularization * direction.square().sum(0)
    step = torch.zeros_like(bend)
    low, high = torch.zeros_like(bend), torch.full_like(bend, torch.inf)
    for _ in range(30):
        _, first, second = squared_hinge(targets, scores + step * change)
        value = (first * change).sum(0) / n + along + step * bend
        curvature = (second * change.square()).sum(0) / n + bend
        low, high = torch.where(value < 0, step, low), torch.where(value > 0, step, high)
        proposal = step - torch.where(curvature > 0, value / curvature, 0)
        inside = (proposal > low) & (proposal < high)
        middle = torch.where(high < torch.inf, (low + high) / 2, proposal.clamp_min(0))
        last, step = step, torch.where(inside | (value == 0), proposal, middle)
        if bool(((step - last).abs() <= 1e-6 * step.abs()).all()):
            break
    return step
