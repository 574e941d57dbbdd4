"""The course of a training as a picture."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sckn.files import written_whole
from sckn.plotting import figure_and_canvas
from sckn.training.state import EpochRecord

__all__ = ["draw_curves"]


def draw_curves(records: Iterable[EpochRecord], path: Path, title: str) -> Path:
    """One PNG over the epochs: objective and errors, below them learning rate and active samples.

    Epochs that were undone are marked by vertical lines, and no curve runs through what they found. Values that are None
    or not finite, or not positive on a logarithmic scale, are left out.
    """
    records, path = list(records), Path(path)
    if not records:
        raise ValueError(f"there are no epochs to draw in {path}; train for one epoch or more")
    figure, canvas = figure_and_canvas("curves", figsize=(10, 6.5))
    (objective, errors), (rate, active) = figure.subplots(2, 2, sharex=True)
    for axes in (objective, rate):
        axes.set_yscale("log")
    accepted = [record for record in records if record["accepted"]]
    _plot(objective, accepted, "objective", "objective", "tab:blue")
    _plot(errors, accepted, "train_error", "training", "tab:blue")
    _plot(errors, accepted, "validation_error", "validation", "tab:orange")
    _plot(rate, records, "learning_rate", "learning rate", "tab:blue")
    _plot(active, records, "active_fraction", "active samples", "tab:blue")
    objective.set(ylabel="objective")
    errors.set(ylabel="error")
    rate.set(ylabel="learning rate", xlabel="epoch")
    active.set(ylabel="part of the samples that is active", ylim=(0, 1.05), xlabel="epoch")
    undone = [record["epoch"] for record in records if not record["accepted"]]
    for axes in (objective, errors, rate, active):
        for number, epoch in enumerate(undone):
            label = None if number else "epoch undone"
            axes.axvline(epoch, color="tab:red", linestyle=":", linewidth=1, alpha=0.6, label=label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (objective, errors):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.suptitle(title, parse_math=False)
    with written_whole(path) as temporary:
        canvas.print_png(temporary)
    return path


def _plot(axes: Any, records: Sequence[EpochRecord], name: str, label: str, colour: str) -> None:
    points = [(record["epoch"], record.get(name)) for record in records]
    points = [(epoch, value) for epoch, value in points if value is not None and math.isfinite(value)]
    if axes.get_yscale() == "log":
        points = [(epoch, value) for epoch, value in points if value > 0]
    if points:
        # dots, or a single epoch would not be seen
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=2.5, linewidth=1.2, label=label)
