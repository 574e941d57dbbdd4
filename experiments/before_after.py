"""The picture at the top of README.md: a detail of a photograph before and after a model made it larger.

    python experiments/before_after.py

The photograph that comes with sckn is made smaller. Its detail is then shown four times, side by side: small, with its pixels
as squares; made larger again by bicubic interpolation; made larger again by the model; as it was.
"""

from pathlib import Path

import torch
import tyro
from torch import Tensor

from sckn.checkpoint import load_upscaler
from sckn.demo.photo import PHOTO
from sckn.files import written_whole
from sckn.image_grid import image_grid
from sckn.superres.colour import in_bytes
from sckn.superres.imresize import imresize
from sckn.superres.photos import open_photo
from sckn.superres.picture import Picture
from sckn.superres.side_by_side import three_forms
from sckn.superres.upscaler import Upscaler

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "before-after.png"
# The eye on the left, in pixels of the photograph; all four numbers are multiples of 3, so that no square is cut at x3.
DETAIL = (..., slice(78, 150), slice(129, 216))
GAP = 4  # white pixels around the forms


def before_after(model: str = "superres-x3", output: Path = PICTURE, zoom: int = 3) -> None:
    """Draw the picture.

    Args:
        model: File or name of a model; the photograph is made smaller by its factor.
        output: PNG file.
        zoom: Pixels of the PNG file along a side of one of the photograph.
    """
    pixels = Picture.of(open_photo(PHOTO)).pixels
    details = torch.stack([form[DETAIL] for form in four_forms(load_upscaler(model), pixels)])
    with written_whole(output) as temporary:
        temporary.write_bytes(image_grid(details.numpy()[None], zoom, GAP))
    print(output)


def four_forms(upscaler: Upscaler, pixels: Tensor) -> list[Tensor]:
    """Of a photograph (3, H, W) in bytes, all of the same size: small, by bicubic interpolation, by the model, as it was."""
    scale = upscaler.scale
    truth, bicubic, ours = three_forms(upscaler, pixels, scale)
    small = in_bytes(imresize(truth.double(), 1 / scale))
    squares = small.repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2)
    return [squares, bicubic, ours, truth]


if __name__ == "__main__":
    tyro.cli(before_after)
