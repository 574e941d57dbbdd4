"""What commands have in common: where to compute, the file of a model, JSON as output."""

import json
from pathlib import Path
from typing import Literal

import torch

from sckn.checkpoint import CheckpointError
from sckn.shipped import SHIPPED, find_shipped
from sckn.training.runs import find_model

__all__ = ["Device", "chosen_device", "model_file", "print_json"]

Device = Literal["auto", "cpu", "cuda"]


def chosen_device(name: Device) -> torch.device:
    """What --device says."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def model_file(source: str) -> str | Path:
    """Of a file, name, or run folder; a folder of a name that sckn knows may be one of data, and is passed over."""
    path = Path(source)
    if not path.is_dir() or source in SHIPPED or find_shipped(source):
        return source
    found = find_model(path)
    if found is None:
        raise CheckpointError(
            f"{source} holds no finished training; expected the run folder of a training with labels, "
            "which sckn train --resume brings to its end"
        )
    return found


def print_json(content: object) -> None:
    """On one line, for programs."""
    print(json.dumps(content, allow_nan=False))
