"""The convex problem in W at fixed filters: its objective, its minimum and its measures, against numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sckn.layer import LayerConfig
from sckn.linear import penalty
from sckn.network import CKN, NetworkConfig
from sckn.precision import precision
from sckn.training import linear_step
from sckn.training.linear_step import LinearStep, feature_batches
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples

LAMBDA = 0.03


def features_of(net: CKN, given: Samples) -> torch.Tensor:
    return torch.cat([features for features, _ in feature_batches(net, given, 1.0)])


def network() -> CKN:
    return CKN(NetworkConfig(1, (LayerConfig(5, 3, subsampling=2), LayerConfig(4, 1)))).double()


def samples(net: CKN, targets: Any = None, *, classification: bool = True, count: int = 30) -> Samples:
    images = torch.rand(count, 1, 6, 6, dtype=torch.float64)
    targets = torch.randint(0, 3, (count,)) if targets is None else targets
    return Samples.checked(images, targets, like=next(net.parameters()), classification=classification)


def features(net: CKN, given: Samples) -> np.ndarray:
    """One row for each image or, for targets of pixels, for each pixel."""
    maps = net(given.images).detach().numpy()
    return maps.transpose(0, 2, 3, 1).reshape(-1, 4) if given.per_pixel else maps.reshape(len(maps), -1)


def rows(given: Samples) -> np.ndarray:
    targets = given.targets.numpy()
    return targets.transpose(0, 2, 3, 1).reshape(-1, targets.shape[1]) if given.per_pixel else targets


def mean_loss(name: str, targets: np.ndarray, scores: np.ndarray) -> float:
    losses = {
        "squared_hinge": lambda y, f: np.maximum(0, 1 - y * f) ** 2,
        "logistic": lambda y, f: np.logaddexp(0, -y * f),
        "square": lambda y, f: (y - f) ** 2 / 2,
    }
    return float(losses[name](targets, scores).sum() / len(targets))


def derivative(name: str, targets: np.ndarray, scores: np.ndarray) -> np.ndarray:
    derivatives = {
        "squared_hinge": lambda y, f: -2 * y * np.maximum(0, 1 - y * f),
        "logistic": lambda y, f: -y / (1 + np.exp(y * f)),
        "square": lambda y, f: f - y,
    }
    return derivatives[name](targets, scores)


def test_features_get_the_mean_norm_of_the_recipe() -> None:
    net = network()
    given = samples(net)
    for norm in (10.0, 2.5):
        step = LinearStep.for_filters(net, given, Recipe(feature_norm=norm), LAMBDA)
        assert np.linalg.norm(features(net, given) * step.scale, axis=1).mean() == pytest.approx(norm, rel=1e-12)
    assert Recipe().feature_norm == 10


def test_the_norm_of_a_pixel_where_the_model_acts_on_pixels() -> None:
    net = network()
    given = samples(net, torch.randn(30, 2, 3, 3), classification=False)
    step = LinearStep.for_filters(net, given, Recipe(loss="square"), LAMBDA)
    assert np.linalg.norm(features(net, given) * step.scale, axis=1).mean() == pytest.approx(10, rel=1e-12)


def test_black_images_are_not_scaled() -> None:
    net = network()
    given = samples(net)
    given.images.zero_()
    assert LinearStep.for_filters(net, given, Recipe(), LAMBDA).scale == 1


TARGETS: dict[str, tuple[str, Any]] = {
    "classes": ("squared_hinge", None),
    "one output": ("squared_hinge", torch.where(torch.arange(30) % 3 > 0, 1.0, -1.0)[:, None]),
    "logistic": ("logistic", None),
    "regression": ("square", torch.randn(30, 2, generator=torch.Generator().manual_seed(1))),
    "pixels": ("square", torch.randn(30, 2, 3, 3, generator=torch.Generator().manual_seed(1))),
    "classes of pixels": ("logistic", torch.where(torch.rand(30, 2, 3, 3) > 0.5, 1.0, -1.0)),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_the_fit_is_the_minimum_of_the_objective(kind: str) -> None:
    loss, targets = TARGETS[kind]
    net = network()
    given = samples(net, targets, classification=loss != "square")
    step = LinearStep.for_filters(net, given, Recipe(loss=loss, solver_tolerance=1e-9), LAMBDA)  # pyright: ignore[reportArgumentType]
    fit = step.fit(net, given, None)
    X, Y = features(net, given) * step.scale, rows(given)

    def objective(W: np.ndarray) -> float:
        W = W.reshape(X.shape[1], Y.shape[1])
        return mean_loss(loss, Y, X @ W) + LAMBDA / 2 * float((W**2).sum())

    W = fit.linear.weights.numpy()
    assert W.shape == (X.shape[1], Y.shape[1])
    assert fit.linear.objective == pytest.approx(objective(W), rel=1e-10)
    assert fit.loss == pytest.approx(mean_loss(loss, Y, X @ W), rel=1e-10)
    assert penalty(fit.linear.weights, LAMBDA) == pytest.approx(LAMBDA / 2 * float((W**2).sum()), rel=1e-12)
    assert step.loss_at_zero(given) == pytest.approx(objective(np.zeros(W.size)), rel=1e-12)
    # the objective is strongly convex: it is above its minimum by at most |gradient|^2 / (2 lambda)
    gradient = X.T @ derivative(loss, Y, X @ W) / len(X) + LAMBDA * W
    assert float((gradient**2).sum()) / (2 * LAMBDA) < 1e-12
    for place in [(0, 0), (X.shape[1] - 1, Y.shape[1] - 1)]:  # and that is its gradient
        h = np.zeros_like(W)
        h[place] = 1e-6
        moved = W + 100 * h
        slope = (X.T @ derivative(loss, Y, X @ moved) / len(X) + LAMBDA * moved)[place]
        assert (objective(moved + h) - objective(moved - h)) / 2e-6 == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("kind", TARGETS)
def test_judging_measures_weights_as_they_are(kind: str) -> None:
    loss, targets = TARGETS[kind]
    net = network()
    given = samples(net, targets, classification=loss != "square")
    step = LinearStep(Recipe(loss=loss), LAMBDA, 1.5)  # pyright: ignore[reportArgumentType]
    X, Y = features(net, given) * 1.5, rows(given)
    W = torch.randn(X.shape[1], Y.shape[1], dtype=torch.float64)
    fit = step.judge(net, given, W)
    scores = X @ W.numpy()
    loss_found = mean_loss(loss, Y, scores)
    assert fit.loss == pytest.approx(loss_found, rel=1e-12)
    assert fit.linear.objective == pytest.approx(loss_found + LAMBDA / 2 * float(W.square().sum()), rel=1e-12)
    assert torch.equal(fit.linear.weights, W)
    if loss == "square":
        error = math.sqrt(((scores - Y) ** 2).mean())
    elif Y.shape[1] == 1:
        error = 100 * float((np.sign(scores) != Y).mean())
    else:
        error = 100 * float((scores.argmax(1) != Y.argmax(1)).mean())
    assert fit.error == pytest.approx(error, rel=1e-12)
    assert fit.error > 0


def test_fit_and_judge_agree() -> None:
    net = network()
    given = samples(net)
    step = LinearStep.for_filters(net, given, Recipe(), LAMBDA)
    fit = step.fit(net, given, None)
    judged = step.judge(net, given, fit.linear.weights)
    assert (judged.loss, judged.error) == (fit.loss, fit.error)
    assert judged.linear.objective == pytest.approx(fit.linear.objective, rel=1e-12)


def test_a_start_at_the_minimum_needs_no_iteration() -> None:
    net = network()
    given = samples(net)
    step = LinearStep.for_filters(net, given, Recipe(), LAMBDA)
    first = step.fit(net, given, None)
    again = step.fit(net, given, first.linear)
    assert first.linear.iterations > 0
    assert again.linear.iterations == 0
    assert torch.equal(again.linear.weights, first.linear.weights)


@pytest.mark.parametrize("chunk", [1, 7, 30, 100])
def test_images_are_encoded_in_pieces(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    given = samples(net)
    expected = features(net, given)
    sizes = []

    def spy(module: CKN, inputs: tuple[Tensor]) -> None:
        sizes.append(len(inputs[0]))

    monkeypatch.setattr(linear_step, "ENCODED", chunk)
    net.register_forward_pre_hook(spy)  # pyright: ignore[reportArgumentType]
    found = features_of(net, given)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert sizes == [len(part) for part in torch.arange(30).split(chunk)]
    assert not found.requires_grad


def test_filters_are_compared_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the program would wait for each comparison."""
    net = network()
    given, compared, equal = samples(net), [], torch.equal
    features_of(net, given)  # roots are known now

    def counted(a: Tensor, b: Tensor) -> bool:
        compared.append(a)
        return equal(a, b)

    monkeypatch.setattr(torch, "equal", counted)
    for chunk in (30, 1):
        monkeypatch.setattr(linear_step, "ENCODED", chunk)
        compared.clear()
        features_of(net, given)
        assert len(compared) == len(net.kernel_layers)


def test_filters_that_changed_are_seen_by_the_next_pass() -> None:
    net = network()
    given = samples(net)
    first = features_of(net, given)
    with torch.no_grad():
        net.kernel_layers[1].filters[0] += 1.0
    second = features_of(net, given)
    assert not torch.equal(first, second)
    np.testing.assert_allclose(second.numpy(), features(net, given), rtol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_network_stays(training: bool) -> None:
    net = network().train(training)
    given = samples(net)
    features_of(net, given)
    assert net.training == training


def test_features_that_are_not_finite_give_a_nan_objective() -> None:
    net = network()
    given = samples(net)
    given.images[3, 0, 2, 2] = torch.inf
    fit = LinearStep(Recipe(), LAMBDA, 1.0).fit(net, given, None)
    assert math.isnan(fit.linear.objective)
    assert math.isnan(fit.loss)
    assert fit.linear.weights.shape == (36, 3)
    assert not fit.linear.weights.any()


def test_at_medium_precision_weights_are_judged_in_fp32() -> None:
    """Whether an epoch is kept depends on it: features are those of bf16 convolutions, scores have all their digits."""
    net = network().float()
    given = samples(net)
    step = LinearStep(Recipe(), LAMBDA, 1.5)
    W = torch.randn(36, 3)
    with precision("medium", torch.device("cpu")):
        fit = step.judge(net, given, W)
        X = features_of(net, given).double().numpy() * 1.5
    assert fit.loss == pytest.approx(mean_loss("squared_hinge", rows(given), X @ W.double().numpy()), rel=1e-5)
