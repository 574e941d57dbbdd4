"""Colours in 16 bits, for which Pillow has no kind of image: it reads the upper byte of each, and writes no more.

The lower bytes come out of a second reading of the file, by Pillow, too, so that a damaged one is refused as any other is.
`write_png` writes both.
"""

import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

__all__ = ["DeepImage", "deep_pixels", "is_deep", "write_png"]

# A number's order of bytes in a file, as Pillow calls it, and the order in which it would take the lower byte for the upper.
OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
DEEP = {f"{kind};16{order}" for kind in ("RGB", "RGBA", "LA") for order in OTHER_ORDER}

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {2: 4, 3: 2, 4: 6}  # by the number of channels
UP = 2  # the filter of all rows: bytes less those above them, of which zlib makes less
BAND = 64  # rows that are filtered at a time
INCH = 0.0254  # metres


@dataclass(frozen=True, eq=False)
class DeepImage:
    """Pixels (H, W, c) in uint16, of grey with alpha, RGB or RGBA; and of what came with them that which is kept, as
    Pillow's `info` has it: exif, icc_profile, dpi."""

    pixels: np.ndarray
    info: dict[str, Any]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, as images of Pillow have them."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def in_bytes(self) -> Image.Image:
        """Rounded to 8 bits."""
        image = Image.fromarray(((self.pixels.astype(np.uint32) + 128) // 257).astype(np.uint8))
        image.info.update(self.info)
        return image


def is_deep(image: ImageFile) -> bool:
    """Whether a file that was opened, and not read yet, has colours in 16 bits, or grey with alpha."""
    return _stored_as(image) in DEEP


def deep_pixels(read: Image.Image, opened: ImageFile) -> np.ndarray:
    """Pixels (H, W, c) in uint16 of a deep file that was read, with the upper bytes, and opened once more."""
    kind, _, order = _stored_as(opened).partition(";16")
    if kind == "LA":  # four bytes a pixel, which is what Pillow reads as RGBA
        return np.asarray(_read_as(opened, "RGBA")).view(">u2").astype(np.uint16)
    lower = _read_as(opened, f"{kind};16{OTHER_ORDER[order]}")
    pixels = np.asarray(read).astype(np.uint16) << 8 | np.asarray(lower)
    transparent = read.info.get("transparency")  # one colour, in a PNG file without alpha
    if transparent is None:
        return pixels
    alpha = np.where((pixels == transparent).all(axis=2), 0, 65535).astype(np.uint16)
    return np.dstack([pixels, alpha])


def _stored_as(image: ImageFile) -> str:
    """How pixels lie in the file, such as RGB;16B."""
    arguments = image.tile[0].args if image.tile else ""
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def _read_as(image: ImageFile, stored: str) -> Image.Image:
    """Read a file as if its pixels lay otherwise."""
    image.tile = [
        tile._replace(args=(stored, *tile.args[1:]) if isinstance(tile.args, tuple) else stored) for tile in image.tile
    ]
    image.load()
    return image


def write_png(image: DeepImage, path: Path) -> None:
    """Write pixels and all that is kept with them."""
    with path.open("wb") as file:
        file.write(SIGNATURE)
        for kind, content in _chunks(image):
            check = zlib.crc32(kind + content)
            file.write(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check))


def _chunks(image: DeepImage) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a PNG file."""
    yield b"IHDR", struct.pack(">IIBBBBB", *image.size, 16, COLOUR_TYPES[image.pixels.shape[2]], 0, 0, 0)
    if "icc_profile" in image.info:
        yield b"iCCP", b"ICC Profile\0\0" + zlib.compress(image.info["icc_profile"])
    if "dpi" in image.info:
        yield b"pHYs", struct.pack(">IIB", *(round(each / INCH) for each in image.info["dpi"]), 1)
    if "exif" in image.info:
        yield b"eXIf", image.info["exif"].removeprefix(b"Exif\0\0")
    yield from ((b"IDAT", content) for content in _compressed(image.pixels) if content)
    yield b"IEND", b""


def _compressed(pixels: np.ndarray) -> Iterator[bytes]:
    compressor = zlib.compressobj()
    above = np.zeros((1, 2 * pixels.shape[1] * pixels.shape[2]), np.uint8)
    for top in range(0, len(pixels), BAND):
        band = np.ascontiguousarray(pixels[top : top + BAND], ">u2")
        rows = band.view(np.uint8).reshape(len(band), -1)
        filtered = np.full((len(rows), 1 + rows.shape[1]), UP, np.uint8)
        filtered[:, 1:] = rows - np.concatenate([above, rows[:-1]])
        above = rows[-1:]
        yield compressor.compress(filtered.tobytes())
    yield compressor.flush()
