"""Rectangles that cover an image, so that work which needs much memory for each pixel is done on one after the other."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sckn.superres.imresize import reflected

__all__ = ["Tile", "count_tiles", "cover"]


@dataclass(frozen=True)
class Tile:
    """Rows and columns of an image."""

    top: int
    bottom: int
    left: int
    right: int

    def cut(self, image: Tensor, context: int) -> Tensor:
        """The tile of an image (H, W) with `context` more pixels on each side; beyond the border the image is mirrored."""
        height, width = image.shape
        rows = reflected(torch.arange(self.top - context, self.bottom + context, device=image.device), height)
        columns = reflected(torch.arange(self.left - context, self.right + context, device=image.device), width)
        return image[rows[:, None], columns]

    def place(self, scale: int) -> tuple[slice, slice]:
        """Where the tile lies in an image that is larger by `scale`."""
        return slice(scale * self.top, scale * self.bottom), slice(scale * self.left, scale * self.right)


def cover(height: int, width: int, side: int) -> Iterator[Tile]:
    """Tiles of nearly one size, of at most `side` pixels, that cover an image without overlap."""
    rows, columns = _cuts(height, side), _cuts(width, side)
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            yield Tile(top, bottom, left, right)


def count_tiles(height: int, width: int, side: int) -> int:
    """How many `cover` gives."""
    return math.ceil(height / side) * math.ceil(width / side)


def _cuts(length: int, side: int) -> list[int]:
    parts = math.ceil(length / side)
    return [length * part // parts for part in range(parts + 1)]
