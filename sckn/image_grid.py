"""Small images side by side in one picture."""

import io

import numpy as np
from PIL import Image

__all__ = ["filter_tiles", "image_grid"]

WHITE = 255


def image_grid(tiles: np.ndarray, zoom: int = 1, gap: int = 2) -> bytes:
    """A PNG of tiles (rows, columns, c, h, w) in bytes, of 1 or 3 channels, each pixel `zoom` wide, white between them."""
    rows, columns, _, height, width = tiles.shape
    large = tiles.repeat(zoom, axis=3).repeat(zoom, axis=4)
    step = (height * zoom + gap, width * zoom + gap)
    picture = np.full((rows * step[0] + gap, columns * step[1] + gap, 3), WHITE, np.uint8)
    for row, column in np.ndindex(rows, columns):
        y, x = gap + row * step[0], gap + column * step[1]
        picture[y : y + height * zoom, x : x + width * zoom] = large[row, column].transpose(1, 2, 0)  # one channel is grey
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", optimize=True)
    return out.getvalue()


def filter_tiles(filters: np.ndarray, columns: int) -> np.ndarray:
    """Filters (p, c, e, e) as tiles (rows, columns, 1 or 3, e, e): grey is zero, the strongest number of each black or white.

    Of other than 3 channels their mean is shown. Places that are left over are white.
    """
    shown = filters if filters.shape[1] == 3 else filters.mean(axis=1, keepdims=True)
    strongest = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    levels = np.rint(127.5 * (1 + shown / np.where(strongest > 0, strongest, 1))).astype(np.uint8)
    rows = -(-len(levels) // columns)
    tiles = np.full((rows * columns, *levels.shape[1:]), WHITE, np.uint8)
    tiles[: len(levels)] = levels
    return tiles.reshape(rows, columns, *levels.shape[1:])
