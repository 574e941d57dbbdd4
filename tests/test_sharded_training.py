"""Two real processes train as one does: same trajectory, and the same filters in both to the last bit."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_processes import team
from test_supervised import Memory, digits, network
from torch import Tensor

from sckn.inverse_root import InverseRoot
from sckn.processes import ALONE, Processes
from sckn.training.recipe import Recipe
from sckn.training.state import TrainingState
from sckn.training.supervised import train_supervised

COUNT = 81  # odd: the shares are unequal

# Five epochs; the last batch of an epoch without an active set has 1 sample, so that one process has none.
BASE = Recipe(epochs=5, batch_size=20, learning_rate=0.01, solver_tolerance=1e-10)
AUGMENTED = replace(BASE, flip=True, shift=1, schedule="cosine", learning_rate=0.002, averaging=0.9)
BY_SGD = replace(
    AUGMENTED, flip=False, shift=0, averaging=0, weights="sgd", weights_learning_rate=1e-4, alpha_learning_rate=1e-4
)

KINDS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "paper": (BASE, {}),
    "augmented and averaged": (AUGMENTED, {}),
    "W by SGD": (BY_SGD, {"alpha": 4.0}),
    "moving frame, all active": (replace(BY_SGD, active_set=False), {"inverse_root": "moving_frame"}),
    "preconditioned": (replace(BASE, preconditioner=1.0, learning_rate=0.002), {}),
    "from uphill": (replace(BASE, sharpness=0.1, active_set=False), {}),
    "halves": (replace(BASE, cross_fitting=True, active_set=False, schedule="cosine", learning_rate=0.002), {}),
    "orthogonal": (replace(BASE, orthogonal=True, learning_rate=0.01, clip=0.01, schedule="cosine"), {"alpha": 4.0}),
    "pixels": (replace(BASE, loss="square", learning_rate=0.05), {}),
}


def trained(
    processes: Processes, recipe: Recipe, settings: dict[str, Any], state: TrainingState | None = None
) -> tuple[list[dict[str, Any]], dict[str, Tensor], list[TrainingState]]:
    """The records, the model and the states that the first process kept; from the same filters everywhere."""
    images, labels = digits()
    targets = labels[:COUNT]
    if recipe.loss == "square":
        targets = torch.nn.functional.avg_pool2d(images[:COUNT], 4) ** 2
    given = network(**settings).double()
    store = Memory([] if state is None else [state])
    share = processes.share
    result = train_supervised(
        given,
        images[:COUNT].double()[share],
        targets[share],
        regularization=0.1 / COUNT,
        recipe=recipe,
        validation=None if recipe.loss == "square" else (images[1000:1101].double()[share], labels[1000:1101][share]),
        store=store if processes.first else None,
        processes=processes,
        progress=False,
    )
    model = {name: value.clone() for name, value in result.model.state_dict().items()}
    return result.history, model, store.states


FIGURES = ("objective", "loss", "train_error", "validation_error", "active_fraction", "learning_rate", "sample_gradients")


def assert_same_trajectory(found: list[dict[str, Any]], expected: list[dict[str, Any]], rel: float = 1e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one["epoch"], one["accepted"]) == (other["epoch"], other["accepted"])
        for name in FIGURES:
            same = one[name] is None if other[name] is None else one[name] == pytest.approx(other[name], rel=rel, nan_ok=True)
            assert same, (name, one["epoch"], one[name], other[name])


QUICKLY_TESTED = ("W by SGD", "pixels")  # elsewhere two processes exchange thousands of messages to find W


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICKLY_TESTED else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_two_processes_train_as_one(kind: str) -> None:
    recipe, settings = KINDS[kind]
    history, model, states = trained(ALONE, recipe, settings)
    outcomes = team(2).run(trained, recipe, settings)
    for found, found_model, _ in outcomes:
        assert_same_trajectory(found, history)
        for name, value in model.items():
            torch.testing.assert_close(found_model[name], value, rtol=1e-4, atol=1e-5)
    for name, value in outcomes[0][1].items():
        assert torch.equal(value, outcomes[1][1][name]), name
    if kind == "paper":
        assert not all(record["accepted"] for record in history)
        assert history[-1]["active_fraction"] < 1
    # the first process keeps the states, with the flags of all samples; the other none
    assert len(outcomes[0][2]) == len(states) == 6
    assert outcomes[1][2] == []
    for found_state, state in zip(outcomes[0][2], states, strict=True):
        for name in {"active", "halves.second"} & set(state.tensors):
            assert torch.equal(found_state.tensors[name], state.tensors[name])
        assert torch.equal(found_state.tensors["generator"], state.tensors["generator"])


@pytest.mark.slow
def test_one_process_goes_on_where_two_were_and_the_other_way_round() -> None:
    recipe, settings = KINDS["paper"]
    history, _, states = trained(ALONE, recipe, settings)
    outcomes = team(2).run(trained, recipe, settings, states[2])
    for found, _, _ in outcomes:
        assert [record["epoch"] for record in found] == [3, 4, 5]
        assert_same_trajectory(found, history[3:])
    found, _, _ = trained(ALONE, recipe, settings, outcomes[0][2][1])
    assert_same_trajectory(found, history[4:])


@contextmanager
def nothing_is_said() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def diverging(processes: Processes, weights: Any, inverse_root: InverseRoot) -> str:
    """How the training ends; filters are NaN after the first steps, and a process may have no sample in the next."""
    recipe = replace(BASE, weights=weights, learning_rate=1e200, batch_size=1, epochs=20, schedule="constant", active_set=False)
    images, labels = digits()
    share = processes.share
    told = pytest.warns(RuntimeWarning, match="undone") if processes.first else nothing_is_said()
    with told, pytest.raises(ValueError, match="training diverges") as error:
        train_supervised(
            network(inverse_root=inverse_root).double(),
            images[:11].double()[share],
            labels[:11][share],
            regularization=0.1,
            recipe=recipe,
            processes=processes,
            progress=False,
        )
    return str(error.value)


@pytest.mark.parametrize(("weights", "inverse_root"), [("solver", "eigh"), ("sgd", "newton_schulz")])
def test_all_processes_see_a_divergence_at_the_same_time(weights: str, inverse_root: InverseRoot) -> None:
    messages = team(2).run(diverging, weights, inverse_root)
    assert messages[0] == messages[1]
    assert math.isnan(float(messages[0].split("the objective was ")[1].split()[0]))


def with_more_classes(processes: Processes) -> int:
    """The outputs of the model, where only one process has an image of the last class."""
    images, _ = digits()
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 2, 0])
    result = train_supervised(
        network().double(),
        images[:9].double()[processes.share],
        labels[processes.share],
        regularization=0.1,
        recipe=replace(BASE, epochs=1),
        processes=processes,
        progress=False,
    )
    return result.model.weights.shape[1]


def test_all_processes_know_all_classes() -> None:
    assert team(2).run(with_more_classes) == [3, 3]
