"""A model on the test sets of the paper's tables, in the form in which a result file has it (`published.score_field`)."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sckn.published import MEASURES, SETS
from sckn.superres.evaluation import EvaluationReport, evaluate_upscaling
from sckn.superres.upscaler import Upscaler

__all__ = ["SCORES", "SCORE_COLUMNS", "score_rows", "score_upscaler", "set_figures"]

SCORES = "scores.json"  # in a run folder
SCORE_COLUMNS = ("test set", "PSNR", "bicubic", "SSIM", "bicubic")
DECIMALS = 2  # more than the paper prints


def score_upscaler(upscaler: Upscaler, data: Path, *, progress: bool = True) -> dict[str, Any]:
    """Figures on Set5, Set14 and Kodak, folders of `data`; a model for x2 is used for x3, too, as in the paper."""
    figures = _scores(upscaler, data, upscaler.scale, progress)
    if upscaler.scale == 2:
        figures["x3"] = _scores(upscaler, data, 3, progress)
    return figures


def set_figures(reports: dict[str, EvaluationReport]) -> dict[str, dict[str, float]]:
    """{"psnr": {"Set5": ..., ...}, "ssim": ..., "bicubic_psnr": ..., "bicubic_ssim": ...}, the mean of each set's images."""
    return {
        f"{prefix}{measure}": {
            name: round(getattr(getattr(report, method), measure), decimals + DECIMALS) for name, report in reports.items()
        }
        for prefix, method in (("", "quality"), ("bicubic_", "bicubic"))
        for measure, decimals in MEASURES.items()
    }


def score_rows(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What `set_figures` gives, for people: the columns are `SCORE_COLUMNS`."""
    fields = [(f"{prefix}{measure}", decimals) for measure, decimals in MEASURES.items() for prefix in ("", "bicubic_")]
    return [(name, *(f"{figures[field][name]:.{decimals}f}" for field, decimals in fields)) for name in SETS]


def _scores(upscaler: Upscaler, data: Path, scale: int, progress: bool) -> dict[str, Any]:
    upscale = partial(upscaler.upscale_luminance, factor=scale)
    return set_figures({name: evaluate_upscaling(data / name, scale, upscale, progress=progress) for name in SETS})
