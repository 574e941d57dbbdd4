"""Cross-fitting, against linear models of each half found apart."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_supervised import CAREFUL, COUNT, LAMBDA, TRAIN, Memory, digits, network, train
from torch import Tensor

from sckn.layer import evaluating
from sckn.linear import fit_linear, one_vs_all
from sckn.training.halves import Halves
from sckn.training.linear_step import LinearStep
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples

RECIPE = replace(CAREFUL, schedule="cosine", active_set=False, cross_fitting=True, solver_tolerance=1e-6)


def test_halves_are_equal_random_and_whole() -> None:
    halves, generator = Halves(101, torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    dealt = torch.stack([halves.deal(101, generator) for _ in range(400)])
    assert dealt.sum(dim=1).tolist() == [51] * 400
    often = dealt.double().mean(dim=0)  # each sample is in either half about as often: 0.5 with a deviation of 0.025
    assert (often - 0.5).abs().max() < 0.125
    together = (dealt[:, :1] == dealt[:, 1:]).double().mean(dim=0)  # and with any other about half of the time
    assert (together - 0.5).abs().max() < 0.125


def test_each_model_is_the_minimum_of_its_half() -> None:
    images, labels = digits()
    samples = Samples(images[:300], one_vs_all(labels[:300], 10))
    given = network()
    step = LinearStep(RECIPE, LAMBDA, 2.5)
    second = torch.arange(300) % 3 == 0
    fit = step.fit_halves(given, samples, None, second)
    assert fit.of_halves is not None
    found, sides = fit.of_halves
    assert torch.equal(sides, second)
    with torch.no_grad(), evaluating(given):
        features = given(samples.images).flatten(1) * 2.5
    for W, half in zip(found, (~second, second), strict=True):
        alone = fit_linear(features[half], samples.targets[half], LAMBDA, tolerance=1e-6)
        torch.testing.assert_close(W, alone.weights, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fit.linear.weights, found.mean(0))
    scores = features @ found.mean(0)
    assert fit.error == pytest.approx(100 * float((scores.argmax(1) != labels[:300]).double().mean()))
    loss = (torch.relu(1 - samples.targets * scores) ** 2).sum(1).mean()
    assert fit.loss == pytest.approx(float(loss), rel=1e-5)
    assert fit.linear.objective == pytest.approx(float(loss + LAMBDA / 2 * found.mean(0).square().sum()), rel=1e-5)


@pytest.mark.parametrize("epochs", [0, 2])
def test_the_last_model_is_the_minimum_for_all_samples(epochs: int) -> None:
    store = Memory()
    result = train(network(), replace(RECIPE, epochs=epochs), store=store)
    images, labels = digits()
    scale = store.states[-1].numbers["scale"]
    targets = one_vs_all(labels[:COUNT], 10)
    with torch.no_grad():
        features = result.model.network(images[:COUNT]).flatten(1) * scale
        W = result.model.weights / scale

    def objective(W: Tensor) -> float:
        return float((torch.relu(1 - targets * (features @ W)) ** 2).sum(1).mean() + LAMBDA / 2 * W.square().sum())

    least = objective(fit_linear(features, targets, LAMBDA, tolerance=1e-6).weights)
    assert objective(W) == pytest.approx(least, rel=1e-5)


def test_steps_see_new_halves_each_epoch() -> None:
    store = Memory()
    train(network(), replace(RECIPE, epochs=4), store=store)
    sides = [state.tensors["halves.second"] for state in store.states[:-1]]  # the last W is of all
    assert all(abs(int(side.sum()) - COUNT / 2) <= 0.5 for side in sides)
    assert all(not torch.equal(side, other) for side, other in pairwise(sides))
    for state in store.states[:-1]:
        torch.testing.assert_close(state.tensors["weights"], state.tensors["halves.weights"].mean(0))


@pytest.mark.slow
def test_few_images_are_not_learned_by_heart() -> None:
    """96 features, 200 digits: cross-fitting leaves a larger objective, and a smaller error on other digits."""
    recipe = Recipe(epochs=10, batch_size=20, learning_rate=0.01, schedule="cosine", active_set=False)
    objectives, errors = np.zeros((2, 3)), np.zeros((2, 3))
    for seed in range(3):
        held_out = tuple(part[TRAIN:] for part in digits(seed))
        for crossed in (0, 1):
            given = network(24, 200, seed)
            result = train(given, replace(recipe, cross_fitting=bool(crossed)), 200, seed, validation=held_out)
            objectives[crossed, seed] = result.history[-1]["objective"]
            errors[crossed, seed] = result.history[-1]["validation_error"]
    assert objectives[1].mean() > objectives[0].mean()
    assert errors[1].mean() < 0.95 * errors[0].mean()
