"""Local whitening of images, as the paper does it before the network sees them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.settings import real_number

__all__ = ["local_whitening"]

# Directions whose singular value is below this part of the largest one are noise of rounding and are left out;
# so are all of an image whose patches differ by less than the second number, relative to their norm.
RANK_TOLERANCE = 1e-6
CONSTANT_TOLERANCE = 1e-10


@torch.no_grad()
def local_whitening(images: Tensor, patch: int = 3, power: float = 0.25, batch_size: int | None = None) -> Tensor:
    """Flatten the local spectrum of each image (n, c, H, W), after Paulin et al. (2015); needs no statistics of a data set.

    Of the patches of one image each loses its mean in every channel, then their common mean; with X the matrix left,
    they are multiplied by (X X')^(-power) and put back, averaged where they overlap. A constant image gives zeros.
    The power of the paper is 1/4; 1/2 would make every direction equally strong.
    Computed in float64 on the device of the images; the result has their floating-point type (bytes give float32).
    """
    power = real_number("power", power)
    if images.dim() != 4 or min(images.shape[2:]) < patch:
        raise ValueError(f"expected images (n, c, H, W) of at least {patch} x {patch} pixels, got {tuple(images.shape)}")
    dtype = images.dtype if images.is_floating_point() else torch.float32
    whitened = torch.empty(images.shape, dtype=dtype, device=images.device)
    if len(images) == 0:
        return whitened
    if not bool(torch.isfinite(images).all()):
        raise ValueError("the images hold NaN or infinity; clean them first")
    # on a processor, matrices of more images are larger than what its memory hands out quickly
    batch_size = batch_size or (64 if images.device.type == "cpu" else 2048)
    for part, out in zip(images.split(batch_size), whitened.split(batch_size), strict=True):
        scale = 255 if part.dtype == torch.uint8 else 1
        out.copy_(_whiten(part.double() / scale, patch, power))
    return whitened


def _whiten(images: Tensor, patch: int, power: float) -> Tensor:
    batch, channels, height, width = images.shape
    X = F.unfold(images, patch)  # (B, c e^2, L)
    energy = X.square().sum(dim=(1, 2))[:, None]  # (B, 1)
    X = X.view(batch, channels, patch * patch, -1)
    X = (X - X.mean(dim=2, keepdim=True)).flatten(1, 2)
    X = X - X.mean(dim=2, keepdim=True)
    eigenvalues, U = torch.linalg.eigh(X @ X.mT)  # (B, c e^2): squares of the singular values of X, ascending
    kept = (eigenvalues > RANK_TOLERANCE**2 * eigenvalues[:, -1:]) & (eigenvalues > CONSTANT_TOLERANCE**2 * energy)
    gain = torch.where(kept, torch.where(kept, eigenvalues, 1) ** -power, 0)
    X = (U * gain[:, None, :]) @ (U.mT @ X)
    overlap = F.fold(F.unfold(torch.ones_like(images[:1]), patch), (height, width), patch)
    return F.fold(X, (height, width), patch) / overlap
