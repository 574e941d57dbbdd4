"""How well a method makes images larger, by the protocol of the paper's tables.

Luminance in bytes, cropped to a multiple of the factor, made smaller and larger again in floating point, the result rounded
to bytes; as many pixels as the factor are cut on each side before PSNR and SSIM. It gives the bicubic figures of the
tables to the last digit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sckn.settings import whole_number
from sckn.superres.colour import in_bytes
from sckn.superres.imresize import imresize
from sckn.superres.photos import photo_files, read_luminance
from sckn.superres.quality import psnr, ssim

__all__ = ["EvaluationReport", "ImageReport", "Quality", "evaluate_upscaling", "mean_quality", "measure_upscaling"]

# Luminance (h, w) in float64 from 0 to 255, not rounded -> (scale h, scale w).
Upscale = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Quality:
    """PSNR in decibel, and SSIM."""

    psnr: float
    ssim: float

    def to_dict(self) -> dict[str, float | None]:
        """A form for JSON, which has no infinity: equal images have no PSNR there."""
        return {"psnr": self.psnr if math.isfinite(self.psnr) else None, "ssim": self.ssim}


@dataclass(frozen=True)
class ImageReport:
    """One image, by the method and by bicubic interpolation."""

    name: str
    quality: Quality
    bicubic: Quality

    def to_dict(self) -> dict[str, Any]:
        """A form for JSON."""
        return {"name": self.name, "quality": self.quality.to_dict(), "bicubic": self.bicubic.to_dict()}


@dataclass(frozen=True)
class EvaluationReport:
    """All images of a folder; the mean is that of the figures of each image."""

    folder: str
    scale: int
    images: tuple[ImageReport, ...]

    @property
    def quality(self) -> Quality:
        """The mean of the method."""
        return mean_quality([image.quality for image in self.images])

    @property
    def bicubic(self) -> Quality:
        """The mean of bicubic interpolation."""
        return mean_quality([image.bicubic for image in self.images])

    def to_dict(self) -> dict[str, Any]:
        """A form for JSON, the means included."""
        images = [image.to_dict() for image in self.images]
        return {"folder": self.folder, "scale": self.scale, "images": images, "mean": self._mean_row().to_dict()}

    def table(self) -> str:
        """For people: one line an image, and the mean."""
        width = max(len(image.name) for image in (*self.images, self._mean_row()))
        lines = [f"{'':{width}}     PSNR   bicubic     SSIM   bicubic"]
        for image in (*self.images, self._mean_row()):
            ours, plain = image.quality, image.bicubic
            lines.append(f"{image.name:{width}}  {ours.psnr:7.2f} {plain.psnr:9.2f}  {ours.ssim:7.4f} {plain.ssim:9.4f}")
        return "\n".join(lines)

    def _mean_row(self) -> ImageReport:
        return ImageReport("mean", self.quality, self.bicubic)


def evaluate_upscaling(
    folder: str | Path, scale: int, upscale: Upscale | None = None, *, progress: bool = True
) -> EvaluationReport:
    """Measure a method on all images of a folder; without one, bicubic interpolation."""
    scale = whole_number("scale", scale, least=2)
    reports = []
    for path in tqdm(photo_files(folder), desc=Path(folder).name, unit="image", disable=None if progress else True):
        truth = read_luminance(path)
        if min(truth.shape) < 3 * scale:
            raise ValueError(
                f"{path} has {truth.shape[1]} x {truth.shape[0]} pixels, too few to be judged at scale {scale}; take it away"
            )
        bicubic = measure_upscaling(truth, scale)
        reports.append(
            ImageReport(path.name, bicubic if upscale is None else measure_upscaling(truth, scale, upscale), bicubic)
        )
    return EvaluationReport(Path(folder).name, scale, tuple(reports))


def measure_upscaling(truth: Tensor, scale: int, upscale: Upscale | None = None) -> Quality:
    """Shrink one luminance (H, W) in bytes, have it made larger, and compare."""
    truth = cropped_to_multiple(truth, scale)
    small = imresize(truth.double(), 1 / scale)
    large = imresize(small, scale) if upscale is None else torch.as_tensor(upscale(small))
    if large.shape != truth.shape:
        raise ValueError(f"the method made {tuple(large.shape)} of {tuple(small.shape)}, expected {tuple(truth.shape)}")
    inside = (slice(scale, -scale), slice(scale, -scale))
    result, truth = in_bytes(large.to(truth.device).double())[inside], truth[inside]
    return Quality(psnr(result, truth), ssim(result, truth))


def cropped_to_multiple(image: Tensor, scale: int) -> Tensor:
    """(..., H, W) without the last rows and columns that no whole small pixel covers."""
    height, width = (side - side % scale for side in image.shape[-2:])
    return image[..., :height, :width]


def mean_quality(qualities: list[Quality]) -> Quality:
    """The mean of the figures, not the figure of a mean error."""
    return Quality(mean(quality.psnr for quality in qualities), mean(quality.ssim for quality in qualities))
