"""The report of a run for people: one HTML file with all pictures inside, which needs nothing else.

It is made from the files of the run folder, so that it can be made again without the data; only the patches to which filters
respond come from the training images, and are kept as pictures in the run folder.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sckn.checkpoint import UNREADABLE, load_classifier
from sckn.confusion import MISTAKES_SHOWN, MOST_CLASSES_SHOWN
from sckn.data.labelled import LabelledImages
from sckn.evaluation import Evaluation
from sckn.files import remove_leftovers, written_whole
from sckn.image_grid import filter_tiles, image_grid
from sckn.plotting import MissingPackageError
from sckn.training.curves import draw_curves
from sckn.training.runs import EVALUATION, RunFolder, find_classifier, read_json
from sckn.training.strongest import StrongestPatches, strongest_patches

__all__ = ["write_report"]

IMAGES_SEARCHED = 500  # spread over the training set
PATCHES = "strongest-patches"

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem } img { max-width: 100% }
table { border-collapse: collapse } td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } .settings td { text-align: left; font-family: monospace }
.wide { overflow-x: auto } .hint { color: #666 }
"""


def write_report(run: Path, train: LabelledImages | None = None, device: torch.device | str = "cpu") -> Path:
    """Write RUN/report.html from what the run folder holds; what is not there yet is left out.

    With the training set the patches to which filters respond most are found anew.
    """
    run = Path(run)
    if not (run / "config.json").is_file():
        raise ValueError(f"{run} is no run folder; expected one that sckn train has made, with its config.json")
    config = read_json(run / "config.json")
    name = str(config.get("name", run.resolve().name))
    parts = [f"<h1>{escape(name)}</h1>", *_figures(run), *_curves(run), *_confusion(run), *_filters(run, train, device)]
    parts += [*_settings(config), *_environment(run)]
    page = "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title><style>{STYLE}</style></head><body>',
            *parts,
            "</body></html>",
        ]
    )
    path = run / "report.html"
    remove_leftovers(path)
    with written_whole(path) as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    return path


# -- figures ----------------------------------------------------------------------------------------------------------


def _figures(run: Path) -> list[str]:
    path = run / "report.json"
    if not path.is_file():
        return ["<p>The training has not come to its end yet.</p>"]
    try:
        return _figures_of_seeds(read_json(path, list))
    except UNREADABLE as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it, and go on with sckn train --resume") from None


def _figures_of_seeds(seeds: list[dict[str, Any]]) -> list[str]:
    head = ["seed", "test error", "training error", "validation error", "lambda", "epochs", "minutes"]
    rows, choices = [], []
    for seed in seeds:
        exponent, validation = seed["lambda_exponent"], seed["validation_errors"]
        errors = [seed["test_error"], seed["train_error"], validation.get(str(exponent))]
        minutes = sum(seed["seconds"].values()) / 60
        rows.append([seed["seed"], *map(_percent, errors), f"2^{exponent}/n", seed["epochs"], f"{minutes:.1f}"])
        if validation:  # lambda is chosen with the first seed
            choices.append([f"seed {seed['seed']}", *map(_percent, validation.values())])
    parts = ["<h2>Figures</h2>", _table(head, rows)]
    if choices:
        exponents = [f"2^{exponent}/n" for exponent in seeds[0]["validation_errors"]]
        parts += ["<h2>Validation error of each lambda</h2>", _table(["", *exponents], choices)]
    return parts


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"


def _confusion(run: Path) -> list[str]:
    classifier = find_classifier(run)
    if classifier is None or not (classifier.parent / EVALUATION).is_file():
        return []
    path = classifier.parent / EVALUATION
    try:
        evaluation = Evaluation.from_dict(read_json(path))
    except UNREADABLE as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it, and go on with sckn train --resume") from None
    (low, high), seed = evaluation.interval, classifier.parents[1].name
    sentence = (
        f"{seed}: {evaluation.wrong:,} of {evaluation.images:,} test images are wrong, {evaluation.error:.2f} %; "
        f"the 95 % interval is {low:.2f} to {high:.2f} %."
    )
    return ["<h2>Confusion on the test set</h2>", f"<p>{escape(sentence)}</p>", _confusion_table(evaluation)]


def _confusion_table(evaluation: Evaluation) -> str:
    if len(evaluation.classes) > MOST_CLASSES_SHOWN:
        return _table(["class", "taken for", "images"], evaluation.confusions(MISTAKES_SHOWN))
    totals = np.maximum(evaluation.confusion.sum(axis=1), 1)
    lines = ["<div class=wide><table><tr><th>class</th>", *(f"<th>{escape(name)}</th>" for name in evaluation.classes)]
    lines.append("<th>error</th></tr>")
    for name, row, total, error in zip(evaluation.classes, evaluation.confusion, totals, evaluation.class_errors, strict=True):
        cells = [f'<td style="background:rgba(30,100,200,{0.7 * number / total:.3f})">{number}</td>' for number in row]
        lines.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}<td>{_percent(error)}</td></tr>")
    return "".join([*lines, "</table></div>"])


# -- pictures ---------------------------------------------------------------------------------------------------------


def _curves(run: Path) -> list[str]:
    """Of the final training of each seed, or where there is none yet, of those for the choice of lambda."""
    trainings = sorted(run.glob("seed-*/final")) or sorted(run.glob("seed-*/lambda-*"))
    parts = []
    for training in trainings:
        title, path = f"{training.parent.name}, {training.name}", training / "curves.png"
        try:
            history = RunFolder(training, {}).history()
            if not path.is_file() and history:
                draw_curves(history, path, training.name)
        except MissingPackageError as error:
            parts.append(f"<p class=hint>{escape(title)}: {escape(str(error))}; then sckn report adds them here.</p>")
        if path.is_file():
            parts.append(_picture(path.read_bytes(), f"Learning curves of {title}"))
    return ["<h2>Learning curves</h2>", *parts] if parts else []


def _filters(run: Path, train: LabelledImages | None, device: torch.device | str) -> list[str]:
    path = find_classifier(run)
    if path is None:
        return []
    classifier = load_classifier(path, device)
    first = classifier.model.network.kernel_layers[0].filters.detach().float().cpu().numpy()
    parts = ["<h2>Filters of the first layer</h2>"]
    if first.shape[2] == 1:
        parts.append("<p>Its patches are single pixels.</p>")
    parts.append(_picture(image_grid(filter_tiles(first, columns=min(len(first), 32)), zoom=8), "Filters, grey is zero"))
    if len(classifier.model.network.kernel_layers) == 1:
        return parts
    folder = path.parent / PATCHES
    if train is not None:
        places = np.unique(np.linspace(0, len(train.images) - 1, IMAGES_SEARCHED).round().astype(int))
        _keep_patches(folder, strongest_patches(classifier, train.images[places]))
    parts.append("<h2>Patches to which filters of the upper layers respond most</h2>")
    pictures = sorted(folder.glob("layer-[0-9][0-9].png"))
    if not pictures:
        return [*parts, "<p class=hint>They come from the training images: sckn report RUN --data DIR adds them.</p>"]
    parts.append("<p>Each row is a filter; each patch is about as large as what the filter sees of an image.</p>")
    return [
        *parts,
        *(_picture(picture.read_bytes(), f"Layer {int(picture.stem.removeprefix('layer-'))}") for picture in pictures),
    ]


def _keep_patches(folder: Path, found: Sequence[StrongestPatches]) -> None:
    for layer in found:
        path = folder / f"layer-{layer.layer:02d}.png"
        zoom = max(1, round(40 / layer.patches.shape[-1]))
        with suppress(FileNotFoundError):
            remove_leftovers(path)
        with written_whole(path) as temporary:
            temporary.write_bytes(image_grid(layer.patches, zoom))


def _picture(content: bytes, caption: str) -> str:
    data, text = base64.b64encode(content).decode(), escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings(config: dict[str, Any]) -> list[str]:
    rows = [(name, json.dumps(value)) for name, value in _leaves(config, "")]
    return ["<h2>Settings</h2>", _table(["setting", "value"], rows, "settings")]


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
    path = run / "environment.json"
    if not path.is_file():
        return []
    environment = read_json(path)
    rows = [("code", environment.get("code_version")), ("started", environment.get("started"))]
    rows += list(environment.get("machine", {}).items())
    return ["<h2>Code and machine</h2>", _table(["", ""], [(name, "-" if value is None else value) for name, value in rows])]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], style: str = "") -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"] if any(head) else []
    lines += ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class=wide><table class="{style}">' + "\n".join(lines) + "</table></div>"
