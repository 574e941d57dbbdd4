"""What commands have in common: kinds of options, where to compute, JSON as output."""

import json
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

__all__ = ["Device", "Flag", "MaybeNumber", "MaybePath", "MaybeText", "MaybeWhole", "chosen_device", "print_json"]

Device = Literal["auto", "cpu", "cuda"]
# What may be left out says so in its own words; "(default: None)" and "(default: False)" would only make the help longer.
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
MaybePath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
MaybeText = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")]
MaybeWhole = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
MaybeNumber = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


def chosen_device(name: Device) -> torch.device:
    """What --device says."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def print_json(content: object) -> None:
    """On one line, for programs."""
    print(json.dumps(content, allow_nan=False))
