"""`sckn report`."""

from pathlib import Path
from typing import Annotated

import tyro

from sckn.commands.options import Device, chosen_device
from sckn.training.experiment import read_dataset
from sckn.training.report import write_report
from sckn.training.runs import read_json

__all__ = ["report"]


def report(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    data: Path | None = None,
    device: Device = "auto",
) -> None:
    """Write the report of a training with labels, report.html in its run folder, anew.

    Example: sckn report runs/cifar10-128

    Args:
        run: Run folder of sckn train.
        data: Folder or archive of the data set, to find again the patches to which filters respond most.
        device: Where to compute; auto takes a GPU if there is one.
    """
    train = None
    if data is not None and (run / "config.json").is_file():
        config = read_json(run / "config.json")
        train, _ = read_dataset(config.get("dataset", ""), data, config)
    print(write_report(run, train, chosen_device(device)))
