"""RGB and YCbCr as in Matlab (BT.601): luminance from 16 to 235, both colour differences from 16 to 240, around 128."""

import torch
from torch import Tensor

__all__ = ["in_bytes", "luminance", "rgb_to_ycbcr", "ycbcr_to_rgb"]

OFFSET = (16.0, 128.0, 128.0)
# Rows Y, Cb, Cr; columns R, G, B. All values are from 0 to 255.
MATRIX = (
    (65.481 / 255, 128.553 / 255, 24.966 / 255),
    (-37.797 / 255, -74.203 / 255, 112.0 / 255),
    (112.0 / 255, -93.786 / 255, -18.214 / 255),
)


def rgb_to_ycbcr(image: Tensor) -> Tensor:
    """(..., 3, H, W) in floating point from 0 to 255, not rounded."""
    matrix, offset = _constants(image)
    return torch.einsum("ij,...jhw->...ihw", matrix, image) + offset


def ycbcr_to_rgb(image: Tensor) -> Tensor:
    """The way back, (..., 3, H, W); neither rounded nor clipped."""
    matrix, offset = _constants(image)
    return torch.einsum("ij,...jhw->...ihw", torch.linalg.inv(matrix.double()).to(image.dtype), image - offset)


def luminance(image: Tensor) -> Tensor:
    """Y (..., H, W) of an image (..., c, H, W) from 0 to 255; with one channel that channel as it is."""
    if image.shape[-3] == 1:
        return image.squeeze(-3)
    matrix, offset = _constants(image)
    return torch.einsum("j,...jhw->...hw", matrix[0], image) + offset[0]


def in_bytes(levels: Tensor) -> Tensor:
    """Values from 0 to 255 rounded as Matlab does, halves up, and clipped."""
    return (levels + 0.5).floor().clamp(0, 255).to(torch.uint8)


def _constants(image: Tensor) -> tuple[Tensor, Tensor]:
    if image.dim() < 3 or image.shape[-3] != 3 or not image.is_floating_point():
        raise ValueError(f"expected a colour image (..., 3, H, W) in floating point, got {tuple(image.shape)}, {image.dtype}")
    return image.new_tensor(MATRIX), image.new_tensor(OFFSET).view(3, 1, 1)
