"""The page of the demonstration: one HTML file with all pictures inside, which needs nothing else."""

from html import escape
from pathlib import Path

from sckn.demo.curves import learning_curves
from sckn.demo.digits import CAVEAT, DigitsReport
from sckn.demo.photo import PHOTO, SCALE, UPSCALER, Classes, Upscaled
from sckn.shipped import CLASSIFIER
from sckn.superres.side_by_side import ZOOM, lost_most, side_by_side
from sckn.training.report_parts import confusion, first_filters, percent, picture, table, write_page

__all__ = ["error_rows", "write_demo_page"]

CURVES = "Learning curves of the training with labels; a fifth of its images are held out for validation"


def write_demo_page(path: Path, classes: Classes | None, upscaled: Upscaled | None, digits: DigitsReport) -> Path:
    """What could not be done, because a model was missing, is None and left out."""
    parts = [*_classes(classes), *_upscaled(upscaled), *_errors(digits), *_curves(digits)]
    parts += [*confusion(digits.with_labels, "With labels"), *first_filters(digits.model.network)]
    return write_page(path, "What sckn does", parts)


def error_rows(digits: DigitsReport) -> list[tuple[str, float]]:
    """How the digits were learned, and the test error in percent."""
    return [
        ("a linear SVM on the pixels", digits.pixels_error),
        ("a kernel network without labels, a linear SVM on its features", digits.without_labels_error),
        ("the same network with labels, all trained together", digits.with_labels.error),
    ]


def _classes(classes: Classes | None) -> list[str]:
    parts = ["<h2>A photograph</h2>", picture(PHOTO.read_bytes(), "Chelsea the cat, by Stefan van der Walt (CC0)")]
    if classes is None:
        return parts
    scores = table(["class", "score"], [(name, f"{score:.2f}") for name, score in classes])
    told = f"The model {CLASSIFIER} sees it in 32 x 32 pixels. Scores order the classes; they are no probabilities."
    return [*parts, f"<h2>Its classes</h2><p>{escape(told)}</p>", scores]


def _upscaled(upscaled: Upscaled | None) -> list[str]:
    if upscaled is None:
        return []
    told = f"It was made {SCALE} times smaller, and larger again: by bicubic interpolation, and by the model {UPSCALER}."
    rows = [("bicubic interpolation", f"{upscaled.bicubic_psnr:.2f}"), (UPSCALER, f"{upscaled.psnr:.2f}")]
    forms, order = [upscaled.bicubic, upscaled.ours, upscaled.truth], f"bicubic interpolation, {UPSCALER}, the photograph"
    place = lost_most(upscaled.truth, upscaled.bicubic)
    return [
        f"<h2>Made larger</h2><p>{escape(told)}</p>",
        table(["", "PSNR of the luminance (dB)"], rows),
        picture(side_by_side([form[place] for form in forms], ZOOM), f"The detail that interpolation loses most of: {order}"),
        picture(side_by_side(forms), f"All of it: {order}"),
    ]


def _errors(digits: DigitsReport) -> list[str]:
    told = (
        f"Learned from {digits.training_images} of scikit-learn's handwritten digits, 8 x 8 pixels, "
        f"and tested on the other {digits.with_labels.images}. {CAVEAT}"
    )
    rows = [(name, percent(error)) for name, error in error_rows(digits)]
    return [f"<h2>Digits</h2><p>{escape(told)}</p>", table(["", "test error"], rows)]


def _curves(digits: DigitsReport) -> list[str]:
    told = f"{CURVES} (lambda = 2^{digits.exponent}/n)."
    return ["<h2>Learning curves</h2>", learning_curves(digits.history), f"<p>{escape(told)}</p>"]
