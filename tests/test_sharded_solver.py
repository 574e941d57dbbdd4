"""The linear model of samples that two processes share, beside that of one process which holds them all."""

from typing import Any

import pytest
import torch
from test_linear import sample
from test_processes import team
from torch import Tensor

from sckn.linear import LinearModel, fit_linear
from sckn.losses import Logistic, Loss, Square, SquaredHinge
from sckn.processes import Processes

LOSSES: list[Loss] = [SquaredHinge(), Logistic(), Square()]


def fit(
    processes: Processes, parts: list[tuple[Tensor, Tensor]], regularization: float, settings: dict[str, Any]
) -> LinearModel:
    features, targets = parts[processes.rank]
    return fit_linear(features, targets, regularization, processes=processes, **settings)


def shared(features: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What each of two processes holds."""
    shares = [Processes(rank, 2).share for rank in range(2)]
    return [(features[share], targets[share]) for share in shares]


def together(parts: list[tuple[Tensor, Tensor]], regularization: float, **settings: Any) -> LinearModel:
    """The model that both find, the same to the last bit."""
    first, second = team(2).run(fit, parts, regularization, settings)
    assert torch.equal(first.weights, second.weights)
    reports = [(model.objective, model.gradient, model.iterations) for model in (first, second)]
    assert reports[0] == reports[1]
    return first


def assert_same_model(found: LinearModel, alone: LinearModel) -> None:
    torch.testing.assert_close(found.weights, alone.weights, rtol=1e-9, atol=1e-9)
    assert found.objective == pytest.approx(alone.objective, rel=1e-11)
    assert float(alone.weights.norm()) > 1e-3  # there is something to compare


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("n", "d", "regularization"), [(301, 20, 1e-2), (301, 20, 1.0), (15, 40, 1e-2)])
def test_two_processes_find_the_model_of_one(n: int, d: int, regularization: float, loss: Loss) -> None:
    """Of an odd number of samples, also of fewer samples than features, where ridge regression alone takes another way."""
    features, targets = sample(n, d, 3)
    alone = fit_linear(features, targets, regularization, loss=loss, tolerance=1e-12)
    found = together(shared(features, targets), regularization, loss=loss, tolerance=1e-12)
    assert_same_model(found, alone)
    assert found.gradient <= 1e-11


@pytest.mark.parametrize("loss", LOSSES)
def test_the_only_sample(loss: Loss) -> None:
    """The other process has none."""
    features, targets = sample(1, 4, 2)
    alone = fit_linear(features, targets, 0.1, loss=loss, tolerance=1e-12)
    parts = shared(features, targets)
    assert [len(rows) for rows, _ in parts] == [1, 0]
    assert_same_model(together(parts, 0.1, loss=loss, tolerance=1e-12), alone)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("first", [0, 3, 50])
def test_however_the_samples_are_shared(first: int, loss: Loss) -> None:
    features, targets = sample(50, 6, 2)
    alone = fit_linear(features, targets, 0.1, loss=loss, tolerance=1e-12)
    parts = [(features[:first], targets[:first]), (features[first:], targets[first:])]
    assert_same_model(together(parts, 0.1, loss=loss, tolerance=1e-12), alone)


@pytest.mark.parametrize("max_iterations", [0, 1, 4])
def test_iteration_by_iteration(max_iterations: int) -> None:
    """Not only the optimum, but also the way there is that of one process: to the 1e-6 at which the line search ends."""
    features, targets = sample(101, 12, 3)
    settings: dict[str, Any] = {"tolerance": 1e-12, "max_iterations": max_iterations}
    alone = fit_linear(features, targets, 1e-2, **settings)
    found = together(shared(features, targets), 1e-2, **settings)
    assert found.iterations == alone.iterations == max_iterations
    torch.testing.assert_close(found.weights, alone.weights, rtol=1e-5, atol=1e-6)
    assert found.objective == pytest.approx(alone.objective, rel=1e-9)
    assert found.gradient == pytest.approx(alone.gradient, rel=1e-4)


def test_a_warm_start() -> None:
    features, targets = sample(101, 12, 3)
    parts = shared(features, targets)
    near = together(parts, 2e-2, tolerance=1e-8)
    cold, warm = together(parts, 1e-2, tolerance=1e-6), together(parts, 1e-2, tolerance=1e-6, initial=near)
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(cold.objective, rel=1e-9)
    assert together(parts, 2e-2, tolerance=1e-7, initial=near).iterations == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_float32(loss: Loss) -> None:
    features, targets = sample(301, 20, 3)
    exact = fit_linear(features, targets, 1e-1, loss=loss, tolerance=1e-10)
    found = together(shared(features.float(), targets.float()), 1e-1, loss=loss, tolerance=1e-5)
    assert found.weights.dtype == torch.float32
    torch.testing.assert_close(found.weights.double(), exact.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("holder", [0, 1])
def test_what_one_process_must_refuse_all_refuse(holder: int) -> None:
    """Rather than wait for each other."""
    features, targets = sample(10, 4, 3)
    features[holder, 2] = torch.nan
    for outcome in team(2).outcomes(fit, shared(features, targets), 0.1, {}):
        with pytest.raises(ValueError, match="NaN or infinity"):
            raise outcome
    for outcome in team(2).outcomes(fit, shared(features[:0], targets[:0]), 0.1, {}):
        with pytest.raises(ValueError, match="no samples"):
            raise outcome
    good, signs = sample(10, 4, 3)
    assert together(shared(good, signs), 0.1).gradient <= 1e-4  # and they go on together


def test_miso_is_refused_but_for_the_square_loss() -> None:
    features, targets = sample(11, 4, 3)
    for outcome in team(2).outcomes(fit, shared(features, targets), 0.1, {"solver": "miso"}):
        with pytest.raises(ValueError, match="works in one process, not in 2"):
            raise outcome
    found = together(shared(features, targets), 0.1, solver="miso", loss=Square())
    assert_same_model(found, fit_linear(features, targets, 0.1, loss=Square()))
