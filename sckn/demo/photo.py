"""The photograph of the demonstration: what the models that come with sckn make of it."""

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sckn.checkpoint import load_classifier, load_upscaler
from sckn.classification import classify_files
from sckn.shipped import CLASSIFIER, find_shipped, upscaler_name
from sckn.superres.evaluation import measure_upscaling
from sckn.superres.photos import open_photo, read_luminance
from sckn.superres.picture import Picture
from sckn.superres.side_by_side import three_forms

__all__ = ["PHOTO", "SCALE", "UPSCALER", "Classes", "Upscaled", "classify_photo", "upscale_photo"]

PHOTO = Path(__file__).parents[1] / "pictures" / "cat.png"
SCALE = 2
UPSCALER = upscaler_name(SCALE)
TOP = 3

Classes = tuple[tuple[str, float], ...]  # best first, each with its score


@dataclass(frozen=True, eq=False)
class Upscaled:
    """The photograph, made smaller and larger again in two ways: pixels (3, H, W) in bytes, PSNR of the luminance."""

    truth: Tensor
    bicubic: Tensor
    ours: Tensor
    bicubic_psnr: float
    psnr: float


def classify_photo() -> Classes:
    """The best classes. A model that is missing or damaged is a ValueError."""
    classifier = load_classifier(_model(CLASSIFIER))
    (answer,) = classify_files(classifier, [str(PHOTO)], io.BytesIO(), top=TOP)
    if answer.problem is not None:
        raise ValueError(f"{PHOTO} cannot be read: {answer.problem}; install sckn again")
    return answer.best


def upscale_photo() -> Upscaled:
    """A model that is missing or damaged is a ValueError."""
    upscaler = load_upscaler(_model(UPSCALER))
    luminance = read_luminance(PHOTO)
    truth, bicubic, ours = three_forms(upscaler, Picture.of(open_photo(PHOTO)).pixels, SCALE)
    with torch.no_grad():
        quality = measure_upscaling(luminance, SCALE, partial(upscaler.upscale_luminance, factor=SCALE))
    return Upscaled(truth, bicubic, ours, measure_upscaling(luminance, SCALE).psnr, quality.psnr)


def _model(name: str) -> str | Path:
    """Its file; or its name, with which loading it tells what to do."""
    return find_shipped(name) or name
