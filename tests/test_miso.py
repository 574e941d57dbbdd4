"""MISO against L-BFGS, liblinear, Newton's method in numpy and the conditions that the optimum fulfils."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC
from test_linear import newton, objective, relative_gradient, sample
from torch import Tensor

from sckn import miso
from sckn.linear import LinearModel, Solver, fit_linear, one_vs_all
from sckn.losses import Logistic, Loss, Square, SquaredHinge

pytest.importorskip("cyanure_lib", reason="cyanure is not there for every Python")

LOSSES: list[Loss] = [SquaredHinge(), Logistic()]
SOLVERS: tuple[Solver, ...] = ("lbfgs", "miso")


def value(features: Tensor, targets: Tensor, weights: Tensor, regularization: float, loss: Loss) -> float:
    """The objective as it is written, in numpy."""
    margins = targets.double().numpy() * (features.double().numpy() @ weights.double().numpy())
    losses = np.maximum(0, 1 - margins) ** 2 if isinstance(loss, SquaredHinge) else np.log1p(np.exp(-margins))
    return float(losses.sum() / len(features) + regularization / 2 * np.square(weights.double().numpy()).sum())


def assert_the_solvers_agree(n: int, d: int, loss: Loss, exponent: int, tolerance: float) -> None:
    features = torch.randn(n, d, dtype=torch.float64)
    scores = features @ torch.randn(d, 10, dtype=torch.float64) + d**0.5 * torch.randn(n, 10, dtype=torch.float64)
    targets, regularization = one_vs_all(scores.argmax(1), 10, torch.float64), 2.0**exponent / n
    one, other = (
        fit_linear(features, targets, regularization, loss=loss, tolerance=tolerance, solver=solver) for solver in SOLVERS
    )
    for model in (one, other):
        assert model.gradient <= 1.01 * tolerance
        assert model.objective == pytest.approx(value(features, targets, model.weights, regularization, loss), rel=1e-12)
    assert not torch.equal(one.weights, other.weights)  # two ways
    assert other.objective == pytest.approx(one.objective, rel=1e-6)
    assert one.objective < 0.99 * value(features, targets, torch.zeros_like(one.weights), regularization, loss)


@pytest.mark.parametrize("exponent", [-2, 0, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_agrees_with_lbfgs(loss: Loss, exponent: int) -> None:
    assert_the_solvers_agree(1000, 100, loss, exponent, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-2, 0, 4])
@pytest.mark.parametrize(("loss", "n", "d"), [(SquaredHinge(), 10_000, 1000), (Logistic(), 5000, 500)])
def test_agrees_with_lbfgs_on_many_samples(loss: Loss, n: int, d: int, exponent: int) -> None:
    assert_the_solvers_agree(n, d, loss, exponent, 1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "d", "regularization"), [(400, 30, 1e-1), (400, 30, 1e-3), (40, 60, 1e-2)])
def test_the_objective_is_that_of_liblinear(n: int, d: int, regularization: float, solver: Solver) -> None:
    """Its objective is 1/2 |w|^2 + C sum of squared hinges: ours divided by lambda, with C = 1/(lambda n)."""
    features, targets = sample(n, d, 3)
    model = fit_linear(features, targets, regularization, tolerance=1e-7, max_iterations=5000, solver=solver)
    columns = []
    for y in targets.T:
        svc = LinearSVC(
            fit_intercept=False,
            tol=1e-8,  # pyright: ignore[reportArgumentType]
            loss="squared_hinge",
            C=1 / (n * regularization),
            max_iter=1_000_000,
        )
        columns.append(svc.fit(features.numpy(), y.numpy()).coef_[0])
    reference = float(objective(features, targets, torch.from_numpy(np.stack(columns, axis=1)), regularization))
    assert model.objective == pytest.approx(reference, rel=1e-8)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("regularization", [1e-3, 10.0])
def test_it_stops_at_the_tolerance_meant(regularization: float, tolerance: float) -> None:
    features, targets = sample(300, 20, 4)
    model = fit_linear(features, targets, regularization, tolerance=tolerance, solver="miso")
    reached = relative_gradient(features, targets, model.weights, regularization)
    assert reached <= 1.01 * tolerance
    assert model.gradient == pytest.approx(reached, rel=1e-4)
    quarter = model.iterations // 4
    earlier = fit_linear(features, targets, regularization, tolerance=tolerance, max_iterations=quarter, solver="miso")
    assert earlier.gradient > tolerance  # and not long after it


@pytest.mark.parametrize("max_iterations", [0, 1, 3, 5, 12])
def test_it_does_as_many_epochs_as_it_may(max_iterations: int) -> None:
    features, targets = sample(200, 10, 3)
    model = fit_linear(features, targets, 1e-3, tolerance=1e-12, max_iterations=max_iterations, solver="miso")
    assert model.iterations == max_iterations
    assert model.objective == pytest.approx(float(objective(features, targets, model.weights, 1e-3)), rel=1e-12)
    if max_iterations == 0:
        assert torch.equal(model.weights, torch.zeros(10, 3, dtype=torch.float64))
    else:
        assert model.objective < 3.0  # that of W = 0


@pytest.mark.parametrize("regularization", [1e-2, 1.0])
@pytest.mark.parametrize(("n", "d", "outputs"), [(100, 10, 1), (100, 10, 4), (1, 5, 2), (2, 1, 1), (30, 60, 2), (40, 3, 60)])
def test_any_signs_are_targets(n: int, d: int, outputs: int, regularization: float) -> None:
    """Several labels to a sample, none, all alike; one sample, one feature, more outputs than the library's report has room."""
    features = torch.randn(n, d, dtype=torch.float64)
    targets = torch.where(torch.randn(n, outputs) > 0.3, 1.0, -1.0).double()
    targets[:, 0] = -1  # a column of one class
    model = fit_linear(features, targets, regularization, tolerance=1e-9, max_iterations=5000, solver="miso")
    reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), regularization))
    torch.testing.assert_close(model.weights, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("regularization", [1e-2, 1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_variables_are_those_of_the_optimum(loss: Loss, regularization: float) -> None:
    """The gradient of the objective vanishes: W = X'a / (n lambda), where a is minus the derivative of the loss."""
    features, targets = sample(150, 12, 3)
    model = fit_linear(features, targets, regularization, loss=loss, tolerance=1e-10, max_iterations=5000, solver="miso")
    torch.testing.assert_close(features.T @ model.dual / (150 * regularization), model.weights, rtol=1e-6, atol=1e-7)
    margins = targets * (features @ model.weights)
    dual = 2 * targets * torch.relu(1 - margins) if isinstance(loss, SquaredHinge) else targets / (1 + margins.exp())
    torch.testing.assert_close(model.dual, dual, rtol=1e-6, atol=1e-7)
    assert "dual" not in repr(model)


# epochs are counted after 5, 10, 20, 40, 80, ... and so are told apart only where a start saves many
NEIGHBOURS = [(SquaredHinge(), 1e-3, 1.1), (Logistic(), 1e-4, 1.1), (SquaredHinge(), 3.0, 1.01), (Logistic(), 1.0, 1.01)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("loss", "regularization", "factor"), NEIGHBOURS)
def test_a_warm_start_needs_fewer_iterations(loss: Loss, regularization: float, factor: float, solver: Solver) -> None:
    features, targets = sample(400, 30, 3)
    settings: dict[str, Any] = {"loss": loss, "solver": solver, "tolerance": 1e-5}
    near = fit_linear(features, targets, factor * regularization, **settings)
    kept = [tensor.clone() for tensor in (near.weights, near.dual) if tensor is not None]
    cold = fit_linear(features, targets, regularization, **settings)
    warm = fit_linear(features, targets, regularization, initial=near, **settings)
    assert 0 < warm.iterations < cold.iterations
    assert warm.gradient <= 1.01e-5
    assert warm.objective == pytest.approx(cold.objective, rel=1e-6)
    assert len(kept) == (2 if solver == "miso" else 1)
    for before, after in zip(kept, (near.weights, near.dual), strict=False):
        assert torch.equal(before, after)  # the start is left alone


def test_new_features_of_the_same_samples_are_a_neighbouring_problem() -> None:
    """As after an epoch of training the network."""
    features, targets = sample(400, 30, 3)
    old = fit_linear(features, targets, 1e-3, tolerance=1e-5, solver="miso")
    moved = features * (1 + 0.001 * torch.randn_like(features))
    cold = fit_linear(moved, targets, 1e-3, tolerance=1e-5, solver="miso")
    warm = fit_linear(moved, targets, 1e-3, tolerance=1e-5, solver="miso", initial=old)
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(cold.objective, rel=1e-6)


@pytest.mark.parametrize("regularization", [1e-3, 3.0])
def test_a_start_without_dual_variables_that_fit(regularization: float) -> None:
    """From L-BFGS, or from other samples: they follow from the weights."""
    features, targets = sample(600, 20, 3)
    cold = fit_linear(features[:400], targets[:400], regularization, tolerance=1e-6, solver="miso")
    near = fit_linear(features[:400], targets[:400], 1.001 * regularization, tolerance=1e-8)
    assert near.dual is None
    for start in (near, replace(near, dual=torch.randn(600, 3, dtype=torch.float64))):
        warm = fit_linear(features[:400], targets[:400], regularization, tolerance=1e-6, solver="miso", initial=start)
        assert 0 < warm.iterations < cold.iterations
        assert warm.objective == pytest.approx(cold.objective, rel=1e-8)
        assert warm.dual.shape == (400, 3)


def test_the_start_is_left_alone_where_it_could_be_used_in_place() -> None:
    """A single column is contiguous either way up."""
    features, targets = sample(100, 8, 2)
    near = fit_linear(features, targets[:, :1], 2e-2, tolerance=1e-6, solver="miso")
    weights, dual = near.weights.clone(), near.dual.clone()
    assert fit_linear(features, targets[:, :1], 1e-2, loss=Logistic(), solver="miso", initial=near).iterations > 0
    assert torch.equal(near.weights, weights)
    assert torch.equal(near.dual, dual)


def test_without_a_start_the_dual_variables_are_zero() -> None:
    """W = X'a / (n lambda) holds for W = 0, too."""
    features, targets = sample(50, 5, 3)
    model = fit_linear(features, targets, 1e-2, solver="miso", max_iterations=0)
    assert torch.equal(model.dual, torch.zeros(50, 3, dtype=torch.float64))


def test_from_the_optimum_there_is_nothing_to_do() -> None:
    features, targets = sample(200, 10, 3)
    optimum = fit_linear(features, targets, 1e-2, tolerance=1e-9, solver="miso")
    again = fit_linear(features, targets, 1e-2, tolerance=1e-8, solver="miso", initial=optimum)
    assert again.iterations == 0
    assert torch.equal(again.weights, optimum.weights)
    assert torch.equal(again.dual, optimum.dual)


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_a_start_far_away_is_left(size: float) -> None:
    features, targets = sample(200, 10, 3)
    far = LinearModel(size * torch.randn(10, 3, dtype=torch.float64), 0.0, 0.0, 0)
    model = fit_linear(features, targets, 1e-1, tolerance=1e-8, solver="miso", initial=far)
    reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), 1e-1))
    torch.testing.assert_close(model.weights, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("regularization", [0.2, 3.0, 100.0])
def test_easy_problems_are_solved_to_the_end(regularization: float) -> None:
    """Where Catalyst has nothing to accelerate each run of epochs goes on from the last, too."""
    features, targets = sample(300, 20, 4)
    model = fit_linear(features, targets, regularization, tolerance=1e-13, solver="miso")
    assert model.gradient <= 1e-13
    assert model.iterations < 1000


def test_hard_problems_are_solved() -> None:
    """Few samples, more features, hardly regularised: acceleration without a new beginning stays at 1e-2 for ever."""
    features = torch.randn(50, 200, dtype=torch.float64) + 1
    targets = torch.where(torch.randn(50, 20) > 0, 1.0, -1.0).double()
    model = fit_linear(features, targets, 1e-2, tolerance=1e-5, max_iterations=3000, solver="miso")
    assert model.gradient <= 1e-5
    best = fit_linear(features, targets, 1e-2, tolerance=1e-8).objective
    assert model.objective == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("regularization", [1e-1, 1e-3])
@pytest.mark.parametrize("loss", LOSSES)
def test_float32_is_close_to_float64(loss: Loss, regularization: float) -> None:
    features, targets = sample(300, 20, 4)
    exact = fit_linear(features, targets, regularization, loss=loss, tolerance=1e-9, max_iterations=5000, solver="miso")
    single = fit_linear(features.float(), targets.float(), regularization, loss=loss, tolerance=1e-5, solver="miso")
    assert (single.weights.dtype, single.dual.dtype) == (torch.float32, torch.float32)
    assert single.gradient <= 1e-5
    assert single.objective == pytest.approx(exact.objective, rel=1e-6)
    torch.testing.assert_close(single.weights.double(), exact.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("regularization", [1e-3, 10.0])
def test_nothing_is_printed(regularization: float, dtype: torch.dtype, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor warned of, which pytest makes an error: not even where a tolerance below the precision cannot be met."""
    features, targets = sample(300, 20, 4)
    exact = fit_linear(features, targets, regularization, tolerance=1e-10)
    model = fit_linear(
        features.to(dtype), targets.to(dtype), regularization, tolerance=1e-18, max_iterations=300, solver="miso"
    )
    assert capfd.readouterr() == ("", "")
    assert model.iterations == 300
    assert model.objective == pytest.approx(exact.objective, rel=1e-5)


def test_the_same_bits_twice() -> None:
    features, targets = sample(100, 8, 3)
    first, again = (fit_linear(features, targets, 1e-2, tolerance=1e-8, solver="miso") for _ in range(2))
    assert torch.equal(first.weights, again.weights)
    assert torch.equal(first.dual, again.dual)
    assert (first.objective, first.iterations) == (again.objective, again.iterations)


def test_the_data_are_left_alone_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = sample(50, 4, 3)
    kept, erm, given = (features.clone(), targets.clone()), miso._library(), []

    def spy(X: np.ndarray, *arguments: Any, **settings: Any) -> Any:
        given.append(X.__array_interface__["data"][0])
        return erm(X, *arguments, **settings)

    monkeypatch.setattr(miso, "_library", lambda: spy)
    model = fit_linear(features.requires_grad_(), targets, 0.1, solver="miso")
    assert set(given) == {features.data_ptr()}
    assert torch.equal(features, kept[0])
    assert torch.equal(targets, kept[1])
    assert not model.weights.requires_grad
    assert not model.dual.requires_grad
    across = features.detach().T.contiguous().T  # whose rows are not contiguous
    assert torch.equal(fit_linear(across, targets, 0.1, solver="miso").weights, model.weights)


def test_columns_that_have_arrived_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = sample(100, 8, 3)
    start = fit_linear(features, targets, 1e-2, tolerance=1e-9, solver="miso")
    start.weights[:, 1] += 1
    erm, columns = miso._library(), []

    def spy(X: np.ndarray, y: np.ndarray, *arguments: Any, **settings: Any) -> Any:
        columns.append(torch.from_numpy(y.copy()))
        return erm(X, y, *arguments, **settings)

    monkeypatch.setattr(miso, "_library", lambda: spy)
    model = fit_linear(features, targets, 1e-2, tolerance=1e-8, solver="miso", initial=start)
    assert columns
    assert all(torch.equal(y, targets[:, 1]) for y in columns)
    assert torch.equal(model.weights[:, [0, 2]], start.weights[:, [0, 2]])
    assert model.gradient <= 1e-8


def test_features_of_zeros() -> None:
    _, targets = sample(10, 4, 3)
    model = fit_linear(torch.zeros(10, 4, dtype=torch.float64), targets, 0.1, solver="miso")
    assert torch.equal(model.weights, torch.zeros(4, 3, dtype=torch.float64))
    assert (model.objective, model.gradient, model.iterations) == (3.0, 0.0, 0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    features, targets = sample(10, 4, 3)
    features[3, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_linear(features, targets, 0.1, solver="miso")


def test_features_elsewhere_or_of_another_type_are_refused() -> None:
    features, targets = sample(10, 4, 3)
    start, settings = torch.zeros(4, 3), {"tolerance": 1e-4, "max_iterations": 10}
    with pytest.raises(ValueError, match='works on the CPU, and the features are on meta; use solver="lbfgs" there'):
        miso.minimize(features.to("meta"), targets.to("meta"), SquaredHinge(), 0.1, start, None, **settings)
    with pytest.raises(ValueError, match=r"needs features of float32 or float64, got torch\.float16"):
        fit_linear(features.half(), targets.half(), 0.1, solver="miso")


def test_targets_and_losses_it_does_not_know_are_refused() -> None:
    features, targets = sample(10, 4, 3)
    with pytest.raises(ValueError, match="targets of 1 and -1 alone"):
        fit_linear(features, targets / 2, 0.1, solver="miso")
    start, settings = torch.zeros(4, 3), {"tolerance": 1e-4, "max_iterations": 10}
    with pytest.raises(ValueError, match='knows the squared hinge and the logistic loss, not Square; use solver="lbfgs"'):
        miso.minimize(features, targets, Square(), 0.1, start, None, **settings)
