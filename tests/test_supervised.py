"""Filters and linear model trained together: what is learned, what is undone, and what an interruption changes (nothing)."""

import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from sckn.inverse_root import InverseRoot
from sckn.kernels import Exponential
from sckn.layer import LayerConfig
from sckn.linear import LinearModel, fit_linear, one_vs_all
from sckn.losses import SquaredHinge
from sckn.model import KernelModel
from sckn.network import CKN, NetworkConfig
from sckn.training import supervised
from sckn.training.linear_step import Fit, LinearStep
from sckn.training.preconditioner import preconditioners
from sckn.training.recipe import Recipe
from sckn.training.sphere import SphereSGD
from sckn.training.state import TrainingState
from sckn.training.supervised import TrainingDivergedError, TrainingResult, train_supervised
from sckn.training.unsupervised import fit_unsupervised

TRAIN = 898  # half of the digits
COUNT = 80  # where only the mechanics count
LAMBDA = 0.1 / COUNT


@cache
def digits(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) and their classes, in an order of their own for each seed."""
    data: Any = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    return images[order], torch.tensor(data.target)[order]


@cache
def _unsupervised(config: NetworkConfig, count: int, seed: int) -> CKN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fit_unsupervised(CKN(config), digits(seed)[0][:count], patches=5000, seed=seed)


def network(
    filters: int = 6,
    count: int = COUNT,
    seed: int = 0,
    *,
    alpha: float | None = None,
    inverse_root: InverseRoot = "eigh",
    dropout: float = 0.0,
) -> CKN:
    """Two layers of 3 x 3 patches, each pooled by 2, with filters learned from the first digits without their labels."""
    kernel = Exponential(4.0) if alpha is None else Exponential(alpha, learnable=True)
    each = LayerConfig(filters, 3, subsampling=2, kernel=kernel, inverse_root=inverse_root)
    layers = each, replace(each, dropout=dropout)
    return deepcopy(_unsupervised(NetworkConfig(1, layers), count, seed))


def train(given: CKN, recipe: Recipe, count: int = COUNT, seed: int = 0, **settings: Any) -> TrainingResult:
    images, labels = digits(seed)
    settings = {"regularization": LAMBDA if count == COUNT else 1 / count, "seed": seed, "progress": False, **settings}
    return train_supervised(given, images[:count], labels[:count], recipe=recipe, **settings)


# A recipe for a few digits, with a first learning rate that is too large on purpose; the last of four batches is smaller.
QUICK = Recipe(epochs=3, batch_size=24, learning_rate=0.01, solver_tolerance=1e-2)
# One that need not step back.
CAREFUL = replace(QUICK, learning_rate=0.002, solver_tolerance=1e-3)
# For so few digits.
SLOW_RATES = {"alpha_learning_rate": 1e-4, "weights_learning_rate": 1e-4}


@dataclass
class Memory:
    """A TrainingStore in memory that keeps every state, and drops the records of epochs that will come again."""

    states: list[TrainingState] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    best: list[dict[str, Tensor]] = field(default_factory=list)

    def load_state(self) -> TrainingState | None:
        last = self.states[-1].numbers["epoch"] if self.states else -1
        self.records = [record for record in self.records if record["epoch"] <= last]
        return self.states[-1] if self.states else None

    def save_state(self, state: TrainingState) -> None:
        tensors = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        self.states.append(TrainingState(tensors, dict(state.numbers)))

    def record(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def save_best(self, model: KernelModel) -> None:
        self.best.append({name: tensor.clone() for name, tensor in model.state_dict().items()})


def without_seconds(records: list[dict[str, Any]]) -> list[str]:
    """As text, in which NaN equals NaN."""
    return [json.dumps({name: value for name, value in record.items() if name != "seconds"}) for record in records]


def error_of(result: TrainingResult, seed: int = 0) -> float:
    """In percent, of the half of the digits that no training here sees."""
    images, labels = (part[TRAIN:] for part in digits(seed))
    return 100 * float((result.model.predict(images).argmax(dim=1) != labels).double().mean())


# -- what is learned ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_labels_lower_the_test_error_by_a_quarter_at_least() -> None:
    """The recipe of the paper, on half of the digits; the mean over five seeds, against the same features unsupervised."""
    before, after = [], []
    for seed in range(5):
        given = network(32, TRAIN, seed)
        before.append(error_of(train(deepcopy(given), Recipe(epochs=0), TRAIN, seed), seed))
        result = train(given, Recipe(epochs=20), TRAIN, seed)
        after.append(error_of(result, seed))
        accepted = [record["objective"] for record in result.history if record["accepted"]]
        assert len(accepted) > 10
        assert all(later <= earlier for earlier, later in itertools.pairwise(accepted))
    assert np.mean(after) <= 0.75 * np.mean(before), (before, after)


def test_labels_lower_the_error_of_few_images_too() -> None:
    recipe = Recipe(epochs=5, batch_size=25, learning_rate=0.01, solver_tolerance=1e-2)
    before = error_of(train(network(12, 200), replace(recipe, epochs=0), 200))
    result = train(network(12, 200), recipe, 200)
    accepted = [record["objective"] for record in result.history if record["accepted"]]
    assert all(later <= earlier for earlier, later in itertools.pairwise(accepted))
    assert len(accepted) > 3
    assert accepted[-1] < 0.8 * accepted[0]
    assert error_of(result) <= 0.8 * before


def test_without_an_epoch_the_filters_stay_and_the_linear_model_is_the_minimum() -> None:
    given = network()
    before = deepcopy(given.state_dict())
    result = train(given, replace(QUICK, epochs=0, solver_tolerance=1e-6), regularization=0.1)
    assert result.model.network is given
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    (record,) = result.history
    assert (record["epoch"], record["accepted"], record["sample_gradients"]) == (0, True, 0)
    images, labels = digits()
    features = given(images[:COUNT]).detach().flatten(1)
    scale = 10 / float(features.norm(dim=1).mean())
    expected = fit_linear(features.double() * scale, one_vs_all(labels[:COUNT], 10, torch.float64), 0.1, tolerance=1e-8)
    assert record["objective"] == pytest.approx(expected.objective, rel=1e-5)
    torch.testing.assert_close(result.model.weights.detach().double(), expected.weights * scale, rtol=1e-3, atol=1e-3)


def test_the_record_of_an_epoch_is_that_of_the_model() -> None:
    images, labels = digits()
    held_out = images[1000:1200], labels[1000:1200]
    result = train(network(alpha=4.0), replace(CAREFUL, **SLOW_RATES), validation=held_out)
    last = result.history[-1]
    assert last["accepted"]
    assert [record["epoch"] for record in result.history] == [0, 1, 2, 3]

    def percent_wrong(pictures: Tensor, classes: Tensor) -> float:
        return 100 * float((result.model.predict(pictures).argmax(dim=1) != classes).double().mean())

    assert last["validation_error"] == pytest.approx(percent_wrong(*held_out), rel=1e-6)
    assert last["train_error"] == pytest.approx(percent_wrong(images[:COUNT], labels[:COUNT]), rel=1e-6)
    scores = result.model.predict(images[:COUNT])
    losses = (1 - one_vs_all(labels[:COUNT], 10) * scores).clamp_min(0).square().sum() / COUNT
    assert last["loss"] == pytest.approx(float(losses), rel=1e-4)
    assert last["objective"] > last["loss"]
    alphas = [layer.log_alpha for layer in result.model.network.kernel_layers]
    assert last["alphas"] == pytest.approx([math.exp(float(alpha.detach())) for alpha in alphas if alpha is not None])
    assert last["alphas"] != pytest.approx([4.0, 4.0], abs=1e-4)
    assert set(last["seconds"]) == {"filters", "weights", "validation"}
    for layer in result.model.network.kernel_layers:
        torch.testing.assert_close(layer.filters.detach().flatten(1).norm(dim=1), torch.ones(6), rtol=1e-6, atol=1e-6)


def test_the_seed_decides() -> None:
    weights = [train(network(), CAREFUL, seed=seed).model.weights for seed in (0, 0)]
    assert torch.equal(*weights)
    images, labels = digits()
    other = train_supervised(network(), images[:COUNT], labels[:COUNT], regularization=LAMBDA, recipe=CAREFUL, seed=1)
    assert not torch.equal(weights[0], other.model.weights)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_global_random_state_is_neither_used_nor_changed(dropout: float) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train(network(dropout=dropout), replace(CAREFUL, epochs=1, flip=True))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again = train(network(dropout=dropout), replace(CAREFUL, epochs=1, flip=True))
    assert torch.equal(again.model.weights, first.model.weights)


def test_dropout_acts_in_the_steps_and_not_in_the_fit() -> None:
    plain, dropped = (train(network(dropout=part), replace(CAREFUL, epochs=1)) for part in (0.0, 0.2))
    assert plain.history[0]["objective"] == dropped.history[0]["objective"]
    assert plain.history[1]["objective"] != dropped.history[1]["objective"]


def test_bytes_train_as_their_parts_of_255() -> None:
    images, labels = digits()
    pixels = (255 * images[:COUNT]).round().byte()
    recipe = replace(CAREFUL, epochs=1)
    results = [
        train_supervised(network(), given, labels[:COUNT].numpy(), regularization=LAMBDA, recipe=recipe, progress=False)
        for given in (pixels, pixels.numpy(), pixels.float() / 255)
    ]
    for result in results[1:]:
        assert torch.equal(result.model.weights, results[0].model.weights)
    torch.testing.assert_close(results[0].model.predict(pixels), results[0].model.predict(pixels.float() / 255))


def test_the_best_model_on_validation_is_kept() -> None:
    images, labels = digits()
    validation = images[TRAIN:1200], labels[TRAIN:1200]
    memory = Memory()
    result = train(network(6, 300), replace(CAREFUL, epochs=6), 300, validation=validation, store=memory)
    errors = [record["validation_error"] for record in result.history]
    improved = [number for number, error in enumerate(errors) if error < min([math.inf, *errors[:number]])]
    assert len(memory.best) == len(improved) > 1
    best = KernelModel(network(), torch.zeros_like(result.model.weights))
    best.load_state_dict(memory.best[-1])
    wrong = best.predict(validation[0]).argmax(dim=1) != validation[1]
    assert 100 * float(wrong.double().mean()) == pytest.approx(min(errors), rel=1e-6)
    assert memory.states[-1].numbers["best_error"] == min(errors)


# -- other losses and targets ---------------------------------------------------------------------------------------------


def test_logistic_loss_learns() -> None:
    result = train(network(), replace(QUICK, loss="logistic", learning_rate=0.05, epochs=6))
    objectives = [record["objective"] for record in result.history if record["accepted"]]
    assert len(objectives) > 2
    assert objectives[-1] < 0.9 * objectives[0]


def quadrants(images: Tensor) -> Tensor:
    """The product of the mean brightness of the two upper quadrants, and that of the two on the left: not linear in pixels."""
    means = torch.nn.functional.avg_pool2d(images, 4).flatten(1)  # (n, 4)
    return 10 * torch.stack([means[:, 0] * means[:, 1], means[:, 0] * means[:, 2]], dim=1)


def test_regression_learns() -> None:
    images = digits()[0]
    recipe = Recipe(epochs=10, batch_size=32, loss="square", learning_rate=0.1)
    targets = quadrants(images)
    result = train_supervised(
        network(),
        images[:COUNT],
        targets[:COUNT],
        regularization=1e-4,
        recipe=recipe,
        validation=(images[TRAIN:], targets[TRAIN:]),
        progress=False,
    )
    errors = [record["validation_error"] for record in result.history if record["accepted"]]
    residual = result.model.predict(images[TRAIN:]) - targets[TRAIN:]
    assert result.model.predict(images[:5]).shape == (5, 2)
    assert errors[-1] == pytest.approx(float(residual.square().mean().sqrt()), rel=1e-4)
    assert errors[-1] < 0.9 * errors[0]


def test_one_number_for_each_image() -> None:
    images = digits()[0][:COUNT]
    result = train_supervised(
        network(),
        images,
        quadrants(images)[:, 0].numpy(),
        regularization=1e-4,
        recipe=replace(CAREFUL, loss="square"),
        progress=False,
    )
    assert result.model.predict(images).shape == (COUNT, 1)
    assert result.history[-1]["objective"] < result.history[0]["objective"]


@pytest.mark.parametrize("weights", ["solver", "sgd"])
def test_pixels_have_targets_of_their_own(weights: Any) -> None:
    """The brightness of a pixel of the pooled image squared: from the map there."""
    images = digits()[0][:COUNT]
    targets = torch.nn.functional.avg_pool2d(images, 4) ** 2  # (COUNT, 1, 2, 2)
    recipe = replace(CAREFUL, loss="square", weights=weights, learning_rate=0.02, epochs=8)
    result = train_supervised(network(), images, targets, regularization=1e-3, recipe=recipe, progress=False)
    found = result.model.predict(images)
    assert found.shape == (COUNT, 1, 2, 2)
    objectives = [record["objective"] for record in result.history if record["accepted"]]
    assert objectives[-1] < objectives[0]
    W = result.model.weights.detach() / result_scale(result, images)
    objective = float((found - targets).square().mean() / 2 + 1e-3 / 2 * W.square().sum())
    assert objectives[-1] == pytest.approx(objective, rel=1e-3)
    assert result.history[-1]["active_fraction"] == 1


@pytest.mark.parametrize("averaging", [0.0, 0.5])
def test_the_solver_sees_some_samples_between_epochs_and_all_at_the_end(averaging: float) -> None:
    images, penalty, seen = digits()[0][:COUNT], 1e-3, 20
    targets = torch.nn.functional.avg_pool2d(images, 4) ** 2  # (COUNT, 1, 2, 2)
    recipe = replace(CAREFUL, loss="square", schedule="constant", epochs=2, averaging=averaging, solver_samples=seen)
    memory = Memory()
    result = train_supervised(network(), images, targets, regularization=penalty, recipe=recipe, progress=False, store=memory)
    scale = result_scale(result, images)

    def minimum(given: CKN, count: int) -> np.ndarray:
        """By numpy, from the definition."""
        X = scale * given(images[:count]).detach().permute(0, 2, 3, 1).flatten(0, 2).double().numpy()
        y = targets[:count].flatten().double().numpy()
        return np.linalg.solve(X.T @ X / len(X) + penalty * np.eye(X.shape[1]), X.T @ y / len(X))

    for state, count in zip(memory.states, (seen, seen, COUNT), strict=True):
        then = network()
        then.load_state_dict(
            {name.removeprefix("network."): value for name, value in state.tensors.items() if name.startswith("network.")}
        )
        assert np.allclose(state.tensors["weights"][:, 0].numpy(), minimum(then.eval(), count), rtol=1e-3, atol=1e-4)
    found = result.model.weights.detach()[:, 0].numpy() / scale
    assert np.allclose(found, minimum(result.model.network, COUNT), rtol=1e-3, atol=1e-4)
    assert not np.allclose(minimum(network().eval(), seen), minimum(network().eval(), COUNT), rtol=1e-2)


def result_scale(result: TrainingResult, images: Tensor) -> float:
    """What the features of the first filters are multiplied by: per pixel, to norm 10."""
    assert result.model.per_pixel
    maps = network()(images).detach()
    return 10 / float(maps.norm(dim=1).mean())


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_two_classes_need_one_output(loss: Any) -> None:
    """Even and odd digits, as 1 and -1."""
    images, labels = digits()
    targets = torch.where(labels % 2 == 0, 1.0, -1.0)[:, None]
    result = train_supervised(
        network(),
        images[:COUNT],
        targets[:COUNT],
        regularization=LAMBDA,
        recipe=replace(QUICK, loss=loss, learning_rate=0.02),
        validation=(images[TRAIN:1300], targets[TRAIN:1300]),
        progress=False,
    )
    scores = result.model.predict(images[TRAIN:1300])
    assert scores.shape == (1300 - TRAIN, 1)
    error = 100 * float((scores.sign() != targets[TRAIN:1300]).double().mean())
    last = [record for record in result.history if record["accepted"]][-1]
    assert last["validation_error"] == pytest.approx(error, rel=1e-6)
    assert error < 25
    assert last["objective"] < result.history[0]["objective"]


# -- learning rates -------------------------------------------------------------------------------------------------------


def spied_rates(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """The learning rates of filters, alpha and W at each step, as the optimiser has them."""
    seen: list[list[float]] = []
    step = SphereSGD.step

    def spy(self: SphereSGD, closure: None = None) -> None:
        assert all(isinstance(group["lr"], Tensor) for group in self.param_groups)
        seen.append([float(group["lr"]) for group in self.param_groups])
        step(self, closure)

    monkeypatch.setattr(SphereSGD, "step", spy)
    return seen


@pytest.mark.parametrize(
    ("schedule", "part"),
    [
        ("constant", lambda t: 1.0),
        ("linear", lambda t: 1 - t),
        ("cosine", lambda t: math.cos(math.pi * t / 2) ** 2),
    ],
)
def test_rates_reach_the_optimiser_at_every_step(
    schedule: Any, part: Callable[[float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spied_rates(monkeypatch)
    recipe = replace(
        CAREFUL,
        epochs=3,
        schedule=schedule,
        weights="sgd",
        alpha_learning_rate=1e-3,
        weights_learning_rate=1e-4,
        active_set=False,
    )
    result = train(network(alpha=4.0), recipe)
    steps = [(epoch + batch / 4) / 3 for epoch in range(3) for batch in range(4)]  # of 80 samples, 24 at a time
    assert len(seen) == 12
    for rates, t in zip(seen, steps, strict=True):
        # two layers of filters, alphas, W
        assert rates == pytest.approx([base * part(t) for base in (0.002, 0.002, 1e-3, 1e-4)], rel=1e-5, abs=1e-12)
    for record in result.history:
        assert record["learning_rate"] == pytest.approx(0.002 * part(record["epoch"] / 3), abs=1e-12)


def test_halving_halves_from_the_next_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied_rates(monkeypatch)
    result = train(network(alpha=4.0), replace(QUICK, active_set=False, epochs=6, **SLOW_RATES))
    accepted = [record["accepted"] for record in result.history[1:]]
    assert not accepted[0]
    assert any(accepted)
    rate = 1.0
    for epoch, kept in enumerate(accepted):
        for rates in seen[4 * epoch : 4 * epoch + 4]:
            assert rates == pytest.approx([0.01 * rate, 0.01 * rate, 1e-4 * rate], rel=1e-6)
        rate = rate if kept else rate / 2
        assert result.history[epoch + 1]["learning_rate"] == pytest.approx(0.01 * rate)


# -- back-tracking --------------------------------------------------------------------------------------------------------

BACKTRACKING = {
    "paper": replace(QUICK, averaging=0.9, epochs=6, reactivation=0.0, **SLOW_RATES),
    "sgd": replace(QUICK, weights="sgd", averaging=0.9, epochs=6, learning_rate=0.003, reactivation=0.0, **SLOW_RATES),
}


def is_as_before(before: TrainingState, after: TrainingState) -> bool:
    """Filters, alphas, frames, W, active set, running means."""
    names = [name for name in before.tensors if not name.startswith(("momentum.", "generator"))]
    assert {"weights", "active", "mean.0", "network.layers.0.log_alpha", "network.layers.1.filters"} <= set(names)
    return all(torch.equal(before.tensors[name], after.tensors[name]) for name in names)


@pytest.mark.parametrize("kind", BACKTRACKING)
def test_a_rejected_epoch_leaves_no_trace(kind: str) -> None:
    memory = Memory()
    result = train(network(alpha=4.0), BACKTRACKING[kind], store=memory)
    accepted = [record["accepted"] for record in result.history]
    assert not all(accepted)
    assert sum(accepted) > 1
    for number in range(1, len(accepted)):
        before, after = memory.states[number - 1], memory.states[number]
        momentum = [after.tensors[name] for name in after.tensors if name.startswith("momentum.")]
        assert len(momentum) == (4 if kind == "paper" else 5)
        if accepted[number]:
            assert not is_as_before(before, after)
            assert all(bool(buffer.any()) for buffer in momentum)
            assert after.numbers["factor"] == before.numbers["factor"]
            assert result.history[number]["objective"] <= before.numbers["objective"]
        else:
            assert is_as_before(before, after)
            assert not any(bool(buffer.any()) for buffer in momentum)
            assert after.numbers["factor"] == before.numbers["factor"] / 2
            assert after.numbers["objective"] == before.numbers["objective"] < result.history[number]["objective"]
        assert after.numbers["epoch"] == number


def test_after_a_rejected_epoch_a_part_of_the_inactive_comes_back_all_the_same() -> None:
    memory = Memory()
    result = train(network(), replace(QUICK, epochs=12, reactivation=0.25), store=memory)
    compared = 0
    for before, after, record in zip(memory.states, memory.states[1:], result.history[1:], strict=False):
        old, new = before.tensors["active"], after.tensors["active"]
        if not record["accepted"] and not bool(old.all()):
            assert bool(new[old].all())
            assert int((new & ~old).sum()) == math.ceil(0.25 * int((~old).sum()))
            compared += 1
    assert compared


def test_after_stepping_back_training_is_that_from_there_with_half_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the first epoch is rejected; the second begins at the first filters, with the second order of samples."""
    recipe = replace(QUICK, epochs=2, solver_tolerance=1e-5)
    result = train(network(), recipe)
    assert not result.history[1]["accepted"]
    reference = network()
    orders: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        orders.append(torch.randperm(COUNT, generator=generator))
        torch.randperm(0, generator=generator)  # nobody is inactive
    expected = train(reference, replace(recipe, epochs=0))
    optimizer = SphereSGD([layer.filters for layer in reference.kernel_layers], lr=0.005, momentum=0.9)
    images, labels = digits()
    targets = one_vs_all(labels[:COUNT], 10)
    reference.train()
    for batch in orders[1].split(24):
        optimizer.zero_grad()
        scores = reference(images[batch]).flatten(1) @ expected.model.weights.detach()
        (SquaredHinge()(targets[batch], scores).sum() / len(batch)).backward()
        optimizer.step()
    features = reference.eval()(images[:COUNT]).detach().flatten(1)
    scale = 10 / float(network()(images[:COUNT]).detach().flatten(1).norm(dim=1).mean())
    fit = fit_linear(features * scale, targets, LAMBDA, tolerance=1e-5)
    assert result.history[2]["objective"] == pytest.approx(fit.objective, rel=1e-3)


def nan_fit_at(epochs: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The linear step answers NaN after these epochs."""
    fit, calls = LinearStep.fit, [0]

    def broken(self: LinearStep, network: CKN, *others: Any) -> Fit:
        calls[0] += 1
        if calls[0] - 1 in epochs:
            return Fit(LinearModel(torch.zeros(24, 10), math.nan, math.nan, 0), math.nan, math.nan)
        return fit(self, network, *others)

    monkeypatch.setattr(LinearStep, "fit", broken)


@pytest.mark.parametrize("schedule", ["halving", "cosine"])
def test_an_objective_of_nan_is_undone(schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nan_fit_at({2, 3}, monkeypatch)
    memory = Memory()
    recipe = replace(CAREFUL, epochs=5, reactivation=0.0, schedule=schedule)
    with pytest.warns(RuntimeWarning) as caught:
        result = train(network(alpha=4.0), replace(recipe, **SLOW_RATES), store=memory)
    assert [str(warning.message) for warning in caught] == [
        f"the objective was nan after epoch {epoch}; the epoch is undone and the learning rate halved" for epoch in (2, 3)
    ]
    assert [record["accepted"] for record in result.history] == [True, True, False, False, True, True]
    assert [state.numbers["factor"] for state in memory.states] == [1, 1, 0.5, 0.25, 0.25, 0.25]
    assert [state.numbers["failures"] for state in memory.states] == [0, 0, 1, 2, 0, 0]
    for name, value in memory.states[1].tensors.items():
        if not name.startswith(("momentum.", "generator")):
            assert torch.equal(value, memory.states[3].tensors[name]), name
    assert math.isnan(result.history[2]["objective"])
    assert result.history[-1]["objective"] < result.history[0]["objective"]


def test_an_objective_of_nan_that_persists_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    nan_fit_at(set(range(2, 100)), monkeypatch)
    given = network()
    with (
        pytest.warns(RuntimeWarning, match="the epoch is undone"),
        pytest.raises(TrainingDivergedError, match=r"^training diverges: .* nan after epoch 6, 5 times in a row"),
    ):
        train(given, replace(CAREFUL, epochs=100))
    assert all(bool(torch.isfinite(layer.filters).all()) for layer in given.kernel_layers)


DIVERGING: dict[str, Recipe] = {
    "filters": replace(QUICK, epochs=20, learning_rate=1e30),
    "filters, cosine": replace(QUICK, epochs=20, learning_rate=1e30, schedule="cosine"),
    "filters, newton_schulz": replace(QUICK, epochs=20, learning_rate=1e30, schedule="linear"),
    "filters, moving_frame": replace(QUICK, epochs=20, learning_rate=1e30, schedule="constant"),
    "W": replace(QUICK, epochs=20, weights="sgd", weights_learning_rate=1e20, schedule="cosine"),
    "W, judged": replace(QUICK, epochs=20, weights="sgd", weights_learning_rate=1e20),
}


@pytest.mark.parametrize("kind", DIVERGING)
def test_learning_rates_beyond_all_reason_are_named(kind: str) -> None:
    """Filters become NaN in the middle of an epoch, or W infinite."""
    root: InverseRoot = "newton_schulz" if "newton" in kind else "moving_frame" if "moving" in kind else "eigh"
    given = network(inverse_root=root)
    before = deepcopy(given.state_dict())
    memory = Memory()
    with pytest.warns(RuntimeWarning, match="the epoch is undone"), pytest.raises(TrainingDivergedError) as e:
        train(given, DIVERGING[kind], store=memory)
    message = str(e.value)
    assert message.startswith("training diverges: the objective was ")
    assert "5 times in a row" in message
    assert message.endswith("lower learning_rate in the recipe")
    assert "\n" not in message
    assert len(memory.states) == 5  # epoch 0 and four that were undone
    first = {f"network.{name}": value for name, value in before.items() if "frame" not in name}
    for state in [*memory.states, TrainingState({f"network.{name}": value for name, value in given.state_dict().items()}, {})]:
        assert all(torch.equal(state.tensors[name], value) for name, value in first.items())


@pytest.mark.parametrize(("group", "value"), [(0, math.nan), (2, 200.0)], ids=["a filter of NaN", "an infinite alpha"])
@pytest.mark.parametrize("weights", ["sgd", "solver"])
def test_a_last_step_that_no_loss_has_seen_is_undone_too(
    weights: Any, group: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With W by SGD there is no pass over the images at the end of an epoch that would notice."""
    step, calls = SphereSGD.step, [0]

    def broken(self: SphereSGD, closure: None = None) -> None:
        step(self, closure)
        calls[0] += 1
        if calls[0] == 8:  # the last of the second epoch
            self.param_groups[group]["params"][0].data.view(-1)[0] = value

    monkeypatch.setattr(SphereSGD, "step", broken)
    recipe = replace(CAREFUL, weights=weights, schedule="cosine", active_set=False, **SLOW_RATES)
    given = network(alpha=4.0)
    with pytest.warns(RuntimeWarning, match="the objective was nan after epoch 2; the epoch is undone"):
        result = train(given, recipe)
    assert [record["accepted"] for record in result.history] == [True, True, False, True]
    assert bool(torch.isfinite(given.kernel_layers[0].filters).all())


@pytest.mark.parametrize("flip", [False, True])
def test_a_problem_that_is_hard_is_not_taken_for_divergence(flip: bool) -> None:
    """Labels that are nearly noise: the first objective is hardly below that of W = 0, and steps go above it."""
    images, labels = digits()
    noise = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < 0.45
    targets = (2.0 * ((labels % 2 == 0) ^ noise) - 1)[:1000, None]
    recipe = Recipe(epochs=3, batch_size=50, learning_rate=0.05, schedule="cosine", weights="sgd", flip=flip, shift=int(flip))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train_supervised(network(), images[:1000], targets, regularization=1e-3, recipe=recipe, progress=False)
    assert all(record["accepted"] for record in result.history)
    assert result.history[0]["objective"] > 0.9


def test_other_errors_are_not_taken_for_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Fit:
        raise ValueError("something else")

    monkeypatch.setattr(supervised._Alternation, "_fit_after_epoch", broken)
    with pytest.raises(ValueError, match="something else"):
        train(network(), CAREFUL)


# -- new samples for each epoch ----------------------------------------------------------------------------------------


def test_each_epoch_sees_its_samples() -> None:
    """One epoch on the first, then one on others: as two trainings of an epoch, the second from the state of the first."""
    images, labels = digits()
    parts = [(images[start : start + COUNT], labels[start : start + COUNT]) for start in (0, 500)]
    given = parts[0][0].clone(), parts[0][1].clone()
    recipe = replace(CAREFUL, epochs=2, schedule="constant", active_set=False)
    asked: list[int] = []

    def renew(epoch: int) -> tuple[Tensor, Tensor]:
        asked.append(epoch)
        return parts[epoch]

    settings: dict[str, Any] = {"regularization": LAMBDA, "progress": False}
    store = Memory()
    result = train_supervised(network(), *given, recipe=recipe, renew=renew, store=store, **settings)
    assert asked == [1]
    assert torch.equal(given[0], parts[0][0])  # what was given is left alone
    store.states.pop()
    second = train_supervised(network(), *parts[1], recipe=recipe, store=store, **settings)
    assert torch.equal(second.model.weights, result.model.weights)
    other = train_supervised(network(), *given, recipe=recipe, **settings)
    assert not torch.equal(other.model.weights, result.model.weights)


@pytest.mark.parametrize("change", [{"active_set": True}, {"schedule": "halving"}, {"solver": "miso"}, {"cross_fitting": True}])
def test_renewal_is_refused_where_samples_are_remembered(change: dict[str, Any]) -> None:
    recipe = replace(CAREFUL, **{"schedule": "cosine", "active_set": False, **change})
    with pytest.raises(ValueError, match="renew needs"):
        train(network(), recipe, renew=lambda epoch: digits())


def test_renewed_samples_of_another_shape_are_refused() -> None:
    recipe = replace(CAREFUL, schedule="cosine", active_set=False)
    with pytest.raises(ValueError, match="renew gave images and targets of shapes"):
        train(network(), recipe, renew=lambda epoch: digits())


# -- the active set -------------------------------------------------------------------------------------------------------


def margins(given: CKN, W: Tensor, scale: float, count: int) -> Tensor:
    images, labels = digits()
    with torch.no_grad():
        scores = given(images[:count].to(W.dtype)).flatten(1) * scale @ W
    return one_vs_all(labels[:count], 10, W.dtype) * scores


def test_inactive_is_exactly_who_has_no_gradient() -> None:
    """After an epoch in which nothing moves, against the margins of all samples one by one."""
    given = network(16, 300).double()
    memory = Memory()
    recipe = Recipe(epochs=1, batch_size=32, learning_rate=1e-12, schedule="constant", reactivation=0.0)
    train(deepcopy(given), recipe, 300, store=memory)
    start, end = memory.states
    found = margins(given, start.tensors["weights"], start.numbers["scale"], 300)
    assert float((found - 1).abs().min()) > 1e-9  # no doubt in any case
    expected = [any(float(margin) < 1 for margin in row) for row in found]
    assert end.tensors["active"].tolist() == expected
    assert 20 < sum(expected) < 280
    assert memory.records[1]["active_fraction"] == pytest.approx(sum(expected) / 300)


def test_a_tenth_comes_back_and_is_visited() -> None:
    memory = Memory()
    result = train(network(16, 300), Recipe(epochs=3, batch_size=32, learning_rate=0.005), 300, store=memory)
    visited = [record["sample_gradients"] for record in result.history]
    assert visited[0] == 0
    assert visited[1] == 300
    for state, record, before, after in zip(memory.states[1:], result.history[1:], visited[1:], visited[2:], strict=False):
        active = int(state.tensors["active"].sum())
        assert after - before == active < 300  # those of the next epoch
        assert record["active_fraction"] == pytest.approx(active / 300)
    # among the flags after an epoch are those that came back: without them there are fewer by a tenth of the inactive
    alone = Memory()
    train(network(16, 300), Recipe(epochs=1, batch_size=32, learning_rate=0.005, reactivation=0.0), 300, store=alone)
    strict, loose = alone.states[1].tensors["active"], memory.states[1].tensors["active"]
    assert bool(loose[strict].all())
    assert int((loose & ~strict).sum()) == math.ceil(0.1 * int((~strict).sum())) > 0


@pytest.mark.slow
def test_the_active_set_saves_work_and_changes_little() -> None:
    """Where both have converged. At this lambda other orders of the samples end within 0.8 %, too; at a smaller one, where more
    work is saved, they do not."""
    recipe = Recipe(epochs=90, batch_size=32, learning_rate=0.002, schedule="cosine", solver_tolerance=1e-4)
    for seed in range(3):
        objectives, visits = [], []
        for active_set in (True, False):
            result = train(network(16, 300, seed), replace(recipe, active_set=active_set), 300, seed, regularization=0.03)
            last = [record["objective"] for record in result.history[-10:]]
            assert max(last) < 1.002 * min(last) < result.history[0]["objective"] / 2
            objectives.append(last[-1])
            visits.append(result.history[-1]["sample_gradients"])
        assert objectives[0] == pytest.approx(objectives[1], rel=0.01)
        assert visits[1] == 90 * 300
        assert visits[0] < 0.98 * visits[1]
    weak = train(network(16, 300), replace(recipe, active_set=True), 300, regularization=0.01)
    assert weak.history[-1]["sample_gradients"] < 0.9 * 90 * 300


def test_without_an_active_set_all_are_visited() -> None:
    result = train(network(16, 300), Recipe(epochs=3, batch_size=32, learning_rate=0.005, active_set=False), 300)
    assert [record["sample_gradients"] for record in result.history] == [0, 300, 600, 900]
    assert [record["active_fraction"] for record in result.history] == [1, 1, 1, 1]


def test_the_loss_that_steps_see_is_that_of_all_samples() -> None:
    """With W by SGD and no judge the objective comes from the steps: inactive samples count, with a loss of 0."""
    given = network(16, 300).double()
    memory = Memory()
    recipe = Recipe(
        epochs=3, batch_size=32, learning_rate=1e-12, weights_learning_rate=1e-12, weights="sgd", schedule="constant"
    )
    result = train(deepcopy(given), recipe, 300, store=memory)
    W = memory.states[0].tensors["weights"]
    found = margins(given, W, memory.states[0].numbers["scale"], 300)
    loss = float((1 - found).clamp_min(0).square().sum()) / 300
    assert result.history[-1]["active_fraction"] < 0.95
    for record in result.history:
        assert record["loss"] == pytest.approx(loss, rel=1e-6)
        assert record["objective"] == pytest.approx(loss + float(W.square().sum()) / 600, rel=1e-6)


@pytest.mark.parametrize("active_set", [False, True])
def test_by_sgd_w_stays_at_the_minimum_of_the_whole_objective(active_set: bool) -> None:
    """Where the gradient of the mean loss, over all samples in one batch, is that of the penalty with the sign changed; in the
    active set there are fewer, with the same sum of gradients."""
    recipe = Recipe(
        epochs=5, batch_size=COUNT, learning_rate=1e-12, weights="sgd", weights_learning_rate=0.01, schedule="constant"
    )
    recipe = replace(recipe, solver_tolerance=1e-10, active_set=active_set)
    memory = Memory()
    result = train(network(16).double(), recipe, store=memory, regularization=1e-3)
    assert (result.history[-1]["active_fraction"] < 0.9) == active_set
    start, end = (memory.states[number].tensors["weights"] for number in (0, -1))
    assert float((end - start).norm() / start.norm()) < 1e-8  # without the penalty it would be 1e-2


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_a_closing_fit_ends_at_the_minimum_for_the_last_filters(averaging: float) -> None:
    recipe = replace(CAREFUL, weights="sgd", schedule="cosine", averaging=averaging, solver_tolerance=1e-6, **SLOW_RATES)
    open_end = train(network(), recipe, regularization=0.1)
    result = train(network(), replace(recipe, closing_fit=True), regularization=0.1)
    filters = [found.model.network.kernel_layers[1].filters for found in (open_end, result)]
    assert torch.equal(*filters)
    images, labels = digits()
    features = result.model.network(images[:COUNT]).detach().flatten(1).double()
    scale = 10 / float(network()(images[:COUNT]).detach().flatten(1).norm(dim=1).mean())
    expected = fit_linear(features * scale, one_vs_all(labels[:COUNT], 10, torch.float64), 0.1, tolerance=1e-9)
    torch.testing.assert_close(result.model.weights.detach().double(), expected.weights * scale, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(open_end.model.weights, result.model.weights, rtol=1e-2, atol=1e-2)


# -- averages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["solver", "sgd"])
def test_the_averaged_filters_are_the_model(weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all steps by hand, from the iterates as the optimiser leaves them."""
    given = network(alpha=4.0)
    iterates: list[list[Tensor]] = []
    step = SphereSGD.step

    def spy(self: SphereSGD, closure: None = None) -> None:
        step(self, closure)
        iterates.append([p.detach().clone() for group in self.param_groups for p in group["params"]])

    monkeypatch.setattr(SphereSGD, "step", spy)
    recipe = replace(CAREFUL, averaging=0.8, schedule="cosine", weights=weights, solver_tolerance=1e-3, **SLOW_RATES)
    memory = Memory()
    images, labels = digits()
    held_out = images[1000:1200], labels[1000:1200]
    result = train(given, recipe, store=memory, validation=held_out)
    start = memory.states[0].tensors
    means = [start["network.layers.0.filters"], start["network.layers.1.filters"]]
    means += [start["network.layers.0.log_alpha"], start["network.layers.1.log_alpha"], start["weights"]]
    for values in iterates:
        means = [0.8 * mean + 0.2 * value for mean, value in zip(means, values, strict=False)]
    for mean, layer in zip(means[:2], given.kernel_layers, strict=True):
        expected = mean / mean.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        torch.testing.assert_close(layer.filters.detach(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.filters.detach().flatten(1).norm(dim=1), torch.ones(6), rtol=1e-6, atol=1e-6)
    alphas = [layer.log_alpha for layer in given.kernel_layers]
    torch.testing.assert_close([alpha.detach() for alpha in alphas if alpha is not None], means[2:4], rtol=1e-5, atol=1e-6)
    assert result.model.network is given
    assert not torch.equal(given.kernel_layers[0].filters, iterates[-1][0])

    scale = memory.states[0].numbers["scale"]
    W = result.model.weights.detach() / scale
    features = given(images[:COUNT]).detach().flatten(1) * scale
    if weights == "sgd":
        torch.testing.assert_close(W, means[4], rtol=1e-4, atol=1e-5)
    else:
        fit = fit_linear(features, one_vs_all(labels[:COUNT], 10), LAMBDA, initial=LinearModel(W, 0, 0, 0), tolerance=2e-3)
        assert fit.iterations == 0  # it is at the minimum already
        last = memory.states[-1].tensors["weights"]  # which that of the last iterate is not
        fit = fit_linear(features, one_vs_all(labels[:COUNT], 10), LAMBDA, initial=LinearModel(last, 0, 0, 0), tolerance=2e-3)
        assert fit.iterations > 0
    wrong = result.model.predict(held_out[0]).argmax(dim=1) != held_out[1]
    assert result.history[-1]["validation_error"] == pytest.approx(100 * float(wrong.double().mean()), rel=1e-6)


# -- interruptions --------------------------------------------------------------------------------------------------------


class KilledError(Exception):
    """Where the power fails."""


@dataclass
class Mortal(Memory):
    """A store that lets its process die once in each epoch: before or after it keeps a record, or after the state."""

    place: str = "before record"
    died: set[int] = field(default_factory=set)

    def _die(self, place: str, epoch: int) -> None:
        if place == self.place and epoch not in self.died:
            self.died.add(epoch)
            raise KilledError

    def record(self, record: dict[str, Any]) -> None:
        self._die("before record", record["epoch"])
        super().record(record)
        self._die("after record", record["epoch"])

    def save_state(self, state: TrainingState) -> None:
        super().save_state(state)
        self._die("after state", state.numbers["epoch"])


SWIFT = replace(CAREFUL, epochs=2, solver_tolerance=1e-2)
INTERRUPTED: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "paper": (QUICK, {}),
    "cosine, averaged, augmented": (replace(SWIFT, schedule="cosine", averaging=0.9, flip=True, shift=1), {}),
    "sgd, alpha": (replace(QUICK, weights="sgd", learning_rate=0.003, **SLOW_RATES), {"alpha": 4.0}),
    "sgd, averaged": (replace(SWIFT, weights="sgd", schedule="cosine", averaging=0.9, **SLOW_RATES), {}),
    "preconditioner": (replace(QUICK, preconditioner=1.0), {}),
    "moving frame": (SWIFT, {"inverse_root": "moving_frame"}),
    "moving frame, sgd, averaged": (
        replace(SWIFT, weights="sgd", schedule="cosine", averaging=0.9, **SLOW_RATES),
        {"inverse_root": "moving_frame"},
    ),
    "miso": (replace(QUICK, solver="miso", learning_rate=0.03), {}),
    "from uphill": (replace(SWIFT, schedule="cosine", sharpness=0.1), {}),
    "halves": (replace(SWIFT, schedule="cosine", active_set=False, cross_fitting=True), {}),
    "miso, averaged": (replace(SWIFT, solver="miso", averaging=0.9, schedule="cosine"), {}),
    "square": (replace(SWIFT, loss="square"), {}),
    "orthogonal, clipped": (replace(SWIFT, schedule="cosine", orthogonal=True, learning_rate=0.02, clip=0.01), {"alpha": 4.0}),
    "dropout": (SWIFT, {"dropout": 0.2}),
}


QUICKLY_TESTED = (
    "paper",
    "cosine, averaged, augmented",
    "sgd, alpha",
    "moving frame",
    "miso",
    "dropout",
    "halves",
    "orthogonal, clipped",
)


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICKLY_TESTED else pytest.param(kind, marks=pytest.mark.slow) for kind in INTERRUPTED]
)
def test_a_training_killed_in_every_epoch_ends_with_the_same_bits(kind: str) -> None:
    if "miso" in kind:
        pytest.importorskip("cyanure_lib")
    recipe, settings = INTERRUPTED[kind]
    images, labels = digits()
    validation = images[1000:1100], labels[1000:1100]
    expected = Memory()
    reference = train(network(**settings), recipe, store=expected, validation=validation)
    if kind in ("paper", "sgd, alpha", "preconditioner", "miso"):
        assert not all(record["accepted"] for record in reference.history)
    if kind == "paper":
        assert reference.history[-1]["active_fraction"] < 1
    for place in ("before record", "after record", "after state"):
        store = Mortal(place=place)
        lives, result, given = 0, None, network(**settings)
        while result is None:
            lives += 1
            given = network(**settings)
            with torch.no_grad():  # a fresh network may begin with any filters: those of the state count
                if store.states:
                    given.kernel_layers[0].filters.add_(1)
            try:
                result = train(given, recipe, store=store, validation=validation)
            except KilledError:
                continue
        assert lives == recipe.epochs + 2  # once in each epoch, epoch 0 included
        assert without_seconds(store.records) == without_seconds(reference.history), place
        for name, value in reference.model.state_dict().items():
            assert torch.equal(result.model.state_dict()[name], value), (place, name)
        assert result.model.network is given
        assert json.dumps(store.states[-1].numbers) == json.dumps(expected.states[-1].numbers)
        for name, value in expected.states[-1].tensors.items():
            assert torch.equal(store.states[-1].tensors[name], value), (place, name)


def test_a_finished_training_is_only_read() -> None:
    store = Memory()
    first = train(network(), CAREFUL, store=store)
    count = len(store.states)
    again = train(network(), CAREFUL, store=store)
    assert again.history == []
    assert len(store.states) == count
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in first.model.state_dict().items())


def test_a_training_can_be_prolonged() -> None:
    """Where the schedule does not depend on the number of epochs."""
    store = Memory()
    train(network(), replace(QUICK, epochs=2), store=store)
    prolonged = train(network(), QUICK, store=store)
    whole = train(network(), QUICK)
    assert torch.equal(prolonged.model.weights, whole.model.weights)
    assert without_seconds(store.records) == without_seconds(whole.history)
    # what counts as divergence is remembered
    assert [state.numbers["at_zero"] for state in store.states] == pytest.approx(4 * [10.0])


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"recipe": replace(QUICK, averaging=0.9)}, "averaging = 0.0, but averaging = 0.9 was given"),
        ({"regularization": 0.5}, "regularization = 0.01"),
        ({"count": COUNT - 1}, "images = "),
    ],
)
def test_a_state_of_other_settings_is_refused(changed: dict[str, Any], complaint: str) -> None:
    store = Memory()
    settings: dict[str, Any] = {"recipe": QUICK, "count": COUNT, "regularization": 0.01}
    train(network(), replace(QUICK, epochs=1), regularization=0.01, store=store)
    with pytest.raises(ValueError, match=complaint):
        train(network(), store=store, **{**settings, **changed})


def test_what_cannot_be_trained_is_refused() -> None:
    images, labels = digits()
    with pytest.raises(ValueError, match="frozen"):
        train(network().requires_grad_(False), QUICK)
    with pytest.raises(ValueError, match="no images for validation"):
        train(network(), QUICK, validation=(images[:0], labels[:0]))
    targets = images[:COUNT, :, :2, :2]
    for recipe in (Recipe(loss="square", flip=True), Recipe(loss="square", shift=1)):
        with pytest.raises(ValueError, match="not the targets of their pixels"):
            train_supervised(network(), images[:COUNT], targets, regularization=1.0, recipe=recipe, progress=False)


def test_the_preconditioner_is_that_of_the_first_filters() -> None:
    store = Memory()
    given = network()
    expected = preconditioners(network(), digits()[0][:COUNT], 1.0)
    train(given, replace(CAREFUL, preconditioner=1.0), store=store)
    for state in store.states:
        for number, Q in enumerate(expected):
            assert torch.equal(state.tensors[f"preconditioner.{number}"], Q)


# -- what cannot be trained -----------------------------------------------------------------------------------------------


def no_images() -> tuple[Any, ...]:
    return torch.rand(0, 1, 8, 8), torch.empty(0, dtype=torch.long), {}


def colours() -> tuple[Any, ...]:
    return torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]), {}


def wrong_pixels() -> tuple[Any, ...]:
    return torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8), {"recipe": replace(CAREFUL, loss="square")}


def larger_validation() -> tuple[Any, ...]:
    return *small_set(), {"validation": (torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 2, 1]))}


def more_classes() -> tuple[Any, ...]:
    return *small_set(), {"validation": (torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))}


def other_outputs() -> tuple[Any, ...]:
    images = torch.rand(4, 1, 8, 8)
    settings = {"recipe": replace(CAREFUL, loss="square"), "validation": (images, torch.rand(4, 1))}
    return images, torch.rand(4, 3), settings


def small_set() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (no_images, "there are no images to train on"),
        (colours, "the images have 3 channels, but the network takes 1"),
        (wrong_pixels, r"the targets have \(8, 8\) pixels, but the last map of the network has \(2, 2\)"),
        (larger_validation, r"different numbers of features, from \(1, 12, 12\) and \(1, 8, 8\)"),
        (more_classes, "images of 4 classes, but the model learns only 3"),
        (other_outputs, "the targets have 1 outputs, but the model learns 3"),
        (lambda: (*small_set(), {"regularization": 0}), "regularization must be a number above 0"),
        (lambda: (*small_set(), {"seed": -1}), "seed must be a whole number of at least 0"),
    ],
)
def test_what_is_wrong_is_named(given: Callable[[], tuple[Any, ...]], message: str) -> None:
    images, targets, settings = given()
    with pytest.raises(ValueError, match=message):
        train_supervised(network(), images, targets, **{"regularization": 0.1, "recipe": CAREFUL, **settings})


def test_filters_that_are_not_finite_are_named() -> None:
    given = network()
    with torch.no_grad():
        given.kernel_layers[0].filters[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="check"):
        train(given, CAREFUL)


def test_a_batch_larger_than_the_set() -> None:
    result = train(network(), replace(CAREFUL, batch_size=1000, epochs=2))
    assert result.history[-1]["sample_gradients"] >= COUNT
    assert result.history[-1]["objective"] < result.history[0]["objective"]


@contextmanager
def set_float32_precision(value: str) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = value
    try:
        yield
    finally:
        matmul.fp32_precision = before


def test_medium_precision_trains_and_the_settings_are_restored() -> None:
    with set_float32_precision("ieee"):
        result = train(network(), replace(CAREFUL, precision="medium"), regularization=0.05)
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        with pytest.raises(ValueError, match="channels"):
            train_supervised(network(), torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]), regularization=0.1)
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert not torch.is_autocast_enabled("cpu")
    exact = train(network(), replace(CAREFUL, precision="highest"), regularization=0.05)
    assert result.history[0]["objective"] == pytest.approx(exact.history[0]["objective"], rel=2e-2)
    assert result.history[-1]["objective"] == pytest.approx(exact.history[-1]["objective"], rel=2e-2)
    assert result.history[-1]["objective"] != exact.history[-1]["objective"]


@pytest.mark.parametrize(
    "changes", [{}, {"averaging": 0.8}, {"weights": "sgd", "closing_fit": True, "schedule": "cosine"}], ids=str
)
def test_the_last_weights_are_those_of_features_in_fp32(changes: dict[str, Any]) -> None:
    """Whatever the precision of training: W is the minimum for the features as those who use the model compute them."""
    recipe = replace(CAREFUL, solver_tolerance=1e-6, precision="medium", **{**SLOW_RATES, **changes})
    memory = Memory()
    result = train(network(), recipe, regularization=0.05, store=memory)
    images, labels = (part[:COUNT] for part in digits())
    scale = memory.states[-1].numbers["scale"]
    of_the_last_epoch = memory.states[-1].tensors["averaged_weights" if recipe.averaging else "weights"] * scale

    def slope(weights: Tensor) -> float:
        """Of the objective, relative to that at W = 0."""
        features = result.model.network(images).flatten(1).double().detach() * scale
        W = (weights.double() / scale).requires_grad_()
        sizes = []
        for point in (W, torch.zeros_like(W, requires_grad=True)):
            loss = SquaredHinge()(one_vs_all(labels, 10).double(), features @ point).sum() / COUNT
            objective = loss + 0.05 / 2 * point.square().sum()
            sizes.append(float(torch.autograd.grad(objective, point)[0].norm()))
        return sizes[0] / sizes[1]

    assert slope(result.model.weights) < 1e-5
    assert slope(of_the_last_epoch) > 1e-4  # for features in bf16


def test_features_that_fp32_alone_makes_infinite_end_the_training_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = LinearStep.fit

    def not_finite_in_fp32(*given: Any) -> Fit:
        found = fit(*given)
        return found if torch.is_autocast_enabled("cpu") else replace(found, linear=replace(found.linear, objective=math.nan))

    monkeypatch.setattr(LinearStep, "fit", not_finite_in_fp32)
    with pytest.raises(TrainingDivergedError, match="not finite in fp32"):
        train(network(), replace(CAREFUL, precision="medium", **SLOW_RATES))


# -- on a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz", "moving_frame"])
@pytest.mark.parametrize("weights", ["solver", "sgd"])
def test_a_gpu_trains_as_a_cpu_does(inverse_root: InverseRoot, weights: Any) -> None:
    """In fp32, while rounding has not yet led them apart; with the last batch smaller, augmentation and averages."""
    recipe = replace(
        CAREFUL,
        epochs=3,
        precision="highest",
        schedule="cosine",
        averaging=0.9,
        flip=True,
        shift=1,
        weights=weights,
        **SLOW_RATES,
    )
    histories = []
    for device in ("cpu", "cuda"):
        given = network(inverse_root=inverse_root, alpha=4.0).to(device)
        validation = digits()[0][1000:1200], digits()[1][1000:1200]
        result = train(given, recipe, validation=validation, regularization=0.1)
        assert result.model.weights.device.type == device
        histories.append(result.history)
    for on_cpu, on_gpu in zip(*histories, strict=True):
        assert on_gpu["objective"] == pytest.approx(on_cpu["objective"], rel=1e-3)
        assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], rel=1e-2)
        assert on_gpu["active_fraction"] == pytest.approx(on_cpu["active_fraction"], abs=0.05)
        assert on_gpu["accepted"] == on_cpu["accepted"]


@pytest.mark.gpu
def test_on_a_gpu_a_rejected_epoch_leaves_no_trace_and_an_interruption_neither() -> None:
    """The recorded step goes on with the tensors that were put back."""
    recipe = replace(QUICK, epochs=6, reactivation=0.0, averaging=0.9, precision="highest", **SLOW_RATES)
    memory = Memory()
    given = network(alpha=4.0, inverse_root="moving_frame").cuda()
    result = train(given, recipe, store=memory)
    accepted = [record["accepted"] for record in result.history]
    assert not all(accepted)
    assert sum(accepted) > 1
    for number in range(1, len(accepted)):
        before, after = memory.states[number - 1], memory.states[number]
        assert is_as_before(before, after) != accepted[number]
    halfway = Memory(states=memory.states[:4])
    resumed = train(network(alpha=4.0, inverse_root="moving_frame").cuda(), recipe, store=halfway)
    assert resumed.history[0]["epoch"] == 4
    assert resumed.history[0]["objective"] == pytest.approx(result.history[4]["objective"], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz"])
def test_on_a_gpu_each_step_has_dropout_of_its_own(inverse_root: InverseRoot) -> None:
    """Also where the step is recorded once and replayed: two replays at rate 0 see other losses of the same samples."""
    recipe = replace(CAREFUL, epochs=2, weights="sgd", schedule="constant", learning_rate=1e-9, weights_learning_rate=1e-9)
    recipe = replace(recipe, batch_size=COUNT, active_set=False, precision="highest")
    losses = [
        [record["loss"] for record in train(network(dropout=part, inverse_root=inverse_root).cuda(), recipe).history[:2]]
        for part in (0.0, 0.05)
    ]
    assert losses[0][1] == pytest.approx(losses[0][0], rel=1e-4)
    assert abs(losses[1][1] - losses[1][0]) > 1e-3 * losses[1][0]
