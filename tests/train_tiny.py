"""`sckn` as a program of its own, with a data set of a few striped images in the place of CIFAR-10.

    python tests/train_tiny.py train EXPERIMENT.toml --data anywhere --run FOLDER

Tests make it fail through environment variables:

    TINY_KILL=NUMBER:FOLDER  it kills itself just before it changes a file in the folder for the so-maniest time
    TINY_LEAVE=RANK:EPOCH    of several processes, this one kills itself when it begins this epoch, counted over all trainings
    TINY_BLIND=RANK          of several processes, this one finds no data
    TINY_WITHOUT_CURVES=1    as if matplotlib, which takes longer than a tiny training, were not installed
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Generator, Tensor
from torch.optim import Optimizer

from sckn import cli
from sckn.data.labelled import LabelledImages
from sckn.training import experiment
from sckn.training.active_set import ActiveSet

# Audit events that come before a file is made or changed; their first argument is a path.
CHANGES = ("open", "os.chmod", "os.mkdir", "os.rename", "os.truncate")


def striped(count: int, seed: int) -> LabelledImages:
    """Class 0 has horizontal stripes, class 1 vertical ones, class 2 a checkerboard, all faint in noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    row, column = np.indices((12, 12))
    patterns = np.stack([row % 2, column % 2, (row + column) % 2])
    images = 40 * patterns[labels][:, None] + random.integers(0, 215, (count, 3, 12, 12))
    return LabelledImages(images.astype(np.uint8), labels.astype(np.int64))


def kill_at_change(number: int, folder: str) -> None:
    changes = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not str(arguments[0]).startswith(folder):
            return
        if (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)) and next(changes) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def kill_at_epoch(epoch: int) -> None:
    epochs, shuffled = itertools.count(1), ActiveSet.shuffled

    def leave(self: ActiveSet, generator: Generator) -> Tensor:
        if next(epochs) == epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        return shuffled(self, generator)

    ActiveSet.shuffled = leave


def without_compiler() -> None:
    """Optimizers import PyTorch's compiler only to tell it to leave them alone, which takes longer than a tiny training."""
    for function in vars(Optimizer).values():
        if hasattr(function, "__wrapped__"):
            function.__wrapped__.__dynamo_disable = function.__wrapped__


def read(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    if os.environ.get("TINY_BLIND") == RANK:
        raise ValueError("there is no data here")
    return striped(150, 0), striped(60, 1)


RANK = os.environ.get("RANK", "0")

if __name__ == "__main__":
    experiment.READERS["cifar10"] = read
    without_compiler()
    if "TINY_KILL" in os.environ:
        number, _, folder = os.environ["TINY_KILL"].partition(":")
        kill_at_change(int(number), folder)
    rank, _, epoch = os.environ.get("TINY_LEAVE", "").partition(":")
    if rank == RANK:
        kill_at_epoch(int(epoch))
    if "TINY_WITHOUT_CURVES" in os.environ:
        sys.modules["matplotlib"] = None  # pyright: ignore[reportArgumentType]
    cli.main()
