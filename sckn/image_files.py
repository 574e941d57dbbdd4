"""Opening image files: which are read, and what is wrong with one in a few words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

__all__ = ["FORMATS_IN_WORDS", "SUFFIXES", "opened_image", "read_whole", "what_is_wrong"]

# Pillow knows more, but some of these start other programs (EPS), and few hold photographs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# How their files end.
SUFFIXES = (".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm")
SUFFIXES += (".tif", ".tiff", ".webp")
FORMATS_IN_WORDS = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"

BITS_PER_SAMPLE, PLANES = 258, 284  # tags of TIFF files
APART = 2  # one colour after the other


@contextmanager
def opened_image(source: str | Path | BinaryIO) -> Iterator[ImageFile]:
    """A file of a known format, opened, its pixels not read yet. Pillow may warn, and raise almost anything."""
    with Image.open(source, formats=FORMATS) as image:
        tags = getattr(image, "tag_v2", {})
        if tags.get(PLANES) == APART and 16 in tags.get(BITS_PER_SAMPLE, ()):  # Pillow would take each byte for a pixel
            raise ValueError("its colours, in 16 bits, lie apart from each other; expected those of a pixel together")
        yield image


def read_whole(image: ImageFile) -> Image.Image:
    """The image with its pixels read; grey in 16 bits is so in every format, though Pillow takes that of PGM for 32."""
    image.load()
    if image.format == "PPM" and image.mode == "I":
        return Image.fromarray(np.asarray(image).astype(np.uint16))
    return image


def what_is_wrong(error: Exception) -> str:
    """The reason for any error of Pillow's; at damaged files it raises SyntaxError, struct.error, KeyError, and more."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    words = str(getattr(error, "strerror", None) or error).split()
    return " ".join(words)[:100] or type(error).__name__
