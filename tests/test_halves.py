"""Cross-fitting, against linear models of each half found apart."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_supervised import CAREFUL, COUNT, LAMBDA, TRAIN, Memory, digits, nan_fit_at, network, train
from torch import Tensor

from sckn.linear import fit_linear, one_vs_all
from sckn.training.halves import Halves
from sckn.training.linear_step import LinearStep
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples
from sckn.training.supervised import train_supervised

RECIPE = replace(CAREFUL, schedule="cosine", active_set=False, cross_fitting=True, solver_tolerance=1e-6)


def test_halves_are_equal_random_and_whole() -> None:
    halves, generator = Halves(101, torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    dealt = torch.stack([halves.deal(101, generator).clone() for _ in range(400)])
    assert dealt.sum(dim=1).tolist() == [51] * 400
    often = dealt.double().mean(dim=0)  # each sample is in either half about as often: 0.5 with a deviation of 0.025
    assert (often - 0.5).abs().max() < 0.125
    together = (dealt[:, :1] == dealt[:, 1:]).double().mean(dim=0)  # and with any other about half of the time
    assert (together - 0.5).abs().max() < 0.125


def objective(features: Tensor, targets: Tensor, W: Tensor) -> float:
    return float((torch.relu(1 - targets * (features @ W)) ** 2).sum(1).mean() + LAMBDA / 2 * W.square().sum())


def least(features: Tensor, targets: Tensor) -> float:
    return objective(features, targets, fit_linear(features, targets, LAMBDA, tolerance=1e-6).weights)


def test_each_model_is_the_minimum_of_its_samples_in_every_epoch() -> None:
    """W for all, and one for each half, at the filters that the epoch ended with; halves are new each time."""
    store = Memory()
    images, labels = digits()
    targets = one_vs_all(labels[:COUNT], 10)
    result = train(network(), replace(RECIPE, epochs=3), store=store)
    assert len(store.states) == 4
    for state in store.states:
        given = network()
        given.load_state_dict({name[8:]: value for name, value in state.tensors.items() if name.startswith("network.")})
        with torch.no_grad():
            features = given.eval()(images[:COUNT]).flatten(1) * state.numbers["scale"]
        second = state.tensors["halves.second"]
        first_W, second_W = state.tensors["halves.weights"]
        for W, part in ((first_W, ~second), (second_W, second), (state.tensors["weights"], second | ~second)):
            assert objective(features[part], targets[part], W) == pytest.approx(least(features[part], targets[part]), rel=1e-5)
            assert objective(features, targets, W) >= least(features, targets) * (1 - 1e-5)
        assert abs(int(second.sum()) - COUNT / 2) <= 0.5
    sides = [state.tensors["halves.second"] for state in store.states]
    assert all(not torch.equal(side, other) for side, other in pairwise(sides))
    torch.testing.assert_close(
        result.model.weights.detach(), store.states[-1].tensors["weights"] * store.states[-1].numbers["scale"]
    )


def test_an_epoch_that_is_undone_leaves_the_halves_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    nan_fit_at({2}, monkeypatch)
    store = Memory()
    with pytest.warns(RuntimeWarning, match="the epoch is undone"):
        history = train(network(), replace(RECIPE, epochs=3), store=store).history
    assert [record["accepted"] for record in history] == [True, True, False, True]
    for name in ("halves.weights", "halves.second", "weights"):
        before, after, later = (state.tensors[name] for state in store.states[1:])
        assert torch.equal(before, after)
        assert not torch.equal(after, later)


def test_a_half_does_not_remember_the_other() -> None:
    """Its model is the same whatever the search for W of all started from."""
    images, labels = digits()
    samples, given = Samples(images[:300], one_vs_all(labels[:300], 10)), network()
    step, second = LinearStep(replace(RECIPE, solver_tolerance=1e-1), LAMBDA, 2.5), torch.arange(300) % 3 == 0
    fresh = step.fit(given, samples, None, second)
    again = step.fit(given, samples, replace(fresh.linear, weights=torch.randn_like(fresh.linear.weights)), second)
    assert fresh.of_halves is not None
    assert again.of_halves is not None
    assert torch.equal(fresh.of_halves, again.of_halves)
    assert not torch.equal(fresh.linear.weights, again.linear.weights)


def test_pixels_are_refused() -> None:
    images, _ = digits()
    with pytest.raises(ValueError, match="cross_fitting is for targets of whole images, not of their pixels"):
        train_supervised(network(), images[:10], torch.ones(10, 1, 2, 2), regularization=0.1, recipe=RECIPE, progress=False)


@pytest.mark.slow
def test_few_images_are_not_learned_by_heart() -> None:
    """96 features, 200 digits: the error on other digits is smaller by more than a twentieth."""
    recipe = Recipe(epochs=10, batch_size=20, learning_rate=0.01, schedule="cosine", active_set=False)
    errors = np.zeros((2, 3))
    for seed in range(3):
        held_out = tuple(part[TRAIN:] for part in digits(seed))
        for crossed in (0, 1):
            given = network(24, 200, seed)
            result = train(given, replace(recipe, cross_fitting=bool(crossed)), 200, seed, validation=held_out)
            errors[crossed, seed] = result.history[-1]["validation_error"]
    assert errors[1].mean() < 0.95 * errors[0].mean()
