"""The report of a training of an upscaler, for people.

It is made from the files of the run folder; only details of photographs, side by side, come from those held out, and are kept
as pictures in the run folder. Figures on test sets are there once experiments/score_superres.py has found them.
"""

from collections.abc import Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sckn.checkpoint import load_upscaler
from sckn.superres.scores import SCORE_COLUMNS, SCORES, score_rows
from sckn.superres.side_by_side import SIDE_BY_SIDE, crops
from sckn.training.report_parts import (
    MADE_AGAIN,
    first_filters,
    hint,
    keep_file,
    learning_curves,
    picture,
    read_config,
    table,
    write_run_page,
)
from sckn.training.run_files import FIGURES, MODEL, read_history, read_json
from sckn.training.state import EpochRecord

__all__ = ["write_upscaling_report"]

CROPS = "crops"


def write_upscaling_report(run: Path, photos: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu") -> Path:
    """Write RUN/report.html from what the run folder holds; what is not there yet is left out.

    With photographs, luminance (H, W) in bytes, the details that it shows are cut out anew.
    """
    run = Path(run)
    config = read_config(run)
    parts = [*_held_out(run), *_test_sets(run, config), *learning_curves({"the training": run})]
    if (run / MODEL).is_file():
        upscaler = load_upscaler(run / MODEL, device)
        for name, content in (crops(upscaler, photos) if photos else {}).items():
            keep_file(run / CROPS / f"{Path(name).with_suffix('').as_posix().replace('/', '-')}.png", content)
        parts += [*_details(run), *first_filters(upscaler.model.network)]
    return write_run_page(run, config, parts)


def _held_out(run: Path) -> list[str]:
    path = run / FIGURES
    if not path.is_file():
        return ["<p>The training has not come to its end yet.</p>"]
    return read_json(path, into=partial(_figures, read_history(run)), remedy=MADE_AGAIN)


def _figures(history: list[EpochRecord], figures: dict[str, Any]) -> list[str]:
    minutes = sum(sum(record["seconds"].values()) for record in history) / 60
    done = f"<p>{figures['last_epoch']['epoch']} epoch(s) on {figures['photos']} photographs, {minutes:.1f} minutes.</p>"
    qualities = {"the model": figures["validation"], "bicubic interpolation": figures["bicubic"]}
    rows = [[name, _decimals(found["psnr"], 2), _decimals(found["ssim"], 4)] for name, found in qualities.items() if found]
    shown = [table(["", "PSNR", "SSIM"], rows)] if rows else [hint("No photographs were held out.")]
    return ["<h2>Photographs held out</h2>", done, *shown]


def _test_sets(run: Path, config: Mapping[str, Any]) -> list[str]:
    path = run / SCORES
    if not path.is_file():
        return []
    remedy = "write it again with experiments/score_superres.py"
    return read_json(path, into=partial(_scores, config.get("scale")), remedy=remedy)


def _scores(scale: Any, scores: dict[str, Any]) -> list[str]:
    twice = ["<h2>Test sets, x3</h2>", table(SCORE_COLUMNS, score_rows(scores["x3"]))] if "x3" in scores else []
    return [f"<h2>Test sets, x{escape(str(scale))}</h2>", table(SCORE_COLUMNS, score_rows(scores)), *twice]


def _details(run: Path) -> list[str]:
    pictures = sorted((run / CROPS).glob("[!.]*.png"))
    if not pictures:
        return []
    parts = [f"<h2>Details</h2><p>Side by side: {SIDE_BY_SIDE}.</p>"]
    return [*parts, *(picture(path.read_bytes(), path.stem) for path in pictures)]


def _decimals(value: float | None, count: int) -> str:
    return "-" if value is None else f"{value:.{count}f}"
