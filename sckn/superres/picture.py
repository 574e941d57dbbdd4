"""Images as users have them, numpy, Pillow or torch, grey or in colours, in 8 or 16 bits, in one form, and back."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sckn.pixels import check_unit_range, tensor_of
from sckn.superres.colour import luminance
from sckn.superres.deep_image import DeepImage
from sckn.superres.imresize import BAND
from sckn.superres.print_colours import OWN_PROFILE, PRINT_MODES, in_rgb

__all__ = ["MODES", "AnyImage", "LeftOutWarning", "Picture", "belongings", "noting_what_is_left_out"]

AnyImage = Tensor | np.ndarray | Image.Image | DeepImage

MODES = ("1", "L", "LA", "I;16", "I;16L", "I;16B", "P", "PA", "RGB", "RGBA", *PRINT_MODES)
EXIF_SIZE = {40962: 0, 40963: 1}  # width and height of the picture, in the table of EXIF's own tags
EXIF_IFD = 34665
# How the pixels lie in a TIFF file, which lists this with its EXIF data: size, compression, strips, tiles, JPEG tables.
LAYOUT = (*range(254, 264), 266, 273, *range(277, 280), 284, 292, 293, 317, *range(320, 326), *range(330, 334))
LAYOUT += (*range(336, 348), *range(512, 522), *range(529, 533), 34675)


class LeftOutWarning(UserWarning):
    """Something that came with a picture is not, or not as it was, in the result: it is damaged or has no place there."""


@contextmanager
def noting_what_is_left_out() -> Iterator[list[str]]:
    """No warnings are shown; those of what is left out are in the list, after the block."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", LeftOutWarning)
        yield notes
    notes += [str(warning.message) for warning in caught]


@dataclass(frozen=True)
class Picture:
    """Pixels (c, H, W) from 0 to `peak`, of one grey or three colours, and perhaps alpha after them.

    `restored` makes of other pixels of the same kind, of any size, what the user gave: a tensor, an array, an image.
    """

    pixels: Tensor
    peak: float
    restored: Callable[[Tensor], Any]

    @classmethod
    def of(cls, image: AnyImage) -> "Picture":
        """A tensor (H, W) or (c, H, W), an array (H, W) or (H, W, c), an image of Pillow, or a `DeepImage`.

        c is 1 for grey, 3 for RGB, and one more with alpha. Numbers are bytes, 16 bits, or floating point from 0 to 1.
        """
        if isinstance(image, Image.Image):
            picture = _from_pillow(image)
        elif isinstance(image, DeepImage):
            picture = _from_deep(image)
        elif isinstance(image, np.ndarray):
            picture = _from_array(image)
        elif isinstance(image, Tensor):
            picture = cls(image.detach()[None] if image.dim() == 2 else image.detach(), 0, _as_tensor(image))
        else:
            raise TypeError(f"expected an image as a numpy array, a tensor or one of Pillow, got {type(image).__name__}")
        return replace(picture, peak=_checked_peak(picture.pixels))

    @property
    def colours(self) -> int:
        """1 or 3; an alpha channel does not count."""
        return 1 if len(self.pixels) < 3 else 3

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def levels(self, rows: slice = slice(None), channels: slice = slice(None)) -> Tensor:
        """Some rows of some channels, from 0 to 255 whatever the peak, in float32."""
        part = self.pixels[channels, rows]
        if part.dtype == torch.uint16:  # which torch can do little with
            part = part.to(torch.int32)
        return part.float() * (255 / self.peak)

    def luminance(self) -> Tensor:
        """Y (H, W) from 0 to 255 in float32, not rounded; of a grey picture its pixels."""
        result = torch.empty(self.size, device=self.pixels.device)
        for top in range(0, len(result), BAND):
            rows = slice(top, top + BAND)
            result[rows] = luminance(self.levels(rows, slice(0, self.colours)))
        return result

    def from_levels(self, levels: Tensor) -> Tensor:
        """Pixels of this kind from values from 0 to 255, rounded where they are whole numbers, and clipped."""
        values = (levels * (self.peak / 255)).clamp(0, self.peak)
        if self.pixels.is_floating_point():
            return values.to(self.pixels.dtype)
        values = (values + 0.5).floor()
        # by way of int32, from which torch knows the way to 16 bits
        return values.to(torch.int32).to(self.pixels.dtype)


def _checked_peak(pixels: Tensor) -> float:
    shape, dtype = tuple(pixels.shape), pixels.dtype
    if pixels.dim() != 3 or not 1 <= shape[0] <= 4 or 0 in shape:
        raise ValueError(
            f"expected an image with pixels in it and 1 to 4 channels, arrays as (H, W, c) and tensors as (c, H, W); "
            f"got channels, height and width {shape}"
        )
    if dtype in (torch.uint8, torch.uint16):
        return 255.0 if dtype == torch.uint8 else 65535.0
    if not pixels.is_floating_point():
        raise ValueError(f"expected pixels in bytes (uint8), 16 bits (uint16) or floating point, got {dtype}")
    check_unit_range(pixels)
    return 1.0


def _as_tensor(image: Tensor) -> Callable[[Tensor], Tensor]:
    """A tensor (H, W) comes back as one."""
    return (lambda pixels: pixels[0].contiguous()) if image.dim() == 2 else (lambda pixels: pixels.contiguous())


def _from_array(image: np.ndarray) -> Picture:
    if image.ndim not in (2, 3):
        raise ValueError(f"expected an array (H, W) or (H, W, c), got {image.shape}")
    tensor = tensor_of(image)
    if tensor.dim() == 2:
        return Picture(tensor[None], 0, lambda pixels: pixels[0].numpy())
    return Picture(tensor.permute(2, 0, 1), 0, lambda pixels: pixels.permute(1, 2, 0).contiguous().numpy())


def _from_pillow(image: Image.Image) -> Picture:
    """Palettes become colours, two levels 256, colours of printers those of screens; EXIF data, with the orientation in them,
    and colour profile are kept."""
    if image.mode not in MODES:
        raise ValueError(f"the image has pixels of the kind {image.mode}; expected grey or colours in 8 or 16 bits, save it so")
    info = belongings(image)
    mode, profile = image.mode, info.pop("icc_profile", None)
    try:
        if mode in PRINT_MODES:
            image, profile = in_rgb(image)
        array = _array_of(image)
    except Exception as error:  # of a palette that is not there, for example, Pillow raises an AssertionError
        raise ValueError(f"the pixels of the image cannot be read ({type(error).__name__}); repair it") from None
    if profile is not None:
        info["icc_profile"] = profile
    if mode in PRINT_MODES:
        how = ", without a colour profile that could be followed" if mode in OWN_PROFILE and profile is None else ""
        warnings.warn(f"its {mode} colours are made RGB{how}", LeftOutWarning, stacklevel=2)
    picture = _from_array(array)

    def restored(pixels: Tensor) -> Image.Image:
        result = Image.fromarray(picture.restored(pixels))
        result.info.update(_of_size(info, result.size))
        return result

    return Picture(picture.pixels, 0, restored)


def _array_of(image: Image.Image) -> np.ndarray:
    """(H, W) or (H, W, c), grey or RGB, each perhaps with alpha."""
    if image.mode.startswith("I;16"):
        return np.asarray(image)
    alpha = image.has_transparency_data
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("LA" if alpha else "L"))
    return np.asarray(image.convert("RGBA" if alpha else "RGB"))


def _from_deep(image: DeepImage) -> Picture:
    picture = _from_array(image.pixels)

    def restored(pixels: Tensor) -> DeepImage:
        result = DeepImage(picture.restored(pixels), {})
        return replace(result, info=_of_size(image.info, result.size))

    return Picture(picture.pixels, 0, restored)


def belongings(image: Image.Image) -> dict[str, Any]:
    """What came with an image and is kept, as Pillow's `info` has it: colour profile, resolution, EXIF data."""
    kept = {}
    if isinstance(image.info.get("icc_profile"), bytes):
        kept["icc_profile"] = image.info["icc_profile"]
    if _is_resolution(image.info.get("dpi")):
        kept["dpi"] = image.info["dpi"]
    exif = _readable_exif(image)
    if len(exif):
        kept["exif"] = exif.tobytes()
    return kept


def _of_size(info: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """With EXIF data that tell this width and height."""
    if "exif" not in info:
        return info
    exif = Image.Exif()
    exif.load(info["exif"])
    details = exif.get_ifd(EXIF_IFD)
    details.update({tag: size[side] for tag, side in EXIF_SIZE.items() if tag in details})
    return {**info, "exif": exif.tobytes()}


def _is_resolution(dpi: Any) -> bool:
    """Whether every format can hold it: damaged files claim none, or one without end."""
    return isinstance(dpi, tuple) and len(dpi) == 2 and all(math.isfinite(each) and 1 <= each < 65536 for each in dpi)


def _readable_exif(image: Image.Image) -> Image.Exif:
    """What can be read and written again: damage there should not cost the picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about what it leaves out by itself
            exif = Image.Exif()
            exif.load(image.getexif().tobytes())  # a copy
            exif.get_ifd(EXIF_IFD)
            for tag in LAYOUT:
                exif.pop(tag, None)
            exif.tobytes()
            return exif
    except Exception:  # Pillow raises almost anything at damaged data: SyntaxError, struct.error, TypeError, ...
        warnings.warn("its EXIF data cannot be read and are left out", LeftOutWarning, stacklevel=2)
        return Image.Exif()
