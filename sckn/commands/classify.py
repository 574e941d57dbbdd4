"""`sckn classify`."""

import io
import sys
from typing import Annotated

import tyro

from sckn.checkpoint import load_classifier
from sckn.classification import STANDARD_INPUT, classify_files
from sckn.commands.endings import fail
from sckn.commands.options import Device, Flag, chosen_device, print_json
from sckn.data.folder import printable
from sckn.image_files import FORMATS_IN_WORDS
from sckn.training.run_files import model_file

__all__ = ["classify"]

WANTED = f"give a whole image in {FORMATS_IN_WORDS}"


def classify(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...", help_behavior_hint="")],
    top: int = 3,
    json: Flag = False,
    device: Device = "auto",
) -> None:
    """Tell the best classes of images, with their scores.

    Example: sckn classify cifar10 photo.jpg

    Args:
        model: File, run folder (its first seed), or name.
        images: Files, folders, or - for standard input.
        top: How many classes to tell for each.
        json: Print JSON.
        device: auto takes a GPU if there is one.
    """
    if not images:
        raise ValueError("there are no images to classify; give files, folders, or - for standard input")
    if images.count(STANDARD_INPUT) > 1:
        raise ValueError("there is one image on standard input; give - once")
    classifier = load_classifier(model_file(model), chosen_device(device))
    answers, count, problems = [], 0, 0
    given = sys.stdin.buffer if STANDARD_INPUT in images and sys.stdin is not None else io.BytesIO()  # it may be closed
    for answer in classify_files(classifier, images, given, top=top):
        count += 1
        if json:
            answers.append(answer.to_dict())
        elif answer.problem is None:
            print(f"{printable(answer.image)}: {', '.join(f'{printable(name)} {score:.2f}' for name, score in answer.best)}")
        if answer.problem is not None:
            problems += 1
            print(f"sckn: {_name(answer.image)} cannot be read: {answer.problem}; {WANTED}", file=sys.stderr)
    if json:
        print_json({"model": model, "name": classifier.name, "images": answers})
    if problems and count > 1:
        sys.stdout.flush()  # what was found comes before what was not
        fail(f"{problems} of {count} images cannot be read")
    if problems:
        sys.exit(1)


def _name(image: str) -> str:
    return "the image on standard input" if image == STANDARD_INPUT else printable(image)
