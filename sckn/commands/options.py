"""What commands have in common: where to compute, JSON as output."""

import json
from typing import Literal

import torch

__all__ = ["Device", "chosen_device", "print_json"]

Device = Literal["auto", "cpu", "cuda"]


def chosen_device(name: Device) -> torch.device:
    """What --device says."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def print_json(content: object) -> None:
    """On one line, for programs."""
    print(json.dumps(content, allow_nan=False))
