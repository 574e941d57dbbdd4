"""Limited-memory BFGS for linear models, on the device that holds the features.

    min over W   (1/n) sum_i L(y_i, X_i W) + (lambda/2) |W|^2

The columns of W are independent problems, solved side by side. Scores X W are carried along, so that an iteration
needs two passes over the features, and its exact line search none.

Samples may be shared between processes: each holds its rows of X and Y, possibly none, and all of W. Sums over samples
are summed over the processes; what follows from them is computed by all, alike.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from sckn.losses import Loss
from sckn.processes import ALONE, Processes

__all__ = ["minimize", "number_of_samples", "relative_gradient", "relative_gradients"]


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
    processes: Processes = ALONE,
) -> tuple[Tensor, int]:
    """W (d, outputs), started from `initial`, and the iterations it took.

    It stops when the gradient of every column is below `tolerance` times its norm at W = 0.
    """
    problem = _problem(features, targets, loss, regularization, processes)
    W = initial.clone()
    scores = features @ W  # (n, outputs)
    slope = problem.gradient(scores, W)  # (d, outputs)
    scale = problem.scale()
    pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=memory)
    iterations = 0
    while float((_norms(slope) / scale).max()) > tolerance and iterations < max_iterations:
        direction = -_inverse_hessian(pairs, slope)
        change = features @ direction
        step = _exact_step(problem, scores, change, W, direction)
        W += step * direction
        scores += step * change
        new_slope = problem.gradient(scores, W)
        difference = new_slope - slope
        # a column that has converged moves no more: its pair would divide by 0
        curvature = (step * direction * difference).sum(0)
        pairs.append((step * direction, difference, torch.where(curvature > 0, 1 / curvature, 0)))
        slope, iterations = new_slope, iterations + 1
    return W, iterations


def relative_gradient(
    features: Tensor, targets: Tensor, loss: Loss, regularization: float, W: Tensor, *, processes: Processes = ALONE
) -> float:
    """The largest norm of a column of the gradient at W, relative to that at W = 0."""
    return float(relative_gradients(features, targets, loss, regularization, W, processes=processes).max())


def relative_gradients(
    features: Tensor, targets: Tensor, loss: Loss, regularization: float, W: Tensor, *, processes: Processes = ALONE
) -> Tensor:
    """The norm of each column of the gradient at W, relative to that at W = 0: (outputs,)."""
    problem = _problem(features, targets, loss, regularization, processes)
    return _norms(problem.gradient(features @ W, W)) / problem.scale()


def number_of_samples(rows: Tensor, processes: Processes) -> int:
    """How many rows all processes hold together."""
    return int(processes.sum(torch.tensor(len(rows), device=rows.device)))


@dataclass(frozen=True)
class _Problem:
    """The samples of this process, and how many there are in all."""

    features: Tensor
    targets: Tensor
    loss: Loss
    regularization: float
    processes: Processes
    n: int

    def gradient(self, scores: Tensor, W: Tensor) -> Tensor:
        return self.gradient_of_loss(scores) + self.regularization * W

    def gradient_of_loss(self, scores: Tensor) -> Tensor:
        return self.processes.sum(self.features.T @ (self.loss.derivative(self.targets, scores) / self.n))

    def scale(self) -> Tensor:
        """Norm of each column of the gradient at W = 0."""
        slope = self.gradient_of_loss(torch.zeros_like(self.targets))
        return _norms(slope).clamp_min(torch.finfo(slope.dtype).tiny)


def _problem(features: Tensor, targets: Tensor, loss: Loss, regularization: float, processes: Processes) -> _Problem:
    return _Problem(features, targets, loss, regularization, processes, number_of_samples(features, processes))


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


def _exact_step(problem: _Problem, scores: Tensor, change: Tensor, W: Tensor, direction: Tensor) -> Tensor:
    """The step (outputs,) that minimises the objective along the direction, by Newton's method on its derivative.

    The objective is convex along a line, so the minimum stays bracketed; where Newton's method leaves the bracket, halving
    it goes on.
    """
    targets, loss, regularization = problem.targets, problem.loss, problem.regularization
    along, bend = regularization * (W * direction).sum(0), regularization * direction.square().sum(0)
    step = torch.zeros_like(bend)
    low, high = torch.zeros_like(bend), torch.full_like(bend, torch.inf)
    for _ in range(30):
        moved = scores + step * change
        value_of_loss = (loss.derivative(targets, moved) * change).sum(0)
        curvature_of_loss = (loss.curvature(targets, moved) * change.square()).sum(0)
        # both sums over samples in one message
        value, curvature = problem.processes.sum(torch.stack([value_of_loss, curvature_of_loss])) / problem.n
        value, curvature = value + along + step * bend, curvature + bend
        low, high = torch.where(value < 0, step, low), torch.where(value > 0, step, high)
        proposal = step - torch.where(curvature > 0, value / curvature, 0)
        inside = (proposal > low) & (proposal < high)
        middle = torch.where(high < torch.inf, (low + high) / 2, proposal.clamp_min(0))
        last, step = step, torch.where(inside | (value == 0), proposal, middle)
        if bool(((step - last).abs() <= 1e-6 * step.abs()).all()):
            break
    return step
