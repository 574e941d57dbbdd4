"""What the reports of all kinds of runs have in common: one HTML file with all pictures inside, which needs nothing else."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sckn.confusion import MISTAKES_SHOWN, MOST_CLASSES_SHOWN
from sckn.evaluation import Evaluation
from sckn.extras import MissingPackageError
from sckn.files import remove_leftovers, written_whole
from sckn.image_grid import filter_tiles, image_grid
from sckn.network import CKN
from sckn.training.curves import draw_curves
from sckn.training.run_files import CONFIG, CURVES, ENVIRONMENT, read_history, read_json

__all__ = [
    "MADE_AGAIN",
    "confusion",
    "first_filters",
    "hint",
    "keep_file",
    "learning_curves",
    "percent",
    "picture",
    "read_config",
    "table",
    "write_page",
    "write_run_page",
]

# What to do about a file of figures that cannot be read.
MADE_AGAIN = "remove it, and go on with sckn train --resume"

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem } img { max-width: 100% }
table { border-collapse: collapse } td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } .settings td { text-align: left; font-family: monospace }
.wide { overflow-x: auto } .hint { color: #666 }
"""


def read_config(run: Path) -> dict[str, Any]:
    """The settings of a run, by which a folder is known for one."""
    if not (run / CONFIG).is_file():
        raise ValueError(f"{run} is no run folder; expected one that sckn train has made, with its {CONFIG}")
    return read_json(run / CONFIG)


def write_run_page(run: Path, config: Mapping[str, Any], parts: Sequence[str]) -> Path:
    """RUN/report.html: the name, these parts, settings, code and machine."""
    name = str(config.get("name", run.resolve().name))
    return write_page(run / "report.html", name, [*parts, *_settings(config), *_environment(run)])


def write_page(path: Path, title: str, parts: Sequence[str]) -> Path:
    """A page of its title and these parts, whole or not at all."""
    page = "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>",
        ]
    )
    keep_file(path, (page + "\n").encode())
    return path


def learning_curves(trainings: Mapping[str, Path]) -> list[str]:
    """Of the trainings in these folders, by title; they are drawn where they are missing."""
    parts = []
    for title, training in trainings.items():
        path = training / CURVES
        try:
            history = read_history(training)
            if not path.is_file() and history:
                draw_curves(history, path, training.resolve().name)
        except MissingPackageError as error:
            parts.append(hint(f"{title}: {error}; then sckn report adds them here."))
        if path.is_file():
            parts.append(picture(path.read_bytes(), f"Learning curves of {title}"))
    return ["<h2>Learning curves</h2>", *parts] if parts else []


def first_filters(network: CKN) -> list[str]:
    """Those of the first layer, which are small images."""
    filters = network.kernel_layers[0].filters.detach().float().cpu().numpy()
    tiles = image_grid(filter_tiles(filters, columns=min(len(filters), 32)), zoom=8)
    note = ["<p>Its patches are single pixels.</p>"] if filters.shape[2] == 1 else []
    return ["<h2>Filters of the first layer</h2>", *note, picture(tiles, "Filters, grey is zero")]


def confusion(evaluation: Evaluation, whose: str) -> list[str]:
    """How many test images are wrong, and which classes are taken for which; `whose` these answers are comes first."""
    low, high = evaluation.interval
    sentence = (
        f"{whose}: {evaluation.wrong:,} of {evaluation.images:,} test images are wrong, {evaluation.error:.2f} %; "
        f"the 95 % interval is {low:.2f} to {high:.2f} %."
    )
    return ["<h2>Confusion on the test set</h2>", f"<p>{escape(sentence)}</p>", _confusion_table(evaluation)]


def _confusion_table(evaluation: Evaluation) -> str:
    if len(evaluation.classes) > MOST_CLASSES_SHOWN:
        return table(["class", "taken for", "images"], evaluation.confusions(MISTAKES_SHOWN))
    totals = np.maximum(evaluation.confusion.sum(axis=1), 1)
    lines = ["<div class=wide><table><tr><th>class</th>", *(f"<th>{escape(name)}</th>" for name in evaluation.classes)]
    lines.append("<th>error</th></tr>")
    for name, row, total, error in zip(evaluation.classes, evaluation.confusion, totals, evaluation.class_errors, strict=True):
        cells = [f'<td style="background:rgba(30,100,200,{0.7 * number / total:.3f})">{number}</td>' for number in row]
        lines.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}<td>{percent(error)}</td></tr>")
    return "".join([*lines, "</table></div>"])


def percent(value: float | None) -> str:
    """A number of percent, or a dash where there is none."""
    return "-" if value is None else f"{value:.2f} %"


def hint(sentence: str) -> str:
    """A sentence on what is not here."""
    return f"<p class=hint>{escape(sentence)}</p>"


def keep_file(path: Path, content: bytes) -> None:
    """Whole or not at all: the page itself, or a PNG in the run folder, from which it can be made again."""
    with suppress(FileNotFoundError):
        remove_leftovers(path)
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


def picture(content: bytes, caption: str) -> str:
    """A PNG inside the page, with a line below it."""
    data, text = base64.b64encode(content).decode(), escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], style: str = "") -> str:
    """Rows of anything that is text, below a head unless that is empty."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"] if any(head) else []
    lines += ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class=wide><table class="{style}">' + "\n".join(lines) + "</table></div>"


def _settings(config: Mapping[str, Any]) -> list[str]:
    rows = [(name, json.dumps(value)) for name, value in _leaves(config, "")]
    return ["<h2>Settings</h2>", table(["setting", "value"], rows, "settings")]


def _leaves(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    """Name and value of each setting, those inside tables and lists of tables included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value, 1):
            yield from _leaves(item, f"{name}[{number}]")
    else:
        yield name, value


def _environment(run: Path) -> list[str]:
    path = run / ENVIRONMENT
    if not path.is_file():
        return []
    environment = read_json(path)
    rows = [("code", environment.get("code_version")), ("started", environment.get("started"))]
    rows += list(environment.get("machine", {}).items())
    return ["<h2>Code and machine</h2>", table(["", ""], [(name, "-" if value is None else value) for name, value in rows])]
