"""A large picture put together: luminance from a model, the colour differences and alpha by bicubic interpolation."""

from collections.abc import Callable

import torch
from torch import Tensor

from sckn.superres.colour import rgb_to_ycbcr, ycbcr_to_rgb
from sckn.superres.imresize import BAND, Taps, resize_taps, resized_rows
from sckn.superres.picture import Picture

__all__ = ["assembled"]


def assembled(picture: Picture, luminance: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels of the kind of `picture`, (c, *size).

    `luminance` (H, W), from 0 to 255, is resized if it has another size.
    """
    height, width = size
    channels = len(picture.pixels)
    # the channels of a pixel lie together, as in the arrays that most results become
    result = torch.empty(height, width, channels, dtype=picture.pixels.dtype, device=picture.pixels.device).permute(2, 0, 1)
    fine = _taps(luminance.shape, size)
    coarse = _taps(picture.size, size)
    for top in range(0, height, BAND):
        bottom = min(top + BAND, height)
        band = [_resized(lambda rows: luminance[None, rows], fine, top, bottom)]  # (1, b, W)
        if picture.colours == 3:
            differences = _resized(lambda rows: rgb_to_ycbcr(picture.levels(rows, slice(0, 3)))[1:], coarse, top, bottom)
            band = [ycbcr_to_rgb(torch.cat([*band, differences]))]
        if channels > picture.colours:
            band.append(_resized(lambda rows: picture.levels(rows, slice(picture.colours, None)), coarse, top, bottom))
        result[:, top:bottom] = picture.from_levels(torch.cat(band))
    return result


def _taps(before: torch.Size | tuple[int, int], after: tuple[int, int]) -> tuple[Taps, Taps] | None:
    """How rows and columns are resized, if they are."""
    if tuple(before) == after:
        return None
    return resize_taps(before[0], after[0]), resize_taps(before[1], after[1])


def _resized(rows_of: Callable[[slice], Tensor], taps: tuple[Taps, Taps] | None, top: int, bottom: int) -> Tensor:
    """Rows of the result."""
    return rows_of(slice(top, bottom)) if taps is None else resized_rows(rows_of, taps, top, bottom)
