"""The card of a model: what it is, what it was trained on and how, what it reached, and what it is not for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sckn.classifier import ImageClassifier
from sckn.evaluation import Evaluation
from sckn.superres.scores import SCORE_COLUMNS, score_rows
from sckn.superres.upscaler import Upscaler

__all__ = ["classifier_card", "upscaler_card"]

DATA = {
    "cifar10": "CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in 10 classes",
    "cifar100": "CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in 100 classes",
    "svhn": "SVHN (Netzer et al., 2011): house numbers, digits of 32 x 32 pixels in 10 classes",
    "folder": "a folder of images",
    "bsds500": "BSDS500 (Arbelaez et al., 2011): 500 photographs of 481 x 321 pixels, less one that a test set shows",
}
LICENCE = "The weights are under the BSD 3-Clause licence, as sckn is. The images of the data set belong to their authors."


def classifier_card(
    name: str, classifier: ImageClassifier, evaluation: Evaluation, result: Mapping[str, Any], size: int
) -> str:
    """Markdown to lie beside the weights.

    `evaluation` is that of the file that is handed out, which may be rounded; `result` is the committed one of its training,
    with all seeds; `size` is that of the file in bytes.
    """
    if classifier.name != result.get("name"):
        raise ValueError(
            f"the model comes from the experiment {classifier.name!r}, but the result is that of {result.get('name')!r}"
        )
    config, (low, high), side = result["config"], evaluation.interval, classifier.image_size
    return _card(
        name,
        f"A supervised convolutional kernel network for images of {len(classifier.classes)} classes: "
        f"{', '.join(classifier.classes)}.",
        [
            f'```python\nimport sckn\n\nclassifier = sckn.load("{name}")\n'
            "scores = classifier.predict(images)  # (n, c, h, w) in bytes, or from 0 to 1\n```",
            f"or `sckn classify {name} IMAGE...`. {_size(size)}",
        ],
        data=f"{_data(result)}. {_preparation(classifier)} {_augmentation(config.get('recipe') or {})}",
        recipe=f"{_training(result)} {_choice(config)}The test set is looked at once, at the end.",
        figures=[
            f"This file: test error {evaluation.error:.2f} %, {evaluation.wrong:,} of {evaluation.images:,} images wrong; the "
            f"95 % interval is {low:.2f} to {high:.2f} %. The training, {_seeds(result)}: {_mean(result)} "
            f"(`results/{result['name']}.json`).",
            _class_errors(evaluation),
        ],
        limits="It knows the classes above and nothing else: any image gets one of them. Images are shrunk or enlarged to "
        f"{side} x {side} pixels, so that what is small in a photograph is lost. Scores order the classes; they are no "
        "probabilities. For images unlike those of the data set the figures do not hold.",
    )


def upscaler_card(name: str, upscaler: Upscaler, scores: Mapping[str, Any] | None, result: Mapping[str, Any], size: int) -> str:
    """Markdown to lie beside the weights.

    `scores` are those of the file that is handed out, which may be rounded (`score_upscaler`), or None; then those of the
    training are told, from `result`, which experiments/score_superres.py has added to it.
    """
    if scores is None and "psnr" not in result:
        raise ValueError(
            f"results/{result.get('name')}.json has no figures on the test sets yet; add them with "
            "experiments/score_superres.py, or give the folder that holds the sets"
        )
    config, scale = result["config"], upscaler.scale
    shown, origin = (result, f"(`results/{result['name']}.json`)") if scores is None else (scores, "of this file")
    twice = ["At x3, by using it twice and making the result smaller:", _score_table(shown["x3"])] if "x3" in shown else []
    seen = "the small image" if upscaler.config.low_resolution else "the image that bicubic interpolation gives"
    return _card(
        name,
        f"A supervised convolutional kernel network that makes photographs {scale} times larger. It works on {seen} and adds "
        "what interpolation lost; made smaller again by bicubic interpolation, the result is the small photograph.",
        [
            f'```python\nimport sckn\n\nupscaler = sckn.load("{name}")\n'
            "large = upscaler.upscale(image)  # of numpy, Pillow or torch\n```",
            f"or `sckn upscale PHOTO... -o OUT --model {name}`. {_size(size)}",
        ],
        data=f"{_data(result)}. It learned from {_lessons(config)}{result['photos']} of them, {config['samples']:,} patches of "
        f"{config['patch']} x {config['patch']} pixels an epoch{_drawing(config)}; {config['validation_photos'] or 'none'} "
        "were held out.",
        recipe=" ".join([_training(result), f"The square loss, {config['recipe']['epochs']} epochs.", *_beginning(config)]),
        figures=[
            f"Of luminance, by the protocol of the paper's tables, the mean of each set's images, {origin}:",
            _score_table(shown),
            *twice,
            *_held_out(result),
        ],
        limits="It learned from photographs that bicubic interpolation had made smaller, and from nothing else: noise, blur "
        "and blocks of JPEG in a small photograph stay, and may be seen better than before. Colours are interpolated. What the "
        "small photograph does not show, such as letters or faces of a few pixels, is not brought back: the result is no "
        "evidence of what was there.",
    )


def _card(name: str, what: str, use: Sequence[str], *, data: str, recipe: str, figures: Sequence[str], limits: str) -> str:
    parts = [f"# {name}", what, *use, "## Data", data, "## Recipe", recipe, "## Figures", *figures]
    return "\n\n".join([*parts, "## Limits", limits, "## Licence", LICENCE]) + "\n"


def _size(size: int) -> str:
    return f"The file has {size / 1e6:.1f} MB."


def _data(result: Mapping[str, Any]) -> str:
    return DATA.get(result["dataset"], str(result["dataset"]))


def _training(result: Mapping[str, Any]) -> str:
    machine = result["machine"].get("accelerator") or "a CPU"
    return (
        f"{_network(result['config']['network'])} `experiments/{result['name']}.toml` has all settings; `{result['command']}` "
        f"trains it, {_duration(_training_seconds(result))} on {machine} for {_seeds(result)}."
    )


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
    filters = [str(layer["filters"]) for layer in network["layers"]]
    shown = filters[:1] if len(set(filters)) == 1 else filters
    return f"{len(filters)} layer{'s' * (len(filters) > 1)} of {', '.join(shown)} filters."


def _beginning(config: Mapping[str, Any]) -> list[str]:
    """What the training of an upscaler began with, if not with k-means; an experiment is part of the training, and its time."""
    start = config.get("start")
    if isinstance(start, dict):
        first = f"{start['recipe']['epochs']} epochs of `{start['name']}`, {_network(start['network'])}"
        return [f"It began with a network that was trained first, in that time, too: {first}"]
    return [f"It began with the filters of `{start}`, whose own training is not in that time."] if start else []


def _lessons(config: Mapping[str, Any]) -> str:
    teacher = config.get("teacher")
    return f"what `{teacher}` makes of " if teacher else ""


def _drawing(config: Mapping[str, Any]) -> str:
    ways = ["drawn by their contrast"] * bool(config.get("contrast_power"))
    ways += ["with the grid of small pixels in every place"] * bool(config.get("every_shift"))
    return "".join(f", {way}" for way in ways)


def _seeds(result: Mapping[str, Any]) -> str:
    count = len(result["seeds"])
    return "one seed" if count == 1 else f"{count} seeds"


def _mean(result: Mapping[str, Any]) -> str:
    spread = "" if result.get("deviation") is None else f" ± {result['deviation']:.2f}"
    return f"{result['test_error']:.2f}{spread} %"


def _choice(config: Mapping[str, Any]) -> str:
    """What `sckn train` finds on a part of the training set."""
    chosen = ["lambda"] if len(config["lambda_exponents"]) > 1 else []
    if (config.get("recipe") or {}).get("schedule") in ("halving", "constant"):
        chosen.append("the number of epochs")
    if not chosen:
        return ""
    return f"It chooses {' and '.join(chosen)} on {100 * config['validation']:.0f} % of the training set, held out. "


def _training_seconds(result: Mapping[str, Any]) -> float:
    """Without preparation and test, which may have been made on another machine."""
    runs = [run["seconds"] for run in result.get("runs", [])]
    return sum(run["choice of lambda"] + run["final training"] for run in runs) if runs else result["seconds"]


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"


def _score_table(figures: Mapping[str, Any]) -> str:
    return _table(SCORE_COLUMNS, score_rows(figures))


def _held_out(result: Mapping[str, Any]) -> list[str]:
    ours, plain = result["validation"], result["bicubic"]
    if ours is None or plain is None:
        return []
    return [
        f"On the photographs held out, at the end of the training: PSNR {ours['psnr']:.2f} (bicubic {plain['psnr']:.2f}), "
        f"SSIM {ours['ssim']:.4f} (bicubic {plain['ssim']:.4f})."
    ]


def _class_errors(evaluation: Evaluation) -> str:
    errors = ("-" if error is None else f"{error:.2f}" for error in evaluation.class_errors)
    return _table(("class", "error (%)"), zip(evaluation.classes, errors, strict=True))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
