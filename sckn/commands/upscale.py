"""`sckn upscale`."""

import sys
from typing import Annotated

import tyro
from tqdm import tqdm

from sckn.checkpoint import load_upscaler
from sckn.commands.endings import fail
from sckn.commands.options import Device, Flag, MaybeNumber, MaybeText, MaybeWhole, chosen_device
from sckn.data.folder import printable
from sckn.settings import real_number
from sckn.shipped import upscaler_name
from sckn.superres.upscale_files import plan, upscale_files
from sckn.training.run_files import model_file

__all__ = ["upscale"]


def upscale(
    photos: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PHOTO...", help_behavior_hint="")],
    output: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="OUT")],
    scale: MaybeNumber = None,
    model: MaybeText = None,
    fast: Flag = False,
    tile: MaybeWhole = None,
    memory: float = 0.5,
    device: Device = "auto",
) -> None:
    """Make photographs larger.

    Example: sckn upscale photo.jpg -o large.png --scale 3

    Args:
        photos: Files, folders, or patterns like "*.jpg".
        output: File for a single photo, or folder.
        scale: Any above 1; by default the model's, or 2.
        model: Another one: file, run folder, or name.
        fast: Several times faster, and not quite as good.
        tile: Most pixels along a side of one tile.
        memory: GiB that work on one tile may take.
        device: auto takes a GPU if there is one.
    """
    if fast and model is not None:
        raise ValueError("--fast chooses among the models of sckn; give it or --model, not both")
    jobs = plan(photos, output)
    factor = None if scale is None else real_number("scale", scale, above=1)
    real_number("memory", memory, above=0)
    source = upscaler_name(factor or 2, fast=fast) if model is None else model_file(model)
    upscaler = load_upscaler(source, chosen_device(device))
    problems = 0
    for outcome in upscale_files(upscaler, jobs, factor, memory_gib=memory, tile=tile):
        for sentence in (*outcome.notes, *([outcome.problem] if outcome.problem else [])):
            tqdm.write(f"sckn: {printable(sentence)}", file=sys.stderr)
        problems += outcome.size is None
        if outcome.size is not None:
            tqdm.write(f"{printable(str(outcome.target))}: {outcome.size[0]} x {outcome.size[1]} pixels")
    if problems and len(jobs) > 1:
        sys.stdout.flush()  # what was made comes before what was not
        fail(f"{problems} of {len(jobs)} photos could not be made larger")
    if problems:
        sys.exit(1)
