"""What commands have in common: kinds of options, where to compute, JSON as output."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from sckn.data.catalog import DatasetName

__all__ = [
    "Device",
    "Flag",
    "MaybeDataset",
    "MaybeNumber",
    "MaybePath",
    "MaybeText",
    "MaybeWhole",
    "chosen_device",
    "print_json",
]


def _given_as(kind: type, metavar: str, choices: tuple[str, ...] | None = None) -> PrimitiveConstructorSpec[Any]:
    """How an option is read that is left out rather than given as None, a word that tyro would take and tell of."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


Device = Literal["auto", "cpu", "cuda"]
# What may be left out says so in its own words; "(default: None)" and "(default: False)" would only make the help longer.
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
MaybeDataset = Annotated[
    DatasetName | None, _given_as(str, "NAME", get_args(DatasetName)), tyro.conf.arg(help_behavior_hint="")
]
MaybePath = Annotated[Path | None, _given_as(Path, "PATH"), tyro.conf.arg(help_behavior_hint="")]
MaybeText = Annotated[str | None, _given_as(str, "STR"), tyro.conf.arg(help_behavior_hint="")]
MaybeWhole = Annotated[int | None, _given_as(int, "INT"), tyro.conf.arg(help_behavior_hint="")]
MaybeNumber = Annotated[float | None, _given_as(float, "FLOAT"), tyro.conf.arg(help_behavior_hint="")]


def chosen_device(name: Device) -> torch.device:
    """What --device says."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def print_json(content: object) -> None:
    """On one line, for programs."""
    print(json.dumps(content, allow_nan=False))
