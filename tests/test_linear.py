"""The convex step against liblinear, Newton's method in numpy, autograd and finite differences."""

import itertools
import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from torch import Tensor

from sckn import lbfgs
from sckn.linear import LinearModel, best_exponent, error_rate, fit_linear, one_vs_all, validation_errors
from sckn.losses import Logistic, Loss, Square, SquaredHinge
from sckn.processes import Processes


def sample(n: int, d: int, classes: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Features (n, d) with columns of unequal scale, and one-vs-all targets of a noisy linear teacher."""
    features = torch.randn(n, d, dtype=torch.float64) * torch.logspace(0, -1, d, dtype=torch.float64)
    scores = features @ torch.randn(d, classes, dtype=torch.float64) + noise * torch.randn(n, classes, dtype=torch.float64)
    return features, one_vs_all(scores.argmax(1), classes, torch.float64)


def objective(features: Tensor, targets: Tensor, weights: Tensor, regularization: float) -> Tensor:
    """(1/n) sum of max(0, 1 - y f)^2 over samples and classes + lambda/2 |W|^2, as it is written."""
    losses = torch.relu(1 - targets * (features @ weights)) ** 2
    return losses.sum() / len(features) + regularization / 2 * (weights**2).sum()


def autograd_slope(features: Tensor, targets: Tensor, weights: Tensor, regularization: float) -> Tensor:
    weights = weights.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(features, targets, weights, regularization), weights)
    return slope


def relative_gradient(features: Tensor, targets: Tensor, weights: Tensor, regularization: float) -> float:
    """The largest over classes of the gradient's norm at W beside that at 0."""
    at_weights = autograd_slope(features, targets, weights, regularization).norm(dim=0)
    at_zero = autograd_slope(features, targets, torch.zeros_like(weights), regularization).norm(dim=0)
    return float((at_weights / at_zero).max())


def newton(X: np.ndarray, Y: np.ndarray, regularization: float) -> np.ndarray:
    """The optimum (d, classes) by Newton's method with halving steps: exact, as the objective is piecewise quadratic."""
    n, d = X.shape
    columns = []
    for y in Y.T:

        def value(w: np.ndarray, y: np.ndarray = y) -> float:
            return float((np.maximum(0, 1 - y * (X @ w)) ** 2).mean() + regularization / 2 * w @ w)

        w = np.zeros(d)
        for _ in range(200):
            slack = np.maximum(0, 1 - y * (X @ w))
            slope = -2 / n * X.T @ (y * slack) + regularization * w
            active = X[slack > 0]
            direction = -np.linalg.solve(2 / n * active.T @ active + regularization * np.eye(d), slope)
            step = 1.0
            while value(w + step * direction) > value(w) + 1e-4 * step * slope @ direction and step > 1e-10:
                step /= 2
            w = w + step * direction
            if np.linalg.norm(step * direction) <= 1e-13 * np.linalg.norm(w):
                break
        columns.append(w)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("regularization", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_agrees_with_liblinear(regularization: float, classes: int) -> None:
    """Its objective is 1/2 |w|^2 + C sum of squared hinges: ours divided by lambda, with C = 1/(lambda n)."""
    features, targets = sample(200, 12, max(classes, 2))
    targets = targets[:, :classes]
    model = fit_linear(features, targets, regularization, tolerance=1e-8)
    reference = []
    for y in targets.T:
        C = 1 / (regularization * len(features))
        svc = LinearSVC(fit_intercept=False, dual=False, tol=1e-8, C=C, max_iter=10_000)  # pyright: ignore[reportArgumentType]
        reference.append(svc.fit(features.numpy(), y.numpy()).coef_[0])
    reference = torch.from_numpy(np.stack(reference, axis=1))
    expected = float(objective(features, targets, reference, regularization))
    assert model.objective == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(model.weights, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "d", "regularization"), [(300, 15, 1.0), (300, 15, 1e-4), (300, 15, 1e-6), (20, 60, 1e-3), (30, 30, 1e-3)]
)
def test_agrees_with_newtons_method(n: int, d: int, regularization: float) -> None:
    features, targets = sample(n, d, 4)
    optimum = torch.from_numpy(newton(features.numpy(), targets.numpy(), regularization))
    model = fit_linear(features, targets, regularization, tolerance=1e-10, max_iterations=5000)
    best = float(objective(features, targets, optimum, regularization))
    assert model.objective == pytest.approx(best, rel=1e-10)
    assert model.gradient <= 1e-10
    # strong convexity: |W - W*| <= |gradient| / lambda
    bound = float(autograd_slope(features, targets, model.weights, regularization).norm()) / regularization
    assert float((model.weights - optimum).norm()) <= bound + 1e-9 * float(optimum.norm())


def test_the_gradient_vanishes_at_the_optimum() -> None:
    features, targets = sample(300, 20, 4)
    for tolerance in (1e-3, 1e-6, 1e-10):
        model = fit_linear(features, targets, 1e-3, tolerance=tolerance)
        assert relative_gradient(features, targets, model.weights, 1e-3) <= 1.01 * tolerance


@pytest.mark.parametrize("max_iterations", [0, 1, 3, 1000])
def test_the_report_says_what_the_weights_are(max_iterations: int) -> None:
    features, targets = sample(200, 10, 3)
    model = fit_linear(features, targets, 1e-3, tolerance=1e-7, max_iterations=max_iterations)
    assert model.weights.shape == (10, 3)
    assert model.objective == pytest.approx(float(objective(features, targets, model.weights, 1e-3)), rel=1e-12)
    relative = relative_gradient(features, targets, model.weights, 1e-3)
    assert model.gradient == pytest.approx(relative, rel=1e-4)
    if max_iterations < 1000:
        assert model.iterations == max_iterations
    else:
        assert 3 < model.iterations < 1000
        assert model.gradient <= 1e-7


def test_the_objective_falls_with_every_iteration() -> None:
    features, targets = sample(200, 10, 3)
    values = [fit_linear(features, targets, 1e-4, tolerance=1e-9, max_iterations=k).objective for k in range(12)]
    assert all(later < earlier for earlier, later in itertools.pairwise(values))
    assert values[0] == 3.0  # each of three classes loses 1 at W = 0


@pytest.mark.parametrize("memory", [1, 3, 50])
def test_the_memory_does_not_change_the_optimum(memory: int) -> None:
    features, targets = sample(200, 10, 3)
    start = torch.zeros(10, 3, dtype=torch.float64)
    weights, _ = lbfgs.minimize(
        features, targets, SquaredHinge(), 1e-3, start, tolerance=1e-8, max_iterations=1000, memory=memory
    )
    reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), 1e-3))
    torch.testing.assert_close(weights, reference, rtol=1e-5, atol=1e-6)


def test_classes_are_independent_problems() -> None:
    features, targets = sample(200, 10, 4)
    together = fit_linear(features, targets, 1e-3, tolerance=1e-9)
    alone = [fit_linear(features, targets[:, [c]], 1e-3, tolerance=1e-9) for c in range(4)]
    torch.testing.assert_close(together.weights, torch.cat([model.weights for model in alone], dim=1), rtol=1e-6, atol=1e-7)
    assert together.objective == pytest.approx(sum(model.objective for model in alone), rel=1e-12)


def test_a_warm_start_reaches_the_same_optimum_sooner() -> None:
    features, targets = sample(400, 30, 3)
    near = fit_linear(features, targets, 2e-3, tolerance=1e-8)
    start = near.weights.clone()
    cold = fit_linear(features, targets, 1e-3, tolerance=1e-6)
    warm = fit_linear(features, targets, 1e-3, tolerance=1e-6, initial=near)
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(cold.objective, rel=1e-10)
    torch.testing.assert_close(warm.weights, cold.weights, rtol=1e-3, atol=1e-4)
    assert torch.equal(start, near.weights)  # the start is left alone


def test_from_the_optimum_there_is_nothing_to_do() -> None:
    features, targets = sample(200, 10, 3)
    optimum = fit_linear(features, targets, 1e-3, tolerance=1e-9)
    again = fit_linear(features, targets, 1e-3, tolerance=1e-8, initial=optimum)
    assert again.iterations == 0
    assert torch.equal(again.weights, optimum.weights)


def test_a_start_far_away_is_left() -> None:
    features, targets = sample(200, 10, 3)
    reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), 1e-2))
    for size in (1e3, 1e6):
        far = LinearModel(size * torch.randn(10, 3, dtype=torch.float64), 0.0, 0.0, 0)
        model = fit_linear(features, targets, 1e-2, tolerance=1e-8, initial=far)
        torch.testing.assert_close(model.weights, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mean", [10.0, 100.0])
@pytest.mark.parametrize("regularization", [1e-2, 1e-4])
def test_features_far_from_their_origin(mean: float, regularization: float) -> None:
    """As kernel features are: one direction holds nearly all of the energy, the information is in the others."""
    features, targets = sample(400, 20, 3, noise=0.3)
    features = features + mean * (1 + torch.rand(20, dtype=torch.float64))
    reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), regularization))
    best = float(objective(features, targets, reference, regularization))
    assert best < 2.5  # there is something to learn
    model = fit_linear(features, targets, regularization, tolerance=1e-9)
    assert model.gradient <= 1e-9
    assert model.objective == pytest.approx(best, rel=1e-9)
    torch.testing.assert_close(model.weights, reference, rtol=1e-4, atol=1e-5)


def test_features_far_from_their_origin_in_float32() -> None:
    features, targets = sample(400, 20, 3, noise=0.3)
    features = features + 30
    best = float(objective(features, targets, torch.from_numpy(newton(features.numpy(), targets.numpy(), 1e-2)), 1e-2))
    model = fit_linear(features.float(), targets.float(), 1e-2, tolerance=1e-5)
    assert float(objective(features, targets, model.weights.double(), 1e-2)) == pytest.approx(best, rel=1e-4)


def test_separable_classes() -> None:
    """The optimum exists all the same, and as lambda falls it separates them with ever smaller loss."""
    labels = torch.arange(60) % 3
    features = torch.randn(60, 3, dtype=torch.float64) * 0.05 + torch.eye(3, dtype=torch.float64)[labels]
    targets = one_vs_all(labels, 3, torch.float64)
    objectives = []
    for regularization in (1e-1, 1e-3, 1e-5, 1e-7):
        model = fit_linear(features, targets, regularization, tolerance=1e-9)
        reference = torch.from_numpy(newton(features.numpy(), targets.numpy(), regularization))
        assert model.objective == pytest.approx(float(objective(features, targets, reference, regularization)), rel=1e-7)
        objectives.append(model.objective)
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < 1e-4
    scores = features @ fit_linear(features, targets, 1e-7, tolerance=1e-9).weights
    assert bool(((scores > 0) == (targets > 0)).all())


def test_equal_columns_share_their_weight_and_empty_columns_have_none() -> None:
    features, targets = sample(150, 6, 3)
    wide = torch.cat([features, features[:, :2], torch.zeros(150, 2, dtype=torch.float64)], dim=1)
    model = fit_linear(wide, targets, 1e-3, tolerance=1e-9)
    torch.testing.assert_close(model.weights[6:8], model.weights[:2], rtol=1e-9, atol=1e-10)
    assert torch.equal(model.weights[8:], torch.zeros(2, 3, dtype=torch.float64))
    reference = newton(wide.numpy(), targets.numpy(), 1e-3)
    torch.testing.assert_close(model.weights, torch.from_numpy(reference), rtol=1e-5, atol=1e-6)


def test_more_features_than_samples() -> None:
    """The optimum lies in the span of the samples."""
    features, targets = sample(15, 80, 3)
    model = fit_linear(features, targets, 1e-3, tolerance=1e-9)
    inside = torch.linalg.pinv(features) @ (features @ model.weights)
    torch.testing.assert_close(inside, model.weights, rtol=1e-7, atol=1e-9)


def test_features_of_zeros() -> None:
    _, targets = sample(10, 4, 3)
    model = fit_linear(torch.zeros(10, 4, dtype=torch.float64), targets, 0.1)
    assert torch.equal(model.weights, torch.zeros(4, 3, dtype=torch.float64))
    assert (model.objective, model.gradient, model.iterations) == (3.0, 0.0, 0)


@pytest.mark.parametrize("regularization", [1e-1, 1e-3])
def test_float32_is_close_to_float64(regularization: float) -> None:
    features, targets = sample(300, 20, 4)
    exact = fit_linear(features, targets, regularization, tolerance=1e-9)
    single = fit_linear(features.float(), targets.float(), regularization, tolerance=1e-5)
    assert single.weights.dtype == torch.float32
    assert single.gradient <= 1e-5
    assert single.objective == pytest.approx(exact.objective, rel=1e-6)
    torch.testing.assert_close(single.weights.double(), exact.weights, rtol=1e-3, atol=1e-3)


def test_a_tolerance_below_the_precision_ends() -> None:
    """It cannot be met in float32; the last iterations must not spoil what was reached."""
    features, targets = sample(300, 20, 4)
    exact = fit_linear(features, targets, 1e-3, tolerance=1e-10)
    model = fit_linear(features.float(), targets.float(), 1e-3, tolerance=1e-12, max_iterations=300)
    assert model.objective == pytest.approx(exact.objective, rel=1e-5)


@pytest.mark.parametrize("classes", [1, 3])
def test_a_single_class(classes: int) -> None:
    """All labels alike: still convex problems, with one answer each."""
    features, _ = sample(100, 5, 2)
    features = features + 1
    targets = one_vs_all(torch.zeros(100), classes, torch.float64)
    model = fit_linear(features, targets, 1e-2, tolerance=1e-9)
    reference = newton(features.numpy(), targets.numpy(), 1e-2)
    torch.testing.assert_close(model.weights, torch.from_numpy(reference), rtol=1e-6, atol=1e-7)
    if classes == 3:
        torch.testing.assert_close(model.weights[:, 1:], -model.weights[:, :1].expand(5, 2), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("regularization", [0.0, -1.0, float("nan")])
def test_lambda_must_be_positive(regularization: float) -> None:
    features, targets = sample(10, 4, 3)
    with pytest.raises(ValueError, match="lambda must be positive"):
        fit_linear(features, targets, regularization)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    """Rather than weights of zero that look like a model."""
    features, targets = sample(10, 4, 3)
    features[3, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_linear(features, targets, 0.1)


def test_the_data_are_left_alone_and_need_no_gradient() -> None:
    features, targets = sample(50, 4, 3)
    kept = features.clone(), targets.clone()
    model = fit_linear(features.requires_grad_(), targets, 0.1)
    assert torch.equal(features, kept[0])
    assert torch.equal(targets, kept[1])
    assert not model.weights.requires_grad


def test_the_same_bits_twice() -> None:
    features, targets = sample(100, 8, 3)
    first, again = (fit_linear(features, targets, 1e-3, tolerance=1e-8) for _ in range(2))
    assert torch.equal(first.weights, again.weights)
    assert (first.objective, first.iterations) == (again.objective, again.iterations)


def test_one_vs_all() -> None:
    expected = torch.tensor([[-1.0, -1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]])
    for dtype in (torch.uint8, torch.int32, torch.int64):
        assert torch.equal(one_vs_all(torch.tensor([2, 0, 1], dtype=dtype), 3), expected)
    assert one_vs_all(torch.tensor([0]), 2, torch.float64).dtype == torch.float64


def test_error_rate_is_the_percentage_of_wrong_largest_scores() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0], [-3.0, -1.0, -2.0], [0.1, 0.2, 0.3], [5.0, 4.0, 6.0]])
    for labels, expected in (([0, 1, 2, 2], 0.0), ([0, 1, 2, 0], 25.0), ([0, 1, 1, 0], 50.0), ([1, 2, 0, 1], 100.0)):
        assert error_rate(scores, torch.tensor(labels)) == expected


@pytest.mark.parametrize(
    ("errors", "best"),
    [({-2: 7.0, 0: 5.0, 3: 5.0, 5: 6.0}, 3), ({4: 1.0, -3: 1.0, 1: 1.0}, 4), ({2: 9.0, -7: 8.5}, -7), ({0: 50.0}, 0)],
)
def test_of_equal_errors_the_strongest_regularization_is_chosen(errors: dict[int, float], best: int) -> None:
    assert best_exponent(errors) == best


def test_validation_errors_are_those_of_samples_the_model_has_not_seen() -> None:
    """Random labels in more dimensions than samples: all are learned by heart, and nothing about the others."""
    features, labels = torch.randn(300, 400, dtype=torch.float64), torch.randint(4, (300,))
    kept = 100
    errors = validation_errors(features, labels, kept, range(-6, 1))
    assert sorted(errors) == list(range(-6, 1))
    weights = fit_linear(features[:kept], one_vs_all(labels[:kept], 4, torch.float64), 2.0**-6 / kept).weights
    assert error_rate(features[:kept] @ weights, labels[:kept]) == 0
    assert all(65 < error < 85 for error in errors.values())  # guessing gives 75; three standard deviations are 9


def test_validation_errors_are_those_of_models_fitted_one_by_one() -> None:
    """lambda = 2^i / kept; neither the order of the exponents nor the start from another model matters."""
    features, targets = sample(600, 20, 3)
    labels, kept, exponents = targets.argmax(1), 150, (-4, 8, 2, 5, 11)
    expected = {}
    for i in exponents:
        model = fit_linear(features[:kept], targets[:kept], 2.0**i / kept, tolerance=1e-9)
        wrong = (features[kept:] @ model.weights).argmax(1) != labels[kept:]
        expected[i] = 100 * int(wrong.sum()) / 450
    errors = validation_errors(features, labels, kept, exponents, tolerance=1e-9)
    assert errors == pytest.approx(expected, abs=1e-9)
    assert len(set(errors.values())) > 3  # the exponents can be told apart


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    features, targets = sample(400, 30, 5)
    on_cpu = fit_linear(features, targets, 1e-3, tolerance=1e-9)
    on_cuda = fit_linear(features.cuda(), targets.cuda(), 1e-3, tolerance=1e-9)
    assert on_cuda.weights.device.type == "cuda"
    torch.testing.assert_close(on_cuda.weights.cpu(), on_cpu.weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("regularization", [1e-4, 1e-2, 1.0])
def test_logistic_regression_is_that_of_scikit_learn(regularization: float) -> None:
    features, targets = sample(300, 8, 3)
    model = fit_linear(features, targets, regularization, loss=Logistic(), tolerance=1e-10)
    for column, target in zip(model.weights.T, targets.T, strict=True):
        reference = LogisticRegression(C=1 / (regularization * 300), fit_intercept=False, tol=1e-12, max_iter=10_000)
        reference.fit(features.numpy(), target.numpy())
        np.testing.assert_allclose(column.numpy(), reference.coef_[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "d", "rank"), [(2000, 128, 10), (300, 2000, 300)])
def test_ridge_regression_in_fp32_is_as_precise_as_its_numbers(n: int, d: int, rank: int) -> None:
    """Also for features of low rank and a small lambda."""
    features = (torch.randn(n, rank) @ torch.randn(rank, d)) / rank**0.5
    targets = features @ torch.randn(d, 2) / d**0.5
    model = fit_linear(features, targets, 1e-5, loss=Square())
    exact = fit_linear(features.double(), targets.double(), 1e-5, loss=Square())
    assert model.weights.dtype == torch.float32
    assert model.objective == pytest.approx(exact.objective, rel=1e-3)
    assert float((model.weights - exact.weights).norm() / exact.weights.norm()) < 1e-5


@pytest.mark.parametrize(("n", "d"), [(60, 8), (8, 60)])
def test_the_square_loss_is_ridge_regression(n: int, d: int) -> None:
    features, targets = torch.randn(n, d, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)
    model = fit_linear(features, targets, 0.1, loss=Square())
    reference = Ridge(alpha=0.1 * n, fit_intercept=False).fit(features.numpy(), targets.numpy())
    np.testing.assert_allclose(model.weights.numpy(), reference.coef_.T, rtol=1e-9, atol=1e-10)
    assert model.gradient < 1e-12
    start = torch.zeros(d, 2, dtype=torch.float64)
    iterated, _ = lbfgs.minimize(features, targets, Square(), 0.1, start, tolerance=1e-12, max_iterations=500)
    torch.testing.assert_close(iterated, model.weights, rtol=1e-9, atol=1e-10)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"got \(5, 3\) and \(4, 2\)"):
        fit_linear(torch.zeros(5, 3), torch.zeros(4, 2), 1.0)


def test_a_start_of_another_shape_is_refused() -> None:
    features, targets = sample(10, 4, 3)
    other = LinearModel(torch.zeros(5, 3), 0.0, 0.0, 0)
    with pytest.raises(ValueError, match=r"weights \(4, 3\) to start from, got \(5, 3\)"):
        fit_linear(features, targets, 0.1, initial=other)


def test_an_unknown_solver_is_refused() -> None:
    features, targets = sample(10, 4, 3)
    with pytest.raises(ValueError, match="solver must be 'lbfgs' or 'miso', got 'sgd'"):
        fit_linear(features, targets, 0.1, solver="sgd")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("loss", [SquaredHinge(), Logistic()])
def test_miso_in_several_processes_is_refused(loss: Loss) -> None:
    features, targets = sample(10, 4, 3)
    with pytest.raises(ValueError, match='solver="miso" works in one process, not in 2; solver="lbfgs" does in several'):
        fit_linear(features, targets, 0.1, loss=loss, solver="miso", processes=Processes(0, 2))


def test_without_the_library_of_miso_the_other_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = sample(10, 4, 3)
    monkeypatch.setitem(sys.modules, "cyanure_lib", None)
    with pytest.raises(ImportError, match=r'needs the package cyanure, .*; solver="lbfgs" finds the same model'):
        fit_linear(features, targets, 0.1, solver="miso")
    assert fit_linear(features, targets, 0.1).gradient <= 1e-4  # which needs it not


def test_the_square_loss_is_solved_in_closed_form_whatever_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cyanure_lib", None)
    features, targets = torch.randn(60, 8, dtype=torch.float64), torch.randn(60, 2, dtype=torch.float64)
    one, other = (fit_linear(features, targets, 0.1, loss=Square(), solver=solver) for solver in ("lbfgs", "miso"))
    assert torch.equal(one.weights, other.weights)
    assert other.gradient < 1e-12
    assert other.dual is None
