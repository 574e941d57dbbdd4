"""What worker processes do with files of visitors: look at them, make them larger, classify them.

Whatever reads a visitor's bytes is here, away from the server's own process. A `RefusalError` tells what is wrong with a file.
"""

import io
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from sckn.checkpoint import load_classifier, load_upscaler
from sckn.classification import classify_files
from sckn.classifier import ImageClassifier
from sckn.image_files import FORMATS_IN_WORDS, opened_image, what_is_wrong
from sckn.superres.photos import decoded_photo, write_photo
from sckn.superres.picture import MODES, noting_what_is_left_out
from sckn.superres.upscale_files import lack_of_memory_told
from sckn.superres.upscaler import Upscaler
from sckn.web.limits import RefusalError

__all__ = ["classify", "inspect", "take_stock", "upscale", "use_threads"]

Report = Callable[[int, int], None]

# Pixels along a side of a tile: small ones tell often how far the work is, but overlap; about this many are enough.
TILES, SMALLEST_TILE, LARGEST_TILE = 24, 64, 256


def use_threads(count: int) -> None:
    """Of the processor, for all that this process computes."""
    torch.set_num_threads(count)


def take_stock(upscalers: tuple[str, ...], classifiers: tuple[str, ...], device: str) -> dict[str, str | None]:
    """For each model nothing if it can be used, or why it cannot."""
    loaders = {**dict.fromkeys(upscalers, _upscaler), **dict.fromkeys(classifiers, _classifier)}
    stock: dict[str, str | None] = {}
    for name, loader in loaders.items():
        try:
            loader(name, device)
            stock[name] = None
        except (ValueError, OSError) as problem:
            stock[name] = str(problem)
    return stock


@cache
def _upscaler(name: str, device: str) -> Upscaler:
    return load_upscaler(name, device)


@cache
def _classifier(name: str, device: str) -> ImageClassifier:
    classifier = load_classifier(name, device)
    if classifier.channels != 3:
        raise ValueError(f"the model {name} takes images with {classifier.channels} channels, and those of visitors have 3")
    return classifier


def inspect(path: str, most_pixels: int, *, lossless: bool) -> tuple[int, int]:
    """Width and height of a photograph, upright, after it was read to its end; `lossless` if the result is to be a PNG file."""
    _check_header(path, most_pixels)
    image = _read(path)
    if image.mode not in MODES:
        raise RefusalError(422, f"the colours of the photo are of the kind {image.mode}; save it in RGB or in grey")
    if not lossless and (image.mode.startswith("I;16") or image.has_transparency_data):
        raise RefusalError(
            422, "a JPEG file holds neither transparency nor 16 bits, which the photo has; choose PNG for the result"
        )
    return image.size


def upscale(path: str, target: str, model: str, scale: int, memory_gib: float, device: str, report: Report) -> list[str]:
    """Write a photograph, upright and larger, to `target`; gives notes on what is not in the result."""
    image = _read(path)
    side = math.ceil(math.sqrt(image.width * image.height / TILES))
    tile = min(max(side, SMALLEST_TILE), LARGEST_TILE)
    with noting_what_is_left_out() as notes, lack_of_memory_told():
        upscaler = _upscaler(model, device)
        large = upscaler.upscale(image, scale, memory_gib=memory_gib, tile=tile, progress=False, report=report)
    write_photo(large, target)
    return notes


def classify(path: str, most_pixels: int, model: str, device: str) -> list[tuple[str, float]]:
    """All classes with their scores, best first."""
    _check_header(path, most_pixels)
    classifier = _classifier(model, device)
    (answer,) = classify_files(classifier, [path], io.BytesIO(), top=len(classifier.classes))
    if answer.problem is not None:
        raise RefusalError(422, f"the image cannot be read ({answer.problem}); repair it or choose another")
    return list(answer.best)


def _check_header(path: str, most_pixels: int) -> None:
    """Refuse before it is unpacked what is no image, or a very large one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about many pixels
            with opened_image(path) as image:
                width, height = image.size
    except UnidentifiedImageError:
        raise RefusalError(415, f"the file is not an image of a known format; choose one in {FORMATS_IN_WORDS}") from None
    except Image.DecompressionBombError:
        raise RefusalError(
            413, f"the image has too many pixels; at most {most_pixels / 1e6:g} megapixels are read here"
        ) from None
    except Exception as error:  # Pillow raises almost anything at damaged files
        raise _unreadable(what_is_wrong(error)) from None
    if width * height > most_pixels:
        raise RefusalError(
            413,
            f"the image has {width} x {height} pixels, and at most {most_pixels / 1e6:g} megapixels are read here; "
            "choose a smaller one",
        )


def _read(path: str) -> Image.Image:
    """Upright, since not every program turns every kind of file; damaged EXIF data should not cost the picture."""
    try:
        image = decoded_photo(path)
    except ValueError as error:
        raise _unreadable(str(error)) from None
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = ImageOps.exif_transpose(image)
    return image


def _unreadable(reason: str) -> RefusalError:
    return RefusalError(422, f"the photo cannot be read ({reason}); repair it or choose another")
