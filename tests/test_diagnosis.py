"""What is told of a training that went wrong, and that nothing is told of one that did not."""

from typing import Any

import pytest

from sckn.training.diagnosis import what_went_wrong
from sckn.training.recipe import Recipe

UNDONE = "epochs made the objective worse and were undone; lower learning_rate"


@pytest.mark.parametrize(
    ("objectives", "undone", "settings", "warning"),
    [
        ((1.0, 0.5, 0.4), (), {}, None),
        ((1.0, 2.0, 0.4), (1,), {}, None),
        ((1.0, 2.0, 3.0), (1, 2), {}, f"2 of 2 {UNDONE}"),
        ((1.0, 2.0, 0.4), (1,), {"schedule": "cosine"}, f"1 of 2 {UNDONE}"),
        ((1.0, 0.5, 2.5), (), {"schedule": "cosine"}, "the objective was 1 before the training and is 2.5 after it; lower"),
        ((1.0, 0.5, 2.5), (), {"schedule": "cosine", "solver_samples": 9, "loss": "square"}, None),
    ],
)
def test_what_went_wrong_is_told(objectives: Any, undone: Any, settings: dict[str, Any], warning: str | None) -> None:
    history = [{"epoch": n, "objective": each, "accepted": n not in undone} for n, each in enumerate(objectives)]
    told = what_went_wrong(history, Recipe(epochs=2, **settings))
    assert told is None if warning is None else str(told).startswith(warning)
