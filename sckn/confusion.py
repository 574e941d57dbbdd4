"""An evaluation for people: as text, and the confusion matrix as a picture."""

from pathlib import Path

import numpy as np

from sckn.data.folder import printable
from sckn.evaluation import Evaluation
from sckn.files import written_whole
from sckn.plotting import figure_and_canvas

__all__ = ["MOST_CLASSES_SHOWN", "draw_confusion", "evaluation_text"]

MOST_CLASSES_SHOWN = 20  # a larger matrix is no longer read; the most frequent mistakes are
WIDEST = 160  # letters in a line
MISTAKES_SHOWN = 20


def evaluation_text(evaluation: Evaluation) -> str:
    """Error, errors of the classes, confusion matrix or most frequent mistakes, in lines for a terminal."""
    low, high = evaluation.interval
    lines = [
        f"test error {evaluation.error:.2f} %, 95 % interval {low:.2f} to {high:.2f} %: "
        f"{evaluation.wrong:,} of {evaluation.images:,} images wrong",
        "",
    ]
    names = [printable(name) for name in evaluation.classes]
    width = max(map(len, [*names, "taken for"]))
    lines.append(f"{'class':{width}}    error   images")
    for name, error, count in zip(names, evaluation.class_errors, evaluation.confusion.sum(axis=1), strict=True):
        lines.append(f"{name:{width}} {'-':>6}  " if error is None else f"{name:{width}} {error:6.2f} %")
        lines[-1] += f" {count:8,}"
    lines.append("")
    cell = 1 + max(_letters(names), len(str(evaluation.confusion.max())))
    if len(names) > MOST_CLASSES_SHOWN or width + cell * len(names) > WIDEST:
        lines.append("most frequent mistakes")
        for name, answer, count in evaluation.confusions(MISTAKES_SHOWN):
            lines.append(f"{count:8,}  {printable(name)} taken for {printable(answer)}")
        return "\n".join(lines)
    lines.append("taken for".rjust(width) + "".join(f"{name[: cell - 1]:>{cell}}" for name in names))
    for name, row in zip(names, evaluation.confusion, strict=True):
        lines.append(f"{name:{width}}" + "".join(f"{count or '.':>{cell}}" for count in row))
    return "\n".join(lines)


def _letters(names: list[str], least: int = 5) -> int:
    """How many of each name tell it from the others."""
    longest = max(least, *map(len, names))
    return next((count for count in range(least, longest) if len({name[:count] for name in names}) == len(names)), longest)


def draw_confusion(evaluation: Evaluation, path: Path, title: str) -> Path:
    """The confusion matrix as a PNG: each row in percent of its class, and in numbers where there are few classes."""
    path, count = Path(path), len(evaluation.classes)
    side = min(4 + 0.5 * count, 16)
    figure, canvas = figure_and_canvas("the confusion matrix", figsize=(side, side))
    axes = figure.subplots()
    totals = evaluation.confusion.sum(axis=1, keepdims=True)
    percent = 100 * evaluation.confusion / np.maximum(totals, 1)
    image = axes.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    if count <= MOST_CLASSES_SHOWN:
        for (row, column), number in np.ndenumerate(evaluation.confusion):
            colour = "white" if percent[row, column] > 50 else "black"
            axes.text(column, row, str(number) if number else "", ha="center", va="center", color=colour, fontsize=8)
    names = [printable(name) for name in evaluation.classes]
    size = 9 if count <= MOST_CLASSES_SHOWN else 5
    axes.set_xticks(range(count), names, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(count), names, fontsize=size, parse_math=False)
    axes.set(xlabel="taken for", ylabel="class")
    figure.colorbar(image, ax=axes, shrink=0.7, label="percent of the class")
    axes.set_title(title, parse_math=False)
    with written_whole(path) as temporary:
        canvas.print_png(temporary)
    return path
