"""All parts of the demonstration, one after the other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sckn.demo.digits import DigitsReport, learn_digits
from sckn.demo.page import write_demo_page
from sckn.demo.photo import SCALE, UPSCALER, Classes, Upscaled, classify_photo, upscale_photo
from sckn.files import check_folder
from sckn.shipped import CLASSIFIER

__all__ = ["DemoReport", "run_demo"]

PAGE = "report.html"

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class DemoReport:
    """What was found, and the page that shows it; what a missing model would have found is None."""

    classes: Classes | None
    upscaled: Upscaled | None
    digits: DigitsReport
    page: Path


def run_demo(output: Path, say: Callable[[str], None], seed: int = 0) -> DemoReport:
    """Show all parts, and write OUTPUT/report.html; `say` is told what happens.

    A model that is missing or damaged is told, and does not hold up the rest.
    """
    output = Path(output)
    check_folder(output, "--output")
    if os.path.isdir(output / PAGE):
        raise ValueError(f"{output / PAGE} is a folder; choose another place for the report with --output")
    say(f"a photograph, classified by the model {CLASSIFIER} ...")
    classes = _if_possible(classify_photo, say)
    say(f"the photograph made {SCALE} times smaller, and larger again by the model {UPSCALER} ...")
    upscaled = _if_possible(upscale_photo, say)
    digits = learn_digits(say, seed)
    say("the report ...")
    return DemoReport(classes, upscaled, digits, write_demo_page(output / PAGE, classes, upscaled, digits))


def _if_possible(find: Callable[[], Found], say: Callable[[str], None]) -> Found | None:
    try:
        return find()
    except ValueError as error:
        say(f"this part is left out: {error}")
        return None
