"""Limited-memory BFGS for linear models, on the device that holds the features.

    min over W   (1/n) sum_i L(y_i, X_i W) + (lambda/2) |W|^2

The columns of W are independent problems, solved side by side. Scores X W are carried along, so that an iteration
needs two passes over the features, and its exact line search none.
"""

from collections import deque

import torch
from torch import Tensor

from sckn.losses import Loss

__all__ = ["minimize", "relative_gradient"]


def minimize(
    features: Tensor,
    targets: Tensor,
    loss: Loss,
    regularization: float,
    initial: Tensor,
    *,
    tolerance: float,
    max_iterations: int,
    memory: int = 20,
) -> tuple[Tensor, int]:
    """W (d, outputs), started from `initial`, and the iterations it took.

    It stops when the gradient of every column is below `tolerance` times its norm at W = 0.
    """
    W = initial.clone()
    scores = features @ W  # (n, outputs)
    slope = _gradient(features, targets, loss, regularization, scores, W)  # (d, outputs)
    scale = _scale(features, targets, loss)
    pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=memory)
    iterations = 0
    while float((_norms(slope) / scale).max()) > tolerance and iterations < max_iterations:
        direction = -_inverse_hessian(pairs, slope)
        change = features @ direction
        step = _exact_step(targets, loss, regularization, scores, change, W, direction)
        W += step * direction
        scores += step * change
        new_slope = _gradient(features, targets, loss, regularization, scores, W)
        difference = new_slope - slope
        # a column that has converged moves no more: its pair would divide by 0
        curvature = (step * direction * difference).sum(0)
        pairs.append((step * direction, difference, torch.where(curvature > 0, 1 / curvature, 0)))
        slope, iterations = new_slope, iterations + 1
    return W, iterations


def relative_gradient(features: Tensor, targets: Tensor, loss: Loss, regularization: float, W: Tensor) -> float:
    """The largest norm of a column of the gradient at W, relative to that at W = 0."""
    slope = _gradient(features, targets, loss, regularization, features @ W, W)
    return float((_norms(slope) / _scale(features, targets, loss)).max())


def _gradient(features: Tensor, targets: Tensor, loss: Loss, regularization: float, scores: Tensor, W: Tensor) -> Tensor:
    return features.T @ (loss.derivative(targets, scores) / len(features)) + regularization * W


def _scale(features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Norm of each column of the gradient at W = 0."""
    slope = features.T @ (loss.derivative(targets, torch.zeros_like(targets)) / len(features))
    return _norms(slope).clamp_min(torch.finfo(slope.dtype).tiny)


def _norms(columns: Tensor) -> Tensor:
    return torch.linalg.vector_norm(columns, dim=0)


def _inverse_hessian(pairs: deque[tuple[Tensor, Tensor, Tensor]], slope: Tensor) -> Tensor:
    """The two loops of limited-memory BFGS, for each column by itself."""
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


def _exact_step(
    targets: Tensor, loss: Loss, regularization: float, scores: Tensor, change: Tensor, W: Tensor, direction: Tensor
) -> Tensor:
    """The step (outputs,) that minimises the objective along the direction, by Newton's method on its derivative.

    The objective is convex along a line, so the minimum stays bracketed; where Newton's method leaves the bracket, halving
    it goes on.
    """
    n = len(targets)
    along, bend = regularization * (W * direction).sum(0), regularization * direction.square().sum(0)
    step = torch.zeros_like(bend)
    low, high = torch.zeros_like(bend), torch.full_like(bend, torch.inf)
    for _ in range(30):
        moved = scores + step * change
        value = (loss.derivative(targets, moved) * change).sum(0) / n + along + step * bend
        curvature = (loss.curvature(targets, moved) * change.square()).sum(0) / n + bend
        low, high = torch.where(value < 0, step, low), torch.where(value > 0, step, high)
        proposal = step - torch.where(curvature > 0, value / curvature, 0)
        inside = (proposal > low) & (proposal < high)
        middle = torch.where(high < torch.inf, (low + high) / 2, proposal.clamp_min(0))
        last, step = step, torch.where(inside | (value == 0), proposal, middle)
        if bool(((step - last).abs() <= 1e-6 * step.abs()).all()):
            break
    return step
