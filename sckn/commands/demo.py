"""`sckn demo`."""

import shlex
import shutil
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

import tyro

from sckn.data.folder import printable
from sckn.demo.demonstration import DemoReport, run_demo
from sckn.demo.digits import CAVEAT
from sckn.demo.page import error_rows
from sckn.demo.photo import PHOTO, SCALE
from sckn.shipped import CLASSIFIER

__all__ = ["demo"]


def demo(output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="DIR")] = Path("sckn-demo")) -> None:
    """Classify a photo, make it larger, learn digits.

    Under a minute. Example: sckn demo

    Args:
        output: Folder for report.html, which shows it all.
    """
    started = perf_counter()
    report = run_demo(output, lambda sentence: print(sentence, flush=True))  # seen at once, also through a pipe
    print()
    if report.classes is not None:
        print(f"the photograph: {', '.join(f'{printable(name)} {score:.2f}' for name, score in report.classes)}")
    if report.upscaled is not None:
        ours, bicubic = report.upscaled.psnr, report.upscaled.bicubic_psnr
        print(f"made larger: PSNR {ours:.2f} dB, by bicubic interpolation {bicubic:.2f} dB")
    print("test error on digits")
    for name, error in error_rows(report.digits):
        print(f"  {error:5.2f} %  {name}")
    print(CAVEAT)
    print(f"\n{perf_counter() - started:.0f} seconds. All of it, with pictures: {printable(str(report.page))}")
    print("Next:")
    for words in _next_commands(report):
        print(f"  {shlex.join([_program(), *words])}")


def _next_commands(report: DemoReport) -> list[list[str]]:
    upscale = ["upscale", str(PHOTO), "-o", "large.png", "--scale", str(SCALE), "--fast"]
    return [
        ["classify", CLASSIFIER, str(PHOTO)],
        ["serve", "--port", "8080"] if report.upscaled is None else upscale,
        ["data", "cifar10", "--data", "data", "--download"],
    ]


def _program() -> str:
    """As it was called, where the shell would not find it by its name: `make demo` has it in .venv."""
    called = sys.argv[0]
    return called if Path(called).name == "sckn" and shutil.which("sckn") is None else "sckn"
