"""Details of photographs to compare by eye: as they are, by bicubic interpolation, and by a model."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.image_grid import image_grid
from sckn.superres.evaluation import cropped_to_multiple
from sckn.superres.imresize import imresize
from sckn.superres.upscaler import Upscaler

__all__ = ["SIDE_BY_SIDE", "details", "three_forms"]

SIDE_BY_SIDE = "the photograph, bicubic interpolation, the model"
SIDE = 96  # pixels of a detail
ZOOM = 3
MOST_PHOTOS = 6


def three_forms(upscaler: Upscaler, pixels: Tensor, scale: int) -> list[Tensor]:
    """Of a photograph (H, W) or (3, H, W) in bytes, which is made smaller and larger again, in the order of `SIDE_BY_SIDE`."""
    truth = cropped_to_multiple(pixels.cpu(), scale)
    small = imresize(truth.double() / 255, 1 / scale).clamp(0, 1)
    ours = upscaler.upscale(small.float(), scale, progress=False)
    return [(255 * image + 0.5).floor().clamp(0, 255).to(torch.uint8) for image in (truth / 255, imresize(small, scale), ours)]


def details(upscaler: Upscaler, photos: Mapping[str, Tensor]) -> dict[str, bytes]:
    """A PNG for each of some photographs, luminance (H, W) in bytes, spread over all: the part of it that interpolation
    loses most of, in three forms side by side."""
    names = list(photos)
    chosen = sorted({index * len(names) // MOST_PHOTOS for index in range(MOST_PHOTOS)}) if names else []
    return {names[index]: _detail(three_forms(upscaler, photos[names[index]], upscaler.scale)) for index in chosen}


def _detail(forms: list[Tensor]) -> bytes:
    truth, bicubic, _ = forms
    height, width = (min(SIDE, side) for side in truth.shape)
    lost = F.avg_pool2d((truth.double() - bicubic.double()).square()[None, None], (height, width), stride=1)[0, 0]
    top, left = divmod(int(lost.argmax()), lost.shape[1])
    tiles = np.stack([form[None, top : top + height, left : left + width].numpy() for form in forms])
    return image_grid(tiles[None], ZOOM)
