"""Learning curves as SVG inside a page: the demonstration has them without matplotlib, from the package alone."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from sckn.training.state import EpochRecord

__all__ = ["learning_curves"]

WIDTH, HEIGHT = 400, 240
LEFT, TOP, RIGHT, BOTTOM = 48, 28, 12, 36  # margins, in which titles and numbers are
COLOURS = ("#1f77b4", "#ff7f0e")
TICKS = 4

Points = Sequence[tuple[int, float]]  # epoch and value


def learning_curves(history: Sequence[EpochRecord]) -> str:
    """Objective and errors over the epochs; those that were undone are left out."""
    kept = [record for record in history if record["accepted"]]

    def values(name: str) -> Points:
        found = [(record["epoch"], record.get(name)) for record in kept]
        return [(epoch, value) for epoch, value in found if value is not None and math.isfinite(value)]

    errors = {"training": values("train_error"), "validation": values("validation_error")}
    panels = [_panel("objective", {"": values("objective")}), _panel("error (%)", errors)]
    return f'<div class="wide">{"".join(panels)}</div>'


def _panel(title: str, curves: Mapping[str, Points]) -> str:
    """One pair of axes, from 0 up and from the first epoch on; names of curves are at the right of the title."""
    epochs = [epoch for points in curves.values() for epoch, _ in points] or [0]
    first, last = min(epochs), max(max(epochs), min(epochs) + 1)
    highest = max((value for points in curves.values() for _, value in points), default=0.0) or 1.0

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - first) / (last - first)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest

    parts = [_text(LEFT, TOP - 12, title, "start")]
    for tick in range(TICKS + 1):
        value = highest * tick / TICKS
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:.3g}", "end"))
    parts += [_text(x(epoch), HEIGHT - BOTTOM + 18, str(epoch), "middle") for epoch in (first, last)]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "epoch", "middle"))
    for number, (name, points) in enumerate(curves.items()):
        line = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[number]}" stroke-width="1.5"/>')
        parts.append(_text(WIDTH - RIGHT - 80 * (len(curves) - 1 - number), TOP - 12, name, "end", COLOURS[number]))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}" font-size="12">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
