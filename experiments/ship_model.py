"""Make a model that ships with sckn out of a finished run: its weights in half precision, and its card beside them.

    python experiments/ship_model.py cifar10 runs/cifar10-128 results/cifar10-128.json DATA

The card's figures are those of the file itself, on the test set. A name that belongs into the package goes there, any other
into models/ of the repository.
"""

from pathlib import Path

import tyro

from sckn.checkpoint import load_classifier, save
from sckn.evaluation import evaluate
from sckn.files import written_whole
from sckn.modelcard import model_card
from sckn.shipped import IN_PACKAGE, IN_REPOSITORY
from sckn.training.experiment import read_dataset
from sckn.training.runs import find_classifier, read_json

PACKAGED = ("cifar10",)


def ship(name: str, run: Path, result: Path, data: Path, folder: Path | None = None, device: str = "cpu") -> Path:
    """Write NAME.safetensors and NAME.md.

    Args:
        name: Of the model.
        run: Run folder of sckn train; the model is that of its first seed.
        result: JSON file of the run.
        data: Folder of the data set.
        folder: Where to, instead of the usual places.
        device: Where to compute.
    """
    trained = find_classifier(run)
    if trained is None:
        raise SystemExit(f"{run} has no finished model")
    folder = folder or (IN_PACKAGE if name in PACKAGED else IN_REPOSITORY)
    path = save(load_classifier(trained), folder / f"{name}.safetensors", half=True)
    classifier = load_classifier(path, device)
    _, test = read_dataset(classifier.experiment["dataset"], data, classifier.experiment)
    card = model_card(name, classifier, evaluate(classifier, test, progress=True), read_json(result), path.stat().st_size)
    with written_whole(folder / f"{name}.md") as temporary:
        temporary.write_text(card)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, and its card")
    return path


if __name__ == "__main__":
    tyro.cli(tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(ship))
