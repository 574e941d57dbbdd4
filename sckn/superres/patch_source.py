"""Training patches, drawn at random from whole photographs that were made smaller and larger before.

The photographs stay on the device, so that patches cost a memory copy and there may be new ones whenever they are needed.
Shrinking whole photographs instead of patches gives no patch a border that a photograph does not have, and a patch is what
the protocol of evaluation would make of that place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.settings import real_number, whole_number
from sckn.superres import detail
from sckn.superres.evaluation import cropped_to_multiple
from sckn.superres.imresize import imresize
from sckn.superres.upscaler import UpscalerConfig

__all__ = ["PatchSource", "Units", "target_side"]

SYMMETRIES = 8  # of the square
DRAWN = 8192  # patches at a time, which bounds the memory for where their pixels lie


@dataclass(frozen=True)
class Units:
    """Grey levels by which detail and targets are divided; of a source of training patches their root mean squares."""

    detail: float
    target: float


class PatchSource:
    """Pairs of what a network sees and what it is to say, from photographs in random places and all eight orientations.

    Parameters
    ----------
    photos: luminance (H, W) in bytes, by name.
    config: the factor, and whether the network works on the small image; its `detail_unit` plays no part.
    patch: side of the network's input. margin: what the network loses on each side.
    device: where photographs and patches are.
    units: those of the training patches for a source of validation patches; None is its own.
    contrast_floor: both of a pair are divided by the root mean square of what the network sees and this number, in units; 0
        leaves them as they are. What a kernel network makes of a patch grows in proportion to it, so this changes nothing but
        how much a patch of little contrast counts: as much as others, down to about this contrast. Quality is judged so, too:
        SSIM weighs errors by the contrast around them, PSNR a photograph's by their size.

    Example
    -------
    >>> photos = {"noise": torch.randint(0, 256, (60, 80), dtype=torch.uint8)}
    >>> source = PatchSource(photos, UpscalerConfig(scale=2), patch=32, margin=9)
    >>> inputs, targets = source.draw(100, seed=0)
    >>> inputs.shape, targets.shape
    (torch.Size([100, 1, 32, 32]), torch.Size([100, 1, 14, 14]))
    """

    def __init__(
        self,
        photos: Mapping[str, Tensor],
        config: UpscalerConfig,
        *,
        patch: int,
        margin: int,
        device: torch.device | str = "cpu",
        units: Units | None = None,
        contrast_floor: float = 0.0,
    ) -> None:
        self.contrast_floor = real_number("contrast_floor", contrast_floor, least=0)
        self.config, self.patch, self.margin = config, whole_number("patch", patch), margin
        self.fine = config.scale if config.low_resolution else 1  # pixels of a target along a side of a pixel seen
        self.side = target_side(patch, margin)
        if not photos:
            raise ValueError("there are no photographs to draw patches from")
        details, lost = [], []
        for name, photo in photos.items():
            seen, missing = degraded(photo.to(device), config)
            if min(seen.shape) < patch:
                smallest = (patch + 2 * detail.MARGIN) * (config.scale if config.low_resolution else 1)
                raise ValueError(
                    f"{name} has {photo.shape[1]} x {photo.shape[0]} pixels, but patches of {patch} need at least {smallest} "
                    "on each side; take it away or set a smaller patch"
                )
            details.append(seen)
            lost.append(missing)
        self.units = units or Units(_root_mean_square(details), _root_mean_square(lost))
        self.details, self.lost = _Maps.joined(details), _Maps.joined(lost)
        places = (self.details.heights - patch + 1) * (self.details.widths - patch + 1)
        self.ends = places.cumsum(0)  # of the numbers of each photograph's places, among those of all

    def draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs (count, 1, patch, patch) and targets (count, outputs, h, w), divided by the units, and with a floor by their
        contrast.

        Every place of every photograph is as likely as any other; the same seed gives the same patches on every device.
        """
        generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
        place = torch.randint(int(self.ends[-1]), (whole_number("count", count),), generator=generator)
        photo = torch.searchsorted(self.ends, place, right=True)
        place -= torch.where(photo > 0, self.ends[photo - 1], 0)
        columns = self.details.widths[photo] - self.patch + 1
        top, left = place // columns, place % columns
        inputs = torch.empty(count, 1, self.patch, self.patch, device=self.details.values.device)
        targets = torch.empty(count, self.config.outputs, self.side, self.side, device=inputs.device)
        for start in range(0, count, DRAWN):
            part = slice(start, start + DRAWN)
            corner = top[part], left[part]
            seen = self.details.patches(photo[part], *corner, self.patch) / self.units.detail
            inner = [self.fine * (edge + self.margin) for edge in corner]
            lost = self.lost.patches(photo[part], inner[0], inner[1], self.fine * self.side) / self.units.target
            for symmetry in range(SYMMETRIES):  # places are random: every eighth patch is a random one
                inputs[part][symmetry::SYMMETRIES] = turned(seen[symmetry::SYMMETRIES], symmetry)
                turned_lost = turned(lost[symmetry::SYMMETRIES], symmetry)
                targets[part][symmetry::SYMMETRIES] = F.pixel_unshuffle(turned_lost, self.fine)
        if self.contrast_floor:
            contrast = (inputs.square().mean(dim=(1, 2, 3), keepdim=True) + self.contrast_floor**2).sqrt()
            inputs /= contrast
            targets /= contrast
        return inputs, targets


def target_side(patch: int, margin: int) -> int:
    """What a network that loses `margin` pixels on each side leaves of a patch, if anything."""
    if patch <= 2 * margin:
        raise ValueError(f"patch must be larger than {2 * margin} pixels, which the network loses, got {patch}")
    return patch - 2 * margin


def degraded(photo: Tensor, config: UpscalerConfig) -> tuple[Tensor, Tensor]:
    """What the network sees of a photograph (H, W), and what interpolation lost of it, where the detail is defined.

    The first is the detail of the interpolated photograph or of the small one; the second has the size of the photograph,
    cropped accordingly.
    """
    sharp = cropped_to_multiple(photo, config.scale).float()
    if 0 in sharp.shape:
        return sharp, sharp
    small = imresize(sharp, 1 / config.scale)
    blurry = imresize(small, config.scale)
    seen = small if config.low_resolution else blurry
    if min(seen.shape) <= 2 * detail.MARGIN:
        return seen[:0, :0], seen[:0, :0]
    cut = detail.MARGIN * (config.scale if config.low_resolution else 1)
    return detail.without_local_mean(seen[None, None])[0, 0], (sharp - blurry)[cut:-cut, cut:-cut]


def turned(images: Tensor, symmetry: int) -> Tensor:
    """Images (B, c, H, W) turned or mirrored in one of eight ways; 0 leaves them as they are."""
    sides = [dim for bit, dim in ((1, -1), (2, -2)) if symmetry & bit]
    images = images.flip(sides) if sides else images
    return images.transpose(-1, -2) if symmetry & 4 else images


@dataclass(frozen=True)
class _Maps:
    """Maps of different sizes one after the other in one vector, in half precision: a few hundredths of a grey level."""

    values: Tensor
    starts: Tensor
    heights: Tensor
    widths: Tensor

    @classmethod
    def joined(cls, maps: list[Tensor]) -> Self:
        sizes = torch.tensor([each.numel() for each in maps])
        heights, widths = (torch.tensor([each.shape[side] for each in maps]) for side in (0, 1))
        values = torch.cat([each.flatten().half() for each in maps])
        return cls(values, sizes.cumsum(0) - sizes, heights, widths)

    def patches(self, number: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
        """Of the maps of these numbers squares (B, 1, side, side) with these corners, in float32."""
        device = self.values.device
        corner = (self.starts[number] + top * self.widths[number] + left).to(device)  # (B,)
        step = torch.arange(side, device=device)
        rows = step[:, None] * self.widths[number].to(device)[:, None, None]  # (B, side, 1)
        return self.values[corner[:, None, None] + rows + step][:, None].float()


def _root_mean_square(maps: list[Tensor]) -> float:
    squares = sum(float(each.double().square().sum()) for each in maps)
    return max((squares / sum(each.numel() for each in maps)) ** 0.5, 1e-6)  # of photographs without any detail, not 0
