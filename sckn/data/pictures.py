"""One image file, in any of the usual formats, as RGB bytes of one size."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from sckn.image_files import opened_image, read_whole, what_is_wrong

__all__ = ["read_picture"]

MOST_PIXELS = 2**26  # a small file can unpack to an image that fills the memory


def read_picture(source: Path | BinaryIO, size: int) -> np.ndarray:
    """The image (3, size, size): upright by its EXIF orientation, over white where it is transparent, resized as a whole.

    `source` is a path or an open file. What is not square is stretched, so that nothing is cut off. An image that cannot be
    read is a ValueError with the reason alone. Pillow may also warn.
    """
    try:
        with opened_image(source) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            upright = ImageOps.exif_transpose(read_whole(image))
            resized = _rgb(upright).resize((size, size), Image.Resampling.BICUBIC)
            return np.asarray(resized).transpose(2, 0, 1)
    except Exception as error:  # Pillow raises almost anything at damaged files
        raise ValueError(what_is_wrong(error)) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would cut off what does not fit into a byte
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of the kind {image.mode} have no known range")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        return white.convert("RGB")
    return image.convert("RGB")
