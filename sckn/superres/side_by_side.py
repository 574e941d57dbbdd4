"""Crops of photographs to compare by eye: as they are, by bicubic interpolation, and by a model."""

from collections.abc import Mapping, Sequence
from types import EllipsisType

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from sckn.image_grid import image_grid
from sckn.superres.colour import in_bytes
from sckn.superres.evaluation import cropped_to_multiple
from sckn.superres.imresize import imresize
from sckn.superres.upscaler import Upscaler

__all__ = ["SIDE_BY_SIDE", "ZOOM", "crops", "lost_most", "side_by_side", "three_forms"]

SIDE_BY_SIDE = "the photograph, bicubic interpolation, the model"
SIDE = 96  # pixels of a crop
ZOOM = 3
MOST_PHOTOS = 6


def three_forms(upscaler: Upscaler, pixels: Tensor, scale: int) -> list[Tensor]:
    """Of a photograph (H, W) or (3, H, W) in bytes, which is made smaller and larger again, in the order of `SIDE_BY_SIDE`."""
    truth = cropped_to_multiple(pixels.cpu(), scale)
    small = imresize(truth.double() / 255, 1 / scale).clamp(0, 1)
    ours = upscaler.upscale(small.float(), scale, progress=False)
    return [truth, *(in_bytes(255 * image) for image in (imresize(small, scale), ours))]


def crops(upscaler: Upscaler, photos: Mapping[str, Tensor]) -> dict[str, bytes]:
    """A PNG for each of some photographs, luminance (H, W) in bytes, spread over all: the part of it that interpolation
    loses most of, in three forms side by side."""
    names = list(photos)
    chosen = sorted({index * len(names) // MOST_PHOTOS for index in range(MOST_PHOTOS)}) if names else []
    return {names[index]: _crop(three_forms(upscaler, photos[names[index]], upscaler.scale)) for index in chosen}


def _crop(forms: list[Tensor]) -> bytes:
    truth, bicubic, _ = forms
    return side_by_side([form[lost_most(truth, bicubic)] for form in forms], ZOOM)


def lost_most(truth: Tensor, bicubic: Tensor) -> tuple[EllipsisType, slice, slice]:
    """Where a photograph (H, W) or (3, H, W) has what interpolation loses most of."""
    height, width = (min(SIDE, side) for side in truth.shape[-2:])
    squares = (truth.double() - bicubic.double()).square().reshape(-1, 1, *truth.shape[-2:]).sum(dim=0, keepdim=True)
    lost = F.avg_pool2d(squares, (height, width), stride=1)[0, 0]
    top, left = divmod(int(lost.argmax()), lost.shape[1])
    return ..., slice(top, top + height), slice(left, left + width)


def side_by_side(images: Sequence[Tensor], zoom: int = 1) -> bytes:
    """A PNG of images of one size, (H, W) or (3, H, W) in bytes."""
    tiles = np.stack([image.reshape(-1, *image.shape[-2:]).numpy() for image in images])
    return image_grid(tiles[None], zoom)
