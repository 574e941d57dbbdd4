"""Photographs in the colours of printers, of television or of measuring devices, made such as screens show."""

import io

from PIL import Image, ImageCms

__all__ = ["OWN_PROFILE", "PRINT_MODES", "in_rgb"]

# As Pillow calls them. The first have colour profiles of their own kind, which RGB pixels cannot keep.
OWN_PROFILE = ("CMYK", "LAB")
PRINT_MODES = (*OWN_PROFILE, "YCbCr", "HSV")
# How near a profile's colours are met: the white of the paper becomes that of the screen.
INTENT = ImageCms.Intent.RELATIVE_COLORIMETRIC


def in_rgb(image: Image.Image) -> tuple[Image.Image, bytes | None]:
    """The image in RGB, and the colour profile that its pixels are then in, where that is known."""
    profile = image.info.get("icc_profile")
    if image.mode not in OWN_PROFILE:
        return image.convert("RGB"), profile if isinstance(profile, bytes) else None
    if isinstance(profile, bytes):
        try:
            screen = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
            transform = ImageCms.buildTransform(io.BytesIO(profile), screen, image.mode, "RGB", INTENT)
        except (ImageCms.PyCMSError, ImportError):  # a damaged profile, or that of another kind of colours
            pass
        else:
            return transform.apply(image), screen.tobytes()
    return image.convert("RGB"), None
