"""`sckn evaluate`, of classifiers and of upscalers."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from sckn.checkpoint import as_classifier, load
from sckn.commands.options import Device, Flag, MaybeDataset, MaybePath, MaybeWhole, chosen_device, print_json
from sckn.confusion import draw_confusion, evaluation_text
from sckn.evaluation import evaluate as evaluated
from sckn.superres.evaluation import evaluate_upscaling
from sckn.superres.upscaler import Upscaler
from sckn.training.experiment import read_dataset
from sckn.training.run_files import model_file

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Path,
    dataset: MaybeDataset = None,
    scale: MaybeWhole = None,
    json: Flag = False,
    picture: MaybePath = None,
    batch_size: MaybeWhole = None,
    device: Device = "auto",
) -> None:
    """Test a classifier (errors) or an upscaler (PSNR, SSIM).

    Example: sckn evaluate runs/cifar10-128 --data DIR

    Args:
        model: File, run folder (first seed), or name.
        data: Data set, or folder of photos.
        dataset: cifar10, cifar100, svhn, folder; else its own.
        scale: Factor for an upscaler, if not its own.
        json: Print JSON.
        picture: Draw the confusion matrix, as PNG, too.
        batch_size: Images at a time, of a classifier; else 256.
        device: auto takes a GPU if there is one.
    """
    if picture is not None and picture.suffix.lower() != ".png":
        raise ValueError(f"{picture} must be a PNG file; give a name that ends in .png")
    loaded = load(model_file(model), chosen_device(device))
    if isinstance(loaded, Upscaler):
        _refuse(f"{model} is an upscaler and knows no classes", dataset=dataset, picture=picture, batch_size=batch_size)
        _evaluate_upscaler(loaded, model, data, scale, json)
        return
    classifier = as_classifier(loaded, model)
    _refuse(f"{model} is a classifier and makes nothing larger", scale=scale)
    name = dataset or classifier.experiment.get("dataset")
    if name is None:
        raise ValueError(f"{model} does not tell which data set it was trained on; say with --dataset which to test it on")
    settings = {**classifier.experiment, "image_size": classifier.image_size, "extra": False}  # the test set has no extra part
    _, test = read_dataset(name, data, settings)
    evaluation = evaluated(classifier, test, 256 if batch_size is None else batch_size, progress=True)
    title = classifier.name or model
    if json:
        print_json({"model": model, "name": classifier.name, "dataset": name, **evaluation.to_dict()})
    else:
        print(f"{title} on {name}")
        print(evaluation_text(evaluation))
    if picture is not None:  # last: without matplotlib the figures are there all the same
        draw_confusion(evaluation, picture, title)


def _evaluate_upscaler(upscaler: Upscaler, model: str, folder: Path, scale: int | None, json: bool) -> None:
    factor = upscaler.scale if scale is None else scale
    evaluation = evaluate_upscaling(folder, factor, partial(upscaler.upscale_luminance, factor=factor))
    if json:
        print_json({"model": model, **evaluation.to_dict()})
    else:
        print(f"{model} at x{factor} on {folder}")
        print(evaluation.table())


def _refuse(reason: str, **options: object) -> None:
    """Options that were given and do not belong to what is done."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{reason}; leave out {' and '.join(given)}")
