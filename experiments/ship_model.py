"""Make a model that ships with sckn out of a finished run: its file, with filters in half precision, and its card.

    python experiments/ship_model.py cifar10 runs/cifar10-128 results/cifar10-128.json DATA
    python experiments/ship_model.py superres-x2 runs/superres-x2 results/superres-x2.json FOLDER

The card's figures are those of the file itself: a classifier's on the test set of DATA, an upscaler's on Set5, Set14 and Kodak
in FOLDER. Without FOLDER an upscaler's are those of the result, to which experiments/score_superres.py has added them. A name
that belongs into the package goes there, any other into models/ of the repository.
"""

from pathlib import Path
from typing import Annotated, Any

import tyro

from sckn.checkpoint import as_classifier, load, save
from sckn.evaluation import evaluate
from sckn.files import written_whole
from sckn.modelcard import classifier_card, upscaler_card
from sckn.results import read_result
from sckn.shipped import IN_PACKAGE, IN_REPOSITORY, PACKAGED
from sckn.superres.scores import score_upscaler
from sckn.superres.upscaler import Upscaler
from sckn.training.experiment import read_dataset
from sckn.training.run_files import CONFIG, find_model, read_json


def ship(
    name: str,
    run: Path,
    result: Path,
    data: Annotated[Path | None, tyro.conf.Positional] = None,
    folder: Path | None = None,
    device: str = "cpu",
) -> Path:
    """Write NAME.safetensors and NAME.md.

    Args:
        name: Of the model.
        run: Run folder of sckn train; a classifier is that of its first seed.
        result: JSON file of the run.
        data: Folder of the data set, or for an upscaler of the test sets.
        folder: Where to, instead of the usual places.
        device: Where to compute.
    """
    trained = find_model(run)
    if trained is None:
        raise SystemExit(f"{run} has no finished model")
    folder = folder or (IN_PACKAGE if name in PACKAGED else IN_REPOSITORY)
    path = folder / f"{name}.safetensors"
    with written_whole(path) as temporary, written_whole(folder / f"{name}.md") as card:  # nothing without a card
        save(load(trained), temporary, half=True)
        card.write_text(_card(name, temporary, run, read_result(result), data, device))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, and its card")
    return path


def _card(name: str, file: Path, run: Path, result: dict[str, Any], data: Path | None, device: str) -> str:
    model, size = load(file, device), file.stat().st_size
    if isinstance(model, Upscaler):
        if result.get("config") != read_json(run / CONFIG):
            raise SystemExit(f"the result is of other settings than {run}; write it with sckn train --resume")
        return upscaler_card(name, model, None if data is None else score_upscaler(model, data), result, size)
    if data is None:
        raise SystemExit(f"{run} holds a classifier, whose figures are measured on its data set; give the folder of it")
    classifier = as_classifier(model, str(run))
    _, test = read_dataset(classifier.experiment["dataset"], data, classifier.experiment)
    return classifier_card(name, classifier, evaluate(classifier, test, progress=True), result, size)


if __name__ == "__main__":
    tyro.cli(tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(ship))
