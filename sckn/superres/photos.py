"""Photographs in files: which a folder holds, reading them whole, writing them with what belongs to them."""

import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile
from torch import Tensor

from sckn.files import written_whole
from sckn.image_files import SUFFIXES, opened_image, read_whole, what_is_wrong
from sckn.superres.colour import in_bytes, luminance
from sckn.superres.deep_image import DeepImage, deep_pixels, is_deep, write_png
from sckn.superres.picture import LeftOutWarning, Picture, belongings

__all__ = [
    "WRITTEN",
    "checked_suffix",
    "decoded_photo",
    "naming",
    "open_photo",
    "photo_files",
    "read_luminance",
    "read_photo",
    "write_photo",
]

# How the files end that can be written; more can be read.
WRITTEN = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
HOLD_EXIF = (".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# The JPEG files of some cameras, which hold smaller copies of their picture.
HOLDS_COPIES = "MPO"
# Where colours in 16 bits can be written.
HOLDS_DEEP = ".png"
# What Pillow raises where a format has no place for an image or what belongs to it.
NO_PLACE = (ValueError, KeyError, TypeError, OverflowError, struct.error)


def photo_files(folder: str | Path) -> list[Path]:
    """The image files of a folder, in the order of their names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one with images")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    if not files:
        raise ValueError(f"{folder} holds no images; expected files that end in {', '.join(SUFFIXES)}")
    return files


def open_photo(path: str | Path) -> Image.Image:
    """A file as an image of Pillow, read to its end; an animation is refused."""
    with _opened(path) as image:
        return read_whole(image)


def read_photo(path: str | Path) -> Image.Image | DeepImage:
    """As `open_photo`; but colours in 16 bits stay so."""
    with _opened(path) as opened:
        deep = is_deep(opened)
        image = read_whole(opened)
    if not deep:
        return image
    with _opened(path) as again:
        pixels = deep_pixels(image, again)
    return DeepImage(pixels, belongings(image))


def decoded_photo(path: str | Path) -> Image.Image:
    """As `open_photo`, of a plain file; what is wrong with it is a ValueError with the reason alone."""
    with _decoding(path) as image:
        return read_whole(image)


@contextmanager
def _opened(path: str | Path) -> Iterator[ImageFile]:
    """Whatever is wrong with the file, or with reading it inside, is told in one sentence."""
    if not os.path.exists(path):
        raise ValueError(f"{path} does not exist; expected an image")
    try:
        if not os.path.isfile(path):  # a pipe could be waited for without end
            raise ValueError("it is no plain file")
        with _decoding(path) as image:
            yield image
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as an image ({error}); give a whole one, of a single picture") from None


@contextmanager
def _decoding(path: str | Path) -> Iterator[ImageFile]:
    """Whatever is wrong with the file, or with reading it inside, is a ValueError with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about what it repairs by itself
            with opened_image(path) as image:
                if image.format != HOLDS_COPIES and getattr(image, "is_animated", False):
                    raise ValueError("it holds several pictures")
                yield image
    except Exception as error:  # Pillow raises almost anything at damaged files
        raise ValueError(what_is_wrong(error)) from None


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """A mistake that comes from a file says from which."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def read_luminance(path: str | Path) -> Tensor:
    """Y (H, W) of a file in bytes, rounded; a grey one is used as it is, alpha is left out.

    Orientation and colour profile do not matter here: what is measured is the pixels.
    """
    with naming(path):
        picture = Picture.of(read_photo(path))
    levels = luminance(picture.levels(channels=slice(0, picture.colours)).double())
    return in_bytes(levels)


def checked_suffix(path: Path) -> str:
    """The ending of a file that is to be written, in small letters."""
    suffix = path.suffix.lower()
    if suffix not in WRITTEN:
        raise ValueError(f"{path} should end in one of {', '.join(WRITTEN)}, which says how it is written")
    return suffix


def write_photo(image: Image.Image | DeepImage, path: str | Path) -> Path:
    """Write an image with its EXIF data and colour profile; where a format has no place for EXIF data, it is turned upright.

    Colours in 16 bits are written so as PNG, else in 8, with a warning.
    """
    path = Path(path)
    suffix = checked_suffix(path)
    if isinstance(image, DeepImage):
        if suffix == HOLDS_DEEP:
            with written_whole(path) as temporary:
                write_png(image, temporary)
            return path
        warnings.warn(f"of its colours in 16 bits {path} holds 8; choose {HOLDS_DEEP} for all", LeftOutWarning, stacklevel=2)
        image = image.in_bytes()
    options = {name: image.info[name] for name in ("icc_profile", "dpi") if name in image.info}
    if suffix in HOLD_EXIF and "exif" in image.info:
        options["exif"] = image.info["exif"]
    elif suffix not in HOLD_EXIF:
        image = ImageOps.exif_transpose(image)
    if suffix in (".jpg", ".jpeg"):
        options["quality"] = 95
    with written_whole(path) as temporary:
        try:
            image.save(temporary, **options)
        except NO_PLACE as error:
            raise ValueError(f"{path} cannot hold an image of mode {image.mode} ({error}); choose .png") from None
        except OSError as error:
            if error.errno is None:  # Pillow's own, not the disk's
                raise ValueError(f"{path} cannot hold an image of mode {image.mode} ({error}); choose .png") from None
            raise
    return path
