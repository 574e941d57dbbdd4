"""All parts of the demonstration, one after the other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sckn.demo.digits import DigitsReport, learn_digits
from sckn.demo.page import write_demo_page
from sckn.demo.photo import SCALE, UPSCALER, Classes, Upscaled, classify_photo, upscale_photo
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
    _check_folder(output)
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


def _check_folder(output: Path) -> None:
    """Before the work, not after it; the folder itself is made when there is something to put into it."""
    there = next(folder for folder in (output, *output.absolute().parents) if os.path.lexists(folder))
    if not os.path.isdir(there):
        raise ValueError(f"{there} is not a folder; choose another place for the report with --output")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"nothing may be written into {there}; choose another folder for the report with --output")
    if os.path.isdir(output / PAGE):
        raise ValueError(f"{output / PAGE} is a folder; choose another place for the report with --output")
