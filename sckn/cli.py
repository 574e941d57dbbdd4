"""The program `sckn`: its commands, each of which is a function in `sckn/commands/`."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, Union

import tyro

from sckn.commands.classify import classify
from sckn.commands.data import data
from sckn.commands.demo import demo
from sckn.commands.endings import one_sentence
from sckn.commands.evaluate import evaluate
from sckn.commands.export import export
from sckn.commands.report import report
from sckn.commands.serve import serve
from sckn.commands.tables import tables
from sckn.commands.train import train
from sckn.commands.upscale import upscale
from sckn.version import __version__

__all__ = ["COMMANDS", "main"]

# In the order of the help. A command is what its function is: its name, its arguments, its docstring as help.
COMMANDS: tuple[Callable[..., None], ...] = (
    demo,
    data,
    train,
    report,
    evaluate,
    classify,
    upscale,
    export,
    serve,
    tables,
)


def main() -> None:
    """Entry point: what goes wrong is told in one sentence."""
    if sys.argv[1:] == ["--version"]:
        print(f"sckn {__version__}")
        return
    with one_sentence():
        _run_command()


def _run_command() -> None:
    overview = sys.argv[1:] in ([], ["-h"], ["--help"])
    choices = [
        # in the overview each has a line, in its own help all that its docstring says
        tyro.conf.subcommand(each.__name__, constructor=each, description=_first_line(each) if overview else None)
        for each in COMMANDS
    ]
    tyro.cli(
        Union[tuple(Annotated[Any, choice] for choice in choices)],  # noqa: UP007  # pyright: ignore
        prog="sckn",
        description="Supervised convolutional kernel networks. Example: sckn demo (or --version)",
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _first_line(command: Callable[..., None]) -> str:
    return (command.__doc__ or "").splitlines()[0]
