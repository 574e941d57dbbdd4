"""The settings of a training, and its learning rates in closed form."""

import math
from typing import Any, get_args

import numpy as np
import pytest

from sckn.losses import Logistic, Square, SquaredHinge
from sckn.training.recipe import Recipe, Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("halving", [1, 1, 1, 1, 1]),
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
    ],
)
def test_the_rate_falls_as_the_schedule_says(schedule: Schedule, expected: list[float]) -> None:
    recipe = Recipe(schedule=schedule)
    assert [recipe.rate(quarter / 4) for quarter in range(5)] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_first_rises(schedule: Any) -> None:
    """Over the first two of eight epochs, as a part of what it would be."""
    warm, cold = Recipe(epochs=8, schedule=schedule, warmup=2), Recipe(epochs=8, schedule=schedule)
    ratios = [warm.rate(epoch / 8) / cold.rate(epoch / 8) for epoch in range(8)]
    assert ratios == pytest.approx([0, 0.5, 1, 1, 1, 1, 1, 1], abs=1e-15)


def test_every_schedule_is_tested_above() -> None:
    assert set(get_args(Schedule)) == {"halving", "constant", "linear", "cosine"}


def test_the_paper_is_the_default() -> None:
    recipe = Recipe()
    assert (recipe.schedule, recipe.weights, recipe.loss, recipe.active_set) == ("halving", "solver", "squared_hinge", True)
    assert (recipe.epochs, recipe.batch_size, recipe.momentum, recipe.reactivation) == (100, 128, 0.9, 0.1)
    assert not recipe.flip
    assert not recipe.shift
    assert not recipe.averaging
    assert recipe.preconditioner is None


@pytest.mark.parametrize(
    ("name", "loss", "classifies"),
    [("squared_hinge", SquaredHinge(), True), ("logistic", Logistic(), True), ("square", Square(), False)],
)
def test_losses_have_names(name: Any, loss: object, classifies: bool) -> None:
    recipe = Recipe(loss=name)
    assert recipe.loss_function == loss
    assert recipe.classifies == classifies


def test_a_table_and_back() -> None:
    recipe = Recipe(epochs=7, learning_rate=0.25, schedule="cosine", flip=True, preconditioner=1.0, precision="medium")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert Recipe.from_dict({}) == Recipe()
    assert Recipe.from_dict({"shift": 3}).shift == 3


def test_numbers_of_numpy_become_plain() -> None:
    recipe = Recipe(epochs=np.int64(3), learning_rate=np.float32(0.5), flip=np.bool_(True))  # pyright: ignore[reportArgumentType]
    assert (type(recipe.epochs), type(recipe.learning_rate), type(recipe.flip)) == (int, float, bool)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": -1}, "epochs must be a whole number of at least 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"learning_rate": 0}, "learning_rate must be a number above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be a number above 0"),
        ({"momentum": 1}, "momentum must be a number of at least 0 and below 1"),
        ({"schedule": "step"}, "schedule must be 'halving' or 'constant' or 'linear' or 'cosine', got 'step'"),
        ({"loss": "hinge"}, "loss must be 'squared_hinge'"),
        ({"weights": "adam"}, "weights must be 'solver' or 'sgd'"),
        ({"solver": "newton"}, "solver must be 'lbfgs' or 'miso'"),
        ({"solver_tolerance": 0}, "solver_tolerance must be"),
        ({"solver_samples": 0, "loss": "square", "schedule": "cosine"}, "solver_samples must be a whole number of at least 1"),
        ({"solver_samples": 5, "schedule": "cosine"}, 'solver_samples needs loss = "square"'),
        ({"solver_samples": 5, "loss": "square"}, 'and another schedule than "halving"'),
        ({"weights_learning_rate": -1}, "weights_learning_rate must be"),
        ({"alpha_learning_rate": 0}, "alpha_learning_rate must be"),
        ({"active_set": "yes"}, "active_set must be true or false"),
        ({"reactivation": 1.5}, "reactivation must be"),
        ({"sharpness": -0.1}, "sharpness must be a number of at least 0"),
        ({"cross_fitting": True}, "cross_fitting needs weights = 'solver', solver = 'lbfgs', active_set = False and another"),
        ({"cross_fitting": True, "active_set": False}, 'another schedule than "halving"'),
        (
            {"cross_fitting": True, "active_set": False, "schedule": "cosine", "loss": "square"},
            'cross_fitting is for classification, not for loss = "square"',
        ),
        ({"averaging": 1}, "averaging must be a number of at least 0 and below 1"),
        ({"flip": 1}, "flip must be true or false"),
        ({"shift": 1.5}, "shift must be a whole number of at least 0"),
        ({"preconditioner": 0}, "preconditioner must be a number above 0"),
        ({"orthogonal": 1}, "orthogonal must be"),
        ({"orthogonal": True, "preconditioner": 1.0}, "orthogonal steps need no preconditioner"),
        ({"feature_norm": 0}, "feature_norm must be a number above 0"),
        ({"precision": "fp32"}, "precision must be 'highest' or 'high' or 'medium'"),
        ({"lr": 1, "batch": 2}, "unknown settings: batch, lr; the settings are active_set, "),
        ([("epochs", 3)], "a recipe is a table of settings"),
    ],
)
def test_a_wrong_setting_is_named(setting: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict(setting)


def test_bounds_that_are_allowed() -> None:
    recipe = Recipe(epochs=0, reactivation=1, momentum=0, averaging=0)
    assert (recipe.epochs, recipe.reactivation, recipe.momentum, recipe.averaging) == (0, 1.0, 0.0, 0.0)
