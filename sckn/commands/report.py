"""`sckn report`."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import Tensor

from sckn.commands.options import Device, MaybePath, chosen_device
from sckn.settings import whole_number
from sckn.superres.bsds500 import read_bsds500
from sckn.superres.experiment import is_about_upscaling
from sckn.superres.report import write_upscaling_report
from sckn.superres.training import held_out
from sckn.training.experiment import read_dataset
from sckn.training.report import write_report
from sckn.training.report_parts import read_config

__all__ = ["report"]


def report(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    data: MaybePath = None,
    device: Device = "auto",
) -> None:
    """Write report.html in a run folder anew.

    Example: sckn report runs/cifar10-128

    Args:
        run: Run folder of sckn train.
        data: Data set, to cut out anew the patches or details that the report shows.
        device: auto takes a GPU if there is one.
    """
    config, place = read_config(run), chosen_device(device)
    if is_about_upscaling(config):
        print(write_upscaling_report(run, None if data is None else _held_out(config, data), place))
    else:
        print(write_report(run, None if data is None else read_dataset(config.get("dataset", ""), data, config)[0], place))


def _held_out(config: dict[str, Any], data: Path) -> dict[str, Tensor]:
    count = whole_number("validation_photos", config.get("validation_photos"), least=0)
    return held_out(read_bsds500(data), count)[1]
