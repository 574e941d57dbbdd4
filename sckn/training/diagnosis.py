"""What the figures of a training say of how it went."""

from collections.abc import Sequence

from sckn.training.recipe import Recipe
from sckn.training.state import EpochRecord

__all__ = ["what_went_wrong"]


def what_went_wrong(history: Sequence[EpochRecord], recipe: Recipe) -> str | None:
    """A warning, where more epochs were undone than back-tracking is meant to (all, or any with another schedule), or where the
    model is worse at the end than before the first epoch. `history` has the records of the whole training."""
    undone = sum(not record["accepted"] for record in history)
    kept = [record for record in history if record["accepted"]]
    if undone and (recipe.schedule != "halving" or undone == recipe.epochs):
        what = f"{undone} of {recipe.epochs} epochs made the objective worse and were undone"
    elif kept and recipe.solver_samples is None and kept[-1]["objective"] > kept[0]["objective"]:
        # with some of the samples alone, the first objective is that of others than the last one
        what = f"the objective was {kept[0]['objective']:.3g} before the training and is {kept[-1]['objective']:.3g} after it"
    else:
        return None
    return f"{what}; lower learning_rate in the recipe, or give it more epochs"
