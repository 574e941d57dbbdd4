"""How near an image is to the true one: PSNR, and SSIM as Matlab's `ssim` has it (Wang et al., 2004)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["psnr", "ssim", "ssim_map"]

RADIUS, SIGMA = 5, 1.5  # of the Gaussian window, 11 x 11
K1, K2 = 0.01, 0.03


def psnr(image: Tensor, reference: Tensor, peak: float = 255.0) -> float:
    """Peak signal-to-noise ratio in decibel, infinite for equal images.

    Example
    -------
    >>> round(psnr(torch.full((4, 4), 101.0), torch.full((4, 4), 100.0)), 2)
    48.13
    """
    image, reference = _checked(image, reference)
    error = float((image - reference).square().mean())
    return 10 * math.log10(peak**2 / error) if error > 0 else math.inf


def ssim(image: Tensor, reference: Tensor, peak: float = 255.0) -> float:
    """Structural similarity of two images (H, W), 1 for equal ones: the mean of `ssim_map`."""
    return float(ssim_map(image, reference, peak).mean())


def ssim_map(image: Tensor, reference: Tensor, peak: float = 255.0) -> Tensor:
    """The similarity around each pixel, (H, W), in float64; beyond the border the last pixel is repeated."""
    x, y = _checked(image, reference)
    if x.dim() != 2:
        raise ValueError(f"expected images of shape (H, W), got {tuple(x.shape)}")
    mean_x, mean_y, xx, yy, xy = _blurred(torch.stack([x, y, x * x, y * y, x * y]))
    variance_x, variance_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    C1, C2 = (K1 * peak) ** 2, (K2 * peak) ** 2
    luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    return luminance * (2 * covariance + C2) / (variance_x + variance_y + C2)


def _blurred(images: Tensor) -> Tensor:
    """Images (B, H, W), each pixel a mean with Gaussian weights of those around it."""
    window = torch.exp(-torch.arange(-RADIUS, RADIUS + 1, dtype=images.dtype, device=images.device).square() / (2 * SIGMA**2))
    window /= window.sum()
    padded = F.pad(images[:, None], (RADIUS,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))[:, 0]


def _checked(image: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    if image.shape != reference.shape or image.numel() == 0:
        shapes = f"{tuple(image.shape)} and {tuple(reference.shape)}"
        raise ValueError(f"expected two images of one size with pixels in them, got {shapes}")
    return image.double(), reference.double()
