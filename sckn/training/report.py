"""The report of a training with labels, for people.

It is made from the files of the run folder, so that it can be made again without the data; only the patches to which filters
respond come from the training images, and are kept as pictures in the run folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sckn.checkpoint import load_classifier
from sckn.data.labelled import LabelledImages
from sckn.evaluation import Evaluation
from sckn.image_grid import image_grid
from sckn.training.report_parts import (
    MADE_AGAIN,
    confusion,
    first_filters,
    hint,
    keep_file,
    learning_curves,
    percent,
    picture,
    read_config,
    table,
    write_run_page,
)
from sckn.training.run_files import EVALUATION, FIGURES, find_classifier, read_json
from sckn.training.strongest import StrongestPatches, strongest_patches

__all__ = ["write_report"]

IMAGES_SEARCHED = 500  # spread over the training set
PATCHES = "strongest-patches"


def write_report(run: Path, train: LabelledImages | None = None, device: torch.device | str = "cpu") -> Path:
    """Write RUN/report.html from what the run folder holds; what is not there yet is left out.

    With the training set the patches to which filters respond most are found anew.
    """
    run = Path(run)
    config = read_config(run)
    return write_run_page(run, config, [*_figures(run), *_curves(run), *_confusion(run), *_filters(run, train, device)])


# -- figures ----------------------------------------------------------------------------------------------------------


def _figures(run: Path) -> list[str]:
    path = run / FIGURES
    if not path.is_file():
        return ["<p>The training has not come to its end yet.</p>"]
    return read_json(path, list, into=_figures_of_seeds, remedy=MADE_AGAIN)


def _figures_of_seeds(seeds: list[dict[str, Any]]) -> list[str]:
    head = ["seed", "test error", "training error", "validation error", "lambda", "epochs", "minutes"]
    rows, choices = [], []
    for seed in seeds:
        exponent, validation = seed["lambda_exponent"], seed["validation_errors"]
        errors = [seed["test_error"], seed["train_error"], validation.get(str(exponent))]
        minutes = sum(seed["seconds"].values()) / 60
        rows.append([seed["seed"], *map(percent, errors), f"2^{exponent}/n", seed["epochs"], f"{minutes:.1f}"])
        if validation:  # lambda is chosen with the first seed
            choices.append([f"seed {seed['seed']}", *map(percent, validation.values())])
    parts = ["<h2>Figures</h2>", table(head, rows)]
    if choices:
        exponents = [f"2^{exponent}/n" for exponent in seeds[0]["validation_errors"]]
        parts += ["<h2>Validation error of each lambda</h2>", table(["", *exponents], choices)]
    return parts


def _confusion(run: Path) -> list[str]:
    classifier = find_classifier(run)
    if classifier is None or not (classifier.parent / EVALUATION).is_file():
        return []
    path = classifier.parent / EVALUATION
    evaluation = read_json(path, into=Evaluation.from_dict, remedy=MADE_AGAIN)
    return confusion(evaluation, classifier.parents[1].name)


# -- pictures ---------------------------------------------------------------------------------------------------------


def _curves(run: Path) -> list[str]:
    """Of the final training of each seed, or where there is none yet, of those for the choice of lambda."""
    trainings = sorted(run.glob("seed-*/final")) or sorted(run.glob("seed-*/lambda-*"))
    return learning_curves({f"{training.parent.name}, {training.name}": training for training in trainings})


def _filters(run: Path, train: LabelledImages | None, device: torch.device | str) -> list[str]:
    path = find_classifier(run)
    if path is None:
        return []
    classifier = load_classifier(path, device)
    parts = first_filters(classifier.model.network)
    if len(classifier.model.network.kernel_layers) == 1:
        return parts
    folder = path.parent / PATCHES
    if train is not None:
        places = np.unique(np.linspace(0, len(train.images) - 1, IMAGES_SEARCHED).round().astype(int))
        _keep_patches(folder, strongest_patches(classifier, train.images[places]))
    parts.append("<h2>Patches to which filters of the upper layers respond most</h2>")
    pictures = sorted(folder.glob("layer-[0-9][0-9].png"))
    if not pictures:
        return [*parts, hint("They come from the training images: sckn report RUN --data DIR adds them.")]
    parts.append("<p>Each row is a filter; each patch is about as large as what the filter sees of an image.</p>")
    return [
        *parts,
        *(picture(file.read_bytes(), f"Layer {int(file.stem.removeprefix('layer-'))}") for file in pictures),
    ]


def _keep_patches(folder: Path, found: Sequence[StrongestPatches]) -> None:
    for layer in found:
        path = folder / f"layer-{layer.layer:02d}.png"
        zoom = max(1, round(40 / layer.patches.shape[-1]))
        keep_file(path, image_grid(layer.patches, zoom))
