"""Training patches, drawn at random from whole photographs that were made smaller and larger before.

The photographs stay on the device, so that patches cost a memory copy and there may be new ones whenever they are needed.
Shrinking whole photographs instead of patches gives no patch a border that a photograph does not have, and a patch is what
the protocol of evaluation would make of that place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.model import KernelModel
from sckn.settings import real_number, whole_number
from sckn.superres import detail
from sckn.superres.evaluation import cropped_to_multiple
from sckn.superres.imresize import imresize
from sckn.superres.upscaler import Upscaler, UpscalerConfig

__all__ = ["PatchSource", "Units", "every_shift", "target_side"]

SYMMETRIES = 8  # of the square
DRAWN = 8192  # patches at a time, which bounds the memory for where their pixels lie
# Added to the mean squares that make up the contrast: patches with next to no detail stay possible, and bounded when divided.
LEAST_SQUARE = 0.05
LARGEST_POWER = 4.0


@dataclass(frozen=True)
class Units:
    """Grey levels by which detail and targets are divided; of a source of training patches their root mean squares."""

    detail: float
    target: float


class PatchSource:
    """Pairs of what a network sees and what it is to say, from photographs in random places and all eight orientations.

    Parameters
    ----------
    photos: luminance (H, W) from 0 to 255, by name.
    config: the factor, and whether the network works on the small image; its `detail_unit` plays no part.
    patch: side of the network's input. margin: what the network loses on each side.
    device: where photographs and patches are.
    units: those of the training patches for a source of validation patches; None is its own.
    contrast_power: None draws all places with the same probability, and patches as they are. A number b, at most 4, draws
        places with probabilities in proportion to c^(2b) and divides both of a pair by c, their contrast: c^2 is the geometric
        mean of the mean squares of both, in units, where the network says something, each plus 0.05. What a kernel network
        makes of a patch grows in proportion to it (but for the layers' tiny `norm_offset`), so with b = 1 the expected loss is,
        but for a factor, that of patches as they are, while gradients of batches scatter less: patches of little contrast have
        next to none. With less than 1 those count for more, and with 0 as much as others.

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
        contrast_power: float | None = None,
    ) -> None:
        self.contrast_power = None if contrast_power is None else checked_contrast_power(contrast_power)
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
        for maps, unit in ((details, self.units.detail), (lost, self.units.target)):
            for each in maps:
                each /= unit  # in place: these are all photographs in floating point
        self.details, self.lost = _Maps.joined(details), _Maps.joined(lost)
        self.places = (self.details.heights - patch + 1) * (self.details.widths - patch + 1)  # in each photograph
        self.cumulative_chances = None
        if self.contrast_power is not None:
            pairs = zip(details, (inside(missing, self.fine * margin) for missing in lost), strict=True)
            chances = [self._squared_contrasts(seen[None, None], missing[None, None]) for seen, missing in pairs]
            self.cumulative_chances = torch.cat([each.flatten().cpu().double() for each in chances])  # of all places
            self.cumulative_chances.pow_(self.contrast_power).cumsum_(0)

    def draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs (count, 1, patch, patch) and targets (count, outputs, h, w), divided by the units, and with a
        `contrast_power` by their contrast.

        The same seed gives the same patches on every device; with a `contrast_power`, rounding may move one to the next place.
        """
        generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
        ends, count = self.places.cumsum(0), whole_number("count", count)
        if self.cumulative_chances is None:
            place = torch.randint(int(ends[-1]), (count,), generator=generator)
        else:
            chance = self.cumulative_chances[-1] * torch.rand(count, dtype=torch.float64, generator=generator)
            place = torch.searchsorted(self.cumulative_chances, chance, right=True).clamp_max_(int(ends[-1]) - 1)
        photo = torch.searchsorted(ends, place, right=True)
        place -= torch.where(photo > 0, ends[photo - 1], 0)
        columns = self.details.widths[photo] - self.patch + 1
        top, left = place // columns, place % columns
        inputs = torch.empty(count, 1, self.patch, self.patch, device=self.details.values.device)
        targets = torch.empty(count, self.config.outputs, self.side, self.side, device=inputs.device)
        for start in range(0, count, DRAWN):
            part = slice(start, start + DRAWN)
            corner = top[part], left[part]
            seen = self.details.patches(photo[part], *corner, self.patch)
            inner = [self.fine * (edge + self.margin) for edge in corner]
            lost = self.lost.patches(photo[part], inner[0], inner[1], self.fine * self.side)
            if self.cumulative_chances is not None:
                contrast = self._squared_contrasts(seen, lost).sqrt_()
                seen, lost = seen / contrast, lost / contrast
            for symmetry in range(min(SYMMETRIES, len(seen))):  # places are random: every eighth patch is a random one
                inputs[part][symmetry::SYMMETRIES] = turned(seen[symmetry::SYMMETRIES], symmetry)
                turned_lost = turned(lost[symmetry::SYMMETRIES], symmetry)
                targets[part][symmetry::SYMMETRIES] = F.pixel_unshuffle(turned_lost, self.fine)
        return inputs, targets

    def upscaler(self, model: KernelModel) -> Upscaler:
        """That of a model which has learned from these patches, divided by their units as they are."""
        scaled = KernelModel(model.network, model.weights * self.units.target, model.bias * self.units.target, per_pixel=True)
        return Upscaler(scaled, replace(self.config, detail_unit=self.units.detail)).eval()

    def _squared_contrasts(self, seen: Tensor, lost: Tensor) -> Tensor:
        """c^2 of the patches at all places, (B, 1, rows, columns), of what is seen and what was lost, both (B, 1, H, W) in
        units, the latter without the network's margin.

        The gradient of a patch's loss is a sum of products of errors, which are in proportion to what was lost, and features,
        which are in proportion to what is seen: this is about its length.
        """
        squares = [
            F.avg_pool2d(values.square(), fine * self.side, stride=fine) + LEAST_SQUARE
            for values, fine in ((inside(seen, self.margin), 1), (lost, self.fine))
        ]
        return (squares[0] * squares[1]).sqrt_()


def every_shift(photos: Mapping[str, Tensor], scale: int) -> dict[str, Tensor]:
    """Each photograph (H, W) without its first 0, 1, ... scale - 1 rows and columns: made smaller these give other small
    images, scale^2 times as many. Names tell what was cut, such as "a.jpg+0+1"; nothing is copied.
    """
    shifts = list(product(range(scale), repeat=2))
    return {f"{name}+{top}+{left}": photo[top:, left:] for name, photo in photos.items() for top, left in shifts}


def inside(maps: Tensor, margin: int) -> Tensor:
    """Maps (..., H, W) without so many pixels on each side."""
    height, width = maps.shape[-2:]
    return maps[..., margin : height - margin, margin : width - margin]


def checked_contrast_power(power: float) -> float:
    """A `contrast_power`, if it is one."""
    return real_number("contrast_power", power, least=0, most=LARGEST_POWER)


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
