"""The card of a model: what it is, what it was trained on and how, what it reached, and what it is not for."""

from collections.abc import Mapping
from typing import Any

from sckn.classifier import ImageClassifier
from sckn.evaluation import Evaluation

__all__ = ["model_card"]

DATA = {
    "cifar10": "CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in 10 classes",
    "cifar100": "CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in 100 classes",
    "svhn": "SVHN (Netzer et al., 2011): house numbers, digits of 32 x 32 pixels in 10 classes",
    "folder": "a folder of images",
}


def model_card(name: str, classifier: ImageClassifier, evaluation: Evaluation, result: Mapping[str, Any], size: int) -> str:
    """Markdown to lie beside the weights.

    `evaluation` is that of the file that is handed out, which may be rounded; `result` is the committed one of its training,
    with all seeds; `size` is that of the file in bytes.
    """
    if classifier.name != result.get("name"):
        raise ValueError(
            f"the model comes from the experiment {classifier.name!r}, but the result is that of {result.get('name')!r}"
        )
    config, (low, high) = result["config"], evaluation.interval
    data, side = DATA.get(result["dataset"], result["dataset"]), classifier.image_size
    machine = result["machine"].get("accelerator") or "a CPU"
    parts = [
        f"# {name}",
        f"A supervised convolutional kernel network for images of {len(classifier.classes)} classes: "
        f"{', '.join(classifier.classes)}.",
        f"```python\nimport sckn\nclassifier = sckn.load({name!r})\n"
        "scores = classifier.predict(images)  # (n, c, h, w) in bytes, or from 0 to 1\n```",
        f"or `sckn classify {name} IMAGE...`. The file has {size / 1e6:.1f} MB.",
        "## Data",
        f"{data}. {_preparation(classifier)} {_augmentation(config.get('recipe') or {})}",
        "## Recipe",
        f"{_network(config['network'])} `experiments/{result['name']}.toml` has all settings; `{result['command']}` trains it, "
        f"{_duration(result['seconds'])} on {machine} for {_seeds(result)}. It chooses lambda on "
        f"{100 * config['validation']:.0f} % of the training set, held out, and looks at the test set once, at the end.",
        "## Figures",
        f"This file: test error {evaluation.error:.2f} %, {evaluation.wrong:,} of {evaluation.images:,} images wrong; the 95 % "
        f"interval is {low:.2f} to {high:.2f} %. The training, {_seeds(result)}: {_mean(result)} "
        f"(`results/{result['name']}.json`).",
        _class_errors(evaluation),
        "## Limits",
        "It knows the classes above and nothing else: any image gets one of them. Images are shrunk or enlarged to "
        f"{side} x {side} pixels, so that what is small in a photograph is lost. Scores order the classes; they are no "
        "probabilities. For images unlike those of the data set the figures do not hold.",
        "## Licence",
        "The weights are under the BSD 3-Clause licence, as sckn is. The images of the data set belong to their authors.",
    ]
    return "\n\n".join(parts) + "\n"


def _preparation(classifier: ImageClassifier) -> str:
    power = classifier.preparation.whitening_power
    return (
        f"Images are whitened locally (power {power:g}), which the model does itself." if power else "Images are not whitened."
    )


def _augmentation(recipe: Mapping[str, Any]) -> str:
    moves = ["mirrored"] * bool(recipe.get("flip")) + [f"shifted by up to {recipe.get('shift')} pixels"] * bool(
        recipe.get("shift")
    )
    return f"In training they are {' and '.join(moves)} at random." if moves else "There is no augmentation."


def _network(network: Mapping[str, Any]) -> str:
    layers = network["layers"]
    return f"{len(layers)} layers of {', '.join(str(layer['filters']) for layer in layers)} filters."


def _seeds(result: Mapping[str, Any]) -> str:
    count = len(result["seeds"])
    return "one seed" if count == 1 else f"{count} seeds"


def _mean(result: Mapping[str, Any]) -> str:
    spread = "" if result.get("deviation") is None else f" ± {result['deviation']:.2f}"
    return f"{result['test_error']:.2f}{spread} %"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"


def _class_errors(evaluation: Evaluation) -> str:
    lines = ["| class | error (%) |", "| --- | ---: |"]
    for name, error in zip(evaluation.classes, evaluation.class_errors, strict=True):
        lines.append(f"| {name} | {'-' if error is None else f'{error:.2f}'} |")
    return "\n".join(lines)
