"""`Upscaler`: a kernel network that makes photographs larger, section 4.2 of the paper.

The network sees the detail of the luminance and predicts, with one linear model for all pixels, what bicubic interpolation
lost. It works on the interpolated image, as in the paper; or, faster by the square of the factor, on the small one, with
one output of the linear model for each of the pixels that a small pixel becomes. At its own factor the result is the image
nearest to that which, made smaller, is the small image again (`sckn.superres.consistency`).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from sckn.layer import evaluating
from sckn.model import KernelModel
from sckn.network import NetworkConfig
from sckn.pixels import tensor_of
from sckn.precision import precision
from sckn.settings import real_number, true_or_false, whole_number
from sckn.superres import detail
from sckn.superres.assembly import assembled
from sckn.superres.consistency import FILTER_REACH, move_to_nearest_image
from sckn.superres.imresize import SUPPORT, imresize
from sckn.superres.picture import AnyImage, Picture
from sckn.superres.tiles import count_tiles, cover

__all__ = ["Upscaler", "UpscalerConfig", "network_margin"]

Image = TypeVar("Image", bound=AnyImage)
Luminance = TypeVar("Luminance", Tensor, np.ndarray)

CUBIC_REACH = math.ceil(SUPPORT / 2)  # pixels on each side that interpolation looks at
# Maps as large as the largest that a layer holds at a time: its input, its output, what is between, what convolutions need.
MAPS_AT_A_TIME = 8
# Pixels of the network's input along a side of a tile: larger tiles are not faster, smaller ones are mostly overlap.
LARGEST_TILE, SMALLEST_TILE = 512, 32


@dataclass(frozen=True)
class UpscalerConfig:
    """What an upscaler is besides its network and linear model.

    Parameters
    ----------
    scale: by which it makes images larger.
    low_resolution: the network works on the small image instead of the interpolated one.
    detail_unit: the network sees detail divided by this many grey levels.
    """

    scale: int
    low_resolution: bool = False
    detail_unit: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", whole_number("scale", self.scale, least=2))
        object.__setattr__(self, "low_resolution", true_or_false("low_resolution", self.low_resolution))
        object.__setattr__(self, "detail_unit", real_number("detail_unit", self.detail_unit, above=0))

    @property
    def outputs(self) -> int:
        """Of the linear model: the pixels that one pixel of the network's input stands for."""
        return self.scale**2 if self.low_resolution else 1

    @property
    def grid(self) -> int:
        """Pixels of the network's input along a side of a small pixel."""
        return 1 if self.low_resolution else self.scale


def network_margin(config: NetworkConfig) -> int:
    """Pixels that a network for super-resolution loses on each side; others are refused."""
    if config.in_channels != 1:
        raise ValueError(f"an upscaler's network sees luminance only: its in_channels must be 1, got {config.in_channels}")
    for number, layer in enumerate(config.layers, 1):
        if layer.padding or layer.subsampling != 1 or layer.patch % 2 == 0:
            raise ValueError(
                f"layer {number} of an upscaler's network must have padding = false, subsampling = 1 and an odd patch, "
                f"got {layer.padding}, {layer.subsampling:g} and {layer.patch}"
            )
    return sum(layer.patch // 2 for layer in config.layers)


class Upscaler(nn.Module):
    """A model that makes images larger by `config.scale`, and by other factors with a resize after it.

    Parameters
    ----------
    model: its network takes detail, without padding and pooling; its linear model predicts for each pixel what is to be
        added to bicubic interpolation, in grey levels. Of that only what the small image leaves open is used.
    config: the factor, and what the network works on.

    Example
    -------
    >>> from sckn import CKN, KernelModel, LayerConfig, NetworkConfig
    >>> network = CKN(NetworkConfig(1, (LayerConfig(filters=8, patch=3, padding=False),)))
    >>> untrained = Upscaler(KernelModel(network, torch.zeros(8, 1), per_pixel=True), UpscalerConfig(scale=2))
    >>> untrained.upscale(np.zeros((40, 60, 3), np.uint8)).shape
    (80, 120, 3)
    """

    def __init__(self, model: KernelModel, config: UpscalerConfig) -> None:
        super().__init__()
        self.margin = network_margin(model.network.config)
        if not model.per_pixel or model.weights.shape[1] != config.outputs:
            raise ValueError(
                f"at scale {config.scale} the linear model must act on pixels and have {config.outputs} outputs, "
                f"got per_pixel={model.per_pixel} and {model.weights.shape[1]}"
            )
        self.model, self.config = model, config

    @property
    def scale(self) -> int:
        return self.config.scale

    @property
    def context(self) -> int:
        """Pixels of the small image on each side that what the network says of a pixel depends on."""
        lost = self.margin + detail.MARGIN
        return lost if self.config.low_resolution else math.ceil(lost / self.scale) + CUBIC_REACH

    @property
    def reach(self) -> int:
        """Pixels of the small image on each side that a pixel of the result depends on."""
        return self.context + FILTER_REACH + 2 * CUBIC_REACH

    def forward(self, images: Tensor) -> Tensor:
        """What the network says of luminance (B, 1, h, w) from 0 to 255: (B, 1, scale (h - 2 context), scale (w - 2 context)),
        in grey levels."""
        config = self.config
        height, width = (config.scale * (side - 2 * self.context) for side in images.shape[2:])
        seen = images if config.low_resolution else imresize(images, config.scale)
        # a model in half precision sees detail so; the luminance itself would lose grey levels
        lost = self.model((detail.without_local_mean(seen) / config.detail_unit).to(self.model.weights.dtype))
        return _middle(F.pixel_shuffle(lost, config.scale) if config.low_resolution else lost, height, width)

    # -- luminance ----------------------------------------------------------------------------------------------------

    def upscale_luminance(
        self,
        y: Luminance,
        factor: float | None = None,
        *,
        memory_gib: float = 0.5,
        tile: int | None = None,
        progress: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> Luminance:
        """The bare model: luminance (H, W) in floating point from 0 to 255, neither rounded nor clipped, as the result is.

        Parameters
        ----------
        y: an array, or a tensor of any device; the result is of the same kind.
        factor: any number above 1; the model's own where left out. A larger factor takes several passes, one that is no
            power of the model's own a resize down at the end: the paper's way to x3 is twice x2, then 3/4.
        memory_gib: that the work on one tile may take, besides y and the result.
        tile: pixels of y along a side of a tile, at most.
        progress: show a bar, if standard error is a terminal.
        report: called after each tile with how many are done, and of how many.
        """
        small = tensor_of(y) if isinstance(y, np.ndarray) else y
        if small.dim() != 2 or small.numel() == 0 or not small.is_floating_point():
            raise ValueError(f"expected luminance (H, W) in floating point, got {tuple(small.shape)}, {small.dtype}")
        if not bool(torch.isfinite(small).all()):
            raise ValueError("the luminance holds NaN or infinity; clean it first")
        factor = self._checked_factor(factor)
        large = self._passes(small, factor, self._tile_side(memory_gib, tile), progress, report)
        height, width = _enlarged(small.shape, factor)
        if large.shape != (height, width):
            large = imresize(large, size=(height, width))
        large = large.to(small.dtype)
        return large.numpy() if isinstance(y, np.ndarray) else large  # pyright: ignore[reportReturnType]

    def check_settings(self, factor: float | None, memory_gib: float, tile: int | None) -> None:
        """A mistake in them, before there is an image."""
        self._checked_factor(factor)
        self._tile_side(memory_gib, tile)

    def _checked_factor(self, factor: float | None) -> float:
        return float(self.scale) if factor is None else real_number("factor", factor, above=1)

    def passes(self, factor: float) -> int:
        """How often the model is used for a factor."""
        return next(count for count in itertools.count(1) if self.scale**count >= factor)

    def _passes(
        self, small: Tensor, factor: float, side: int, progress: bool, report: Callable[[int, int], None] | None
    ) -> Tensor:
        """As many passes as the factor needs, on the device of the image; the result may be larger than asked for."""
        height, width = small.shape
        sizes = [(self.scale**count * height, self.scale**count * width) for count in range(self.passes(factor))]
        total = sum(count_tiles(rows, columns, side) for rows, columns in sizes)
        done = itertools.count(1)
        with tqdm(total=total, desc="upscaling", unit="tile", disable=None if progress else True) as bar:

            def tile_done() -> None:
                bar.update()
                if report is not None:
                    report(next(done), total)

            for _ in sizes:
                small = self._one_pass(small, side, tile_done)
        return small

    @torch.no_grad()
    def _one_pass(self, small: Tensor, side: int, tile_done: Callable[[], None]) -> Tensor:
        height, width = small.shape
        device = self.model.weights.device
        dtype = torch.promote_types(self.model.weights.dtype, torch.float32)
        large = torch.empty(self.scale * height, self.scale * width, dtype=dtype, device=small.device)
        with evaluating(self), precision("highest", device):
            for tile in cover(height, width, side):
                part = tile.cut(small, self.context)[None, None].to(device, dtype)
                large[tile.place(self.scale)] = self(part)[0, 0].to(large)
                tile_done()
        return move_to_nearest_image(large, small, self.scale)

    def _tile_side(self, memory_gib: float, tile: int | None = None) -> int:
        """Small pixels along a side of a tile, so that the work on it takes no more than this memory."""
        available = real_number("memory_gib", memory_gib, above=0) * 2**30
        numbers = max(layer.filters for layer in self.model.network.config.layers) + self.config.outputs
        each = MAPS_AT_A_TIME * numbers * self.model.weights.element_size()  # bytes for a pixel of the network's input
        grid = self.config.grid
        largest = LARGEST_TILE // grid if tile is None else whole_number("tile", tile)
        least = min(math.ceil(SMALLEST_TILE / grid), largest)
        side = math.isqrt(int(available / each)) // grid - 2 * self.context
        if side < least:
            needed = each * (grid * (least + 2 * self.context + 1)) ** 2 / 2**30
            raise ValueError(f"a memory of {memory_gib:g} GiB is too little for this model; give at least {1.06 * needed:.2g}")
        return min(side, largest)

    # -- images -------------------------------------------------------------------------------------------------------

    def upscale(
        self,
        image: Image,
        factor: float | None = None,
        *,
        memory_gib: float = 0.5,
        tile: int | None = None,
        progress: bool = True,
        report: Callable[[int, int], None] | None = None,
    ) -> Image:
        """Make an image larger; the result is of the same kind.

        The model does the luminance, bicubic interpolation the colours and alpha. Besides the image and the result this
        takes 8 bytes for each pixel of the result (of the last pass, if that is larger) and `memory_gib`.

        Parameters
        ----------
        image: an array (H, W) or (H, W, c), a tensor (H, W) or (c, H, W), or an image of Pillow; grey, RGB, either with
            alpha; in bytes, 16 bits, or floating point from 0 to 1. An image of Pillow keeps its EXIF data, with the
            orientation in them, and its colour profile; if its colours are those of printers, it becomes RGB.
        factor, memory_gib, tile, progress, report: as for `upscale_luminance`.
        """
        picture = Picture.of(image)
        factor = self._checked_factor(factor)
        large = self._passes(picture.luminance(), factor, self._tile_side(memory_gib, tile), progress, report)
        return picture.restored(assembled(picture, large.float(), _enlarged(picture.size, factor)))


def _enlarged(size: torch.Size | tuple[int, int], factor: float) -> tuple[int, int]:
    return round(size[0] * factor), round(size[1] * factor)


def _middle(images: Tensor, height: int, width: int) -> Tensor:
    top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
    return images[..., top : top + height, left : left + width]
