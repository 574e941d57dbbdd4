"""The linear model at fixed features: time to the same objective by L-BFGS, MISO, scikit-learn's liblinear and cyanure.

    python benchmarks/linear.py [--samples 10000] [--features 1152]

Squared hinge, one against all, no intercept, lambda = 2^i/n. Each solver is as precise as it must be for an objective at most
one part in a thousand above the minimum: the coarsest of its tolerances that reaches it is the one that is timed.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from measuring import DEVICE, RESULTS, Report, in_turns
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits
from torch import Tensor

from sckn.linear import fit_linear, objective, one_vs_all
from sckn.losses import SquaredHinge

ABOVE = 1e-3  # the minimum, relative
CLASSES = 10
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)

Solve = Callable[[float], Tensor]


def random_features(samples: int, width: int) -> tuple[Tensor, Tensor]:
    """With a few strong directions and many weak ones, as those of a network; and their classes."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (samples,), generator=draws)
    strength = torch.arange(1, width + 1) ** -0.5
    X = (torch.randn(samples, width, generator=draws) + torch.randn(CLASSES, width, generator=draws)[labels] / 2) * strength
    X = X @ torch.linalg.qr(torch.randn(width, width, generator=draws))[0]
    return X / torch.linalg.vector_norm(X, dim=1).mean(), labels


def by_liblinear(X: np.ndarray, labels: np.ndarray, regularization: float, tolerance: float) -> Tensor:
    """Its objective is C sum_i L + |w|^2 / 2; the dual problem is the faster one for it here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings: dict[str, Any] = {"fit_intercept": False, "dual": True, "tol": tolerance, "max_iter": 10_000}
        model = LinearSVC(C=1 / (regularization * len(X)), **settings)
        return torch.from_numpy(np.asarray(model.fit(X, labels).coef_)).T


def by_cyanure(estimators: Any, X: np.ndarray, labels: np.ndarray, regularization: float, tolerance: float) -> Tensor:
    """Its squared hinge has a factor 1/2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = torch.get_num_threads()
        settings = {"fit_intercept": False, "lambda_1": regularization / 2, "tol": tolerance, "n_threads": threads}
        model = estimators.LinearSVC(loss="sqhinge", penalty="l2", verbose=False, **settings)
        weights = torch.from_numpy(np.asarray(model.fit(X, labels).coef_))
    return weights if weights.shape[0] == X.shape[1] else weights.T


def solvers(X: Tensor, labels: Tensor, regularization: float, device: torch.device) -> dict[str, Solve]:
    targets = one_vs_all(labels, CLASSES)
    on_device = X.to(device), targets.to(device), regularization

    def by_us(solver: Literal["lbfgs", "miso"], tolerance: float) -> Tensor:
        arguments = on_device if solver == "lbfgs" else (X, targets, regularization)
        return fit_linear(*arguments, tolerance=tolerance, solver=solver).weights

    found: dict[str, Solve] = {
        "lbfgs": partial(by_us, "lbfgs"),
        "liblinear": partial(by_liblinear, X.numpy(), labels.numpy(), regularization),
    }
    try:
        estimators = importlib.import_module("cyanure.estimators")
    except ImportError:
        return found
    found["miso"] = partial(by_us, "miso")
    found["cyanure"] = partial(by_cyanure, estimators, X.numpy(), labels.numpy(), regularization)
    return found


def sufficient_tolerance(solve: Solve, value: Callable[[Tensor], float], goal: float) -> float | None:
    """The coarsest that reaches the goal, if any does."""
    return next((tolerance for tolerance in TOLERANCES if value(solve(tolerance)) <= goal), None)


def measure(report: Report, samples: int, width: int, exponent: int, repeats: int) -> None:
    X, labels = random_features(samples, width)
    regularization = 2.0**exponent / samples
    precise = X.double(), one_vs_all(labels, CLASSES, torch.float64)

    def value(W: Tensor) -> float:
        return objective(*precise, W.cpu().double(), regularization, loss=SquaredHinge())

    least = fit_linear(*precise, regularization, tolerance=1e-7).objective
    works: dict[str, Callable[[], object]] = {}
    with threadpool_limits(torch.get_num_threads()):
        for name, solve in solvers(X, labels, regularization, report.device).items():
            tolerance = sufficient_tolerance(solve, value, (1 + ABOVE) * least)
            if tolerance is not None:
                works[f"{name}_ms"] = partial(solve, tolerance)
        times = in_turns(works, report.device, repeats, first=0)
    figures: dict[str, Any] = {name: times.get(name) for name in ("lbfgs_ms", "miso_ms", "liblinear_ms", "cyanure_ms")}
    figures |= {
        f"lbfgs_to_{name}": times["lbfgs_ms"] / times[f"{name}_ms"]
        for name in ("liblinear", "cyanure")
        if f"{name}_ms" in times
    }
    report.add("linear", {"samples": samples, "features": width, "classes": CLASSES, "lambda": f"2^{exponent}/n"}, figures)


def main(
    samples: int | None = None,
    features: int | None = None,
    exponents: tuple[int, ...] = (0, -3),
    repeats: int = 3,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Measure, write rows of results/speed.json, print a table. Only L-BFGS uses a GPU."""
    report = Report(__file__, device, results)
    for exponent in exponents:
        measure(
            report, samples or (200 if tiny else 10_000), features or (16 if tiny else 1152), exponent, 1 if tiny else repeats
        )
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
