"""Accelerated MISO for linear models, on the CPU, by the library cyanure: the solver of the paper.

    min over w   (1/n) sum_i L(y_i, <w, x_i>) + (lambda/2) |w|^2        for each column w of W

MISO visits the samples in random order, n visits to an epoch, and keeps for each a dual variable a_i, which at the minimum
is minus the derivative of its loss, so that w = X'a / (n lambda). Catalyst accelerates it where the problem is hard. The
same samples in the same order give the same bits.

Each column is a binary problem of its own, with any targets 1 and -1. The library's function `erm_` is called directly, as
its estimators do: they themselves take labels, of at least two classes, and cannot continue from dual variables where
Catalyst has nothing to accelerate.

References
----------
Mairal, Incremental majorization-minimization optimization, SIAM J. Optimization 25 (2015).
Lin, Mairal and Harchaoui, A universal Catalyst for first-order optimization, NIPS 2015.
"""

import importlib
from typing import Any

import torch
from torch import Tensor

from sckn import lbfgs
from sckn.losses import Logistic, Loss, SquaredHinge

__all__ = ["minimize"]

# What the library calls a loss, what it multiplies ours by, and a bound on the second derivative of its own.
LOSSES: dict[type[Loss], tuple[str, float, float]] = {SquaredHinge: ("sqhinge", 0.5, 1.0), Logistic: ("logistic", 1.0, 0.25)}

# Epochs from one look at the gradient to the next, at first and at most. Acceleration begins anew with each of these runs:
# left to go on, it fails on hard problems with more features than samples, as each of its steps is only one epoch of MISO.
FIRST, LONGEST = 5, 40


def minimize(
    features: Tensor,
    targets: Tensor,
    loss: Loss,
    regularization: float,
    initial: Tensor,
    dual: Tensor | None,
    *,
    tolerance: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, int]:
    """W (d, outputs), the dual variables (n, outputs) and the epochs that its slowest column took.

    It starts from `initial` and `dual`; dual variables that do not fit the samples, or None, are replaced by those that
    follow from `initial`. It stops when the gradient of every column is below `tolerance` times its norm at W = 0, as
    L-BFGS does. The library knows the duality gap instead, which near 1e-7 is lost in the rounding of float32, where a
    gradient still tells more. So it is told how many epochs to do, and the gradient is computed after 5, 10, 20, 40, 80,
    120, ... in all.
    """
    erm = _library()
    name, factor, bend = _known(loss)
    if features.device.type != "cpu":
        raise ValueError(f'solver="miso" works on the CPU, and the features are on {features.device}; use solver="lbfgs" there')
    if features.dtype not in (torch.float32, torch.float64):
        raise ValueError(f'solver="miso" needs features of float32 or float64, got {features.dtype}')
    if not bool((targets.abs() == 1).all()):
        raise ValueError('solver="miso" needs targets of 1 and -1 alone')
    # the library takes vectors by reference: rows for it are columns for us
    rows, Y = features.detach().contiguous(), targets.detach().to(features).T.contiguous()
    w = initial.T.clone(memory_format=torch.contiguous_format)  # (outputs, d)
    a = factor * _start(features, targets, loss, initial, dual).T.contiguous()  # (outputs, n)
    strong = factor * regularization
    steepest = bend * float(torch.linalg.vector_norm(rows, dim=1).max()) ** 2
    settings = {
        "loss": name,
        "penalty": "l2",
        "lambda_1": strong,
        # without need for acceleration Catalyst would leave the dual variables aside
        "solver": "miso" if steepest <= 1.01 * strong * len(rows) else "catalyst-miso",
        "univariate": True,
        "n_threads": 1,  # several would draw the samples from one random sequence, in an order of chance
        "verbose": False,
    }
    epochs = 0
    while epochs < max_iterations:
        behind = lbfgs.relative_gradients(features, targets, loss, regularization, w.T) > tolerance
        if not bool(behind.any()):
            break
        run = min(max(FIRST, epochs), LONGEST, max_iterations - epochs)
        # one test of the gap, after the last epoch, and any gap will do
        once = {"tol": torch.inf, "duality_gap_interval": run + 1, "max_iter": run + 2, "seed": epochs}
        for c in behind.nonzero().flatten().tolist():
            erm(rows.numpy().T, Y[c].numpy(), w[c].numpy().copy(), w[c].numpy(), dual_variable=a[c].numpy(), **settings, **once)
        epochs += run
    return w.T.contiguous(), (a / factor).T.contiguous(), epochs


def _library() -> Any:
    try:
        return importlib.import_module("cyanure_lib").erm_
    except ImportError as error:
        raise ImportError(
            'solver="miso" needs the package cyanure, which cannot be imported; solver="lbfgs" finds the same model'
        ) from error


def _known(loss: Loss) -> tuple[str, float, float]:
    if type(loss) not in LOSSES:
        raise ValueError(
            f'solver="miso" knows the squared hinge and the logistic loss, not {type(loss).__name__}; use solver="lbfgs"'
        )
    return LOSSES[type(loss)]


def _start(features: Tensor, targets: Tensor, loss: Loss, initial: Tensor, dual: Tensor | None) -> Tensor:
    """Dual variables (n, outputs) to start from."""
    if dual is not None and dual.shape == targets.shape:
        return dual.to(features)
    if not bool(initial.any()):
        # those of w = 0, as w = X'a / (n lambda); the derivatives there are far from them where features are not centred
        return torch.zeros_like(targets, dtype=features.dtype)
    return -loss.derivative(targets, features @ initial)
