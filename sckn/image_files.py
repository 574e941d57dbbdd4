"""Which image files are read, and what is wrong with one in a few words."""

from PIL import Image, UnidentifiedImageError

__all__ = ["FORMATS", "FORMATS_IN_WORDS", "what_is_wrong"]

# Pillow knows more, but some of these start other programs (EPS), and few hold photographs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
FORMATS_IN_WORDS = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def what_is_wrong(error: Exception) -> str:
    """The reason for any error of Pillow's; at damaged files it raises SyntaxError, struct.error, KeyError, and more."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    words = str(getattr(error, "strerror", None) or error).split()
    return " ".join(words)[:100] or type(error).__name__
