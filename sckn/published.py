"""Figures that others published, as the paper's tables print them, and the paper's own."""

from dataclasses import dataclass

from sckn.shipped import FACTORS

__all__ = ["CLASSIFICATION", "MEASURES", "SETS", "SUPERRES_PSNR", "SUPERRES_SSIM", "Measured", "Row", "Table", "score_field"]


@dataclass(frozen=True)
class Measured:
    """A figure of ours: the field of a file in results/, and the field with its standard deviation over seeds.

    A field may be a path into tables within tables, such as "psnr.Set5".
    """

    result: str
    field: str = "test_error"
    deviation: str = "deviation"


@dataclass(frozen=True)
class Row:
    """A method: its figure in each column, published (as it was printed) or ours; None where there is none."""

    method: str
    figures: tuple[str | Measured | None, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper with ours beside it. `groups` are parted by lines; `decimals` are those of ours."""

    key: str
    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[Row, ...], ...]
    decimals: int = 2
    notes: tuple[str, ...] = ()


def _both(name: str) -> tuple[Measured, Measured]:
    return Measured(f"cifar10-{name}"), Measured(f"svhn-{name}")


CLASSIFICATION = Table(
    key="classification",
    title="Test error in percent, one model, without augmentation unless said (Table 1 of the paper)",
    columns=("CIFAR-10", "SVHN"),
    groups=(
        (
            Row("Stochastic pooling (2013)", ("15.13", "2.80")),
            Row("MaxOut (2013)", ("11.68", "2.47")),
            Row("Network in network (2013)", ("10.41", "2.35")),
            Row("Deeply-supervised nets (2015)", ("9.69", "1.92")),
            Row("Generalized pooling (2016)", ("7.62", "1.69")),
        ),
        (
            Row("The paper, 9 layers of 512 filters", ("10.20", "2.04")),
            Row("The paper, 9 layers of 128 filters", ("11.95", "2.15")),
            Row("The paper, without labels, 1024 and 16384 filters", ("14.2", None)),
        ),
        (
            Row("sckn, 9 layers of 512 filters", _both("512")),
            Row("sckn, 9 layers of 128 filters", _both("128")),
            Row("sckn, 9 layers of 128 filters, the paper's recipe", (Measured("cifar10-128-paper"), None)),
            Row("sckn, best network", (Measured("cifar10-best"), None)),
            Row("sckn, without labels, 1024 and 16384 filters", (Measured("cifar10-unsup-1024-16384"), None)),
            Row("sckn, without labels, 256 and 1024 filters", (Measured("cifar10-unsup-256-1024"), None)),
            Row("sckn, without labels, 64 and 256 filters", (Measured("cifar10-unsup-64-256"), None)),
        ),
        (Row("sckn, 14 layers of up to 384 filters, with flips and shifts", (Measured("cifar10-augmented"), None)),),
    ),
    notes=(
        "Published figures are those of the paper's Table 1 and section 4.1.",
        "Ours are means over seeds, ± their standard deviation, from results/.",
        "SVHN: published figures are for 604,388 training images, ours for 73,257, of reconstructed SVHN.",
    ),
)

SETS = ("Set5", "Set14", "Kodak")
MEASURES = {"psnr": 2, "ssim": 4}  # with the decimals that the paper prints


def score_field(measure: str, name: str, factor: int | None = None) -> str:
    """Where a result file of super-resolution has a measure on a test set: for the model's own factor, or for another."""
    return f"{measure}.{name}" if factor is None else f"x{factor}.{measure}.{name}"


# Method, then PSNR and SSIM on the three sets, first for x2, then for x3.
PUBLISHED_SUPERRES = (
    ("SC, sparse coding (2010)", "35.78 31.80 32.19 31.90 28.67 29.21", "0.9492 0.8989 0.8990 0.8959 0.8074 0.8066"),
    ("ANR (2013)", "35.83 31.79 32.23 31.92 28.65 29.21", "0.9499 0.9004 0.9007 0.8959 0.8092 0.8084"),
    ("A+ (2014)", "36.54 32.28 32.71 32.58 29.13 29.57", "0.9544 0.9056 0.9075 0.9088 0.8188 0.8175"),
    ("CNN1 (2014)", "36.34 32.18 32.62 32.39 29.00 29.42", "0.9521 0.9037 0.9043 0.9025 0.8148 0.8109"),
    ("CNN2 (2015)", "36.66 32.45 32.80 32.75 29.29 29.64", "0.9542 0.9067 0.9068 0.9090 0.8215 0.8174"),
    ("CSCN (2015)", "36.93 32.56 32.94 33.10 29.41 29.76", "0.9552 0.9074 0.9104 0.9144 0.8238 0.8222"),
    ("The paper", "37.07 32.76 33.21 33.08 29.50 29.88", "0.9580 0.9115 0.9146 0.9165 0.8297 0.8283"),
)
PUBLISHED_BICUBIC = ("33.66 30.23 30.84 30.39 27.54 28.43", "0.9299 0.8689 0.8684 0.8677 0.7741 0.7768")


def _superres(measure: str, number: str) -> Table:
    which = list(MEASURES).index(measure)

    def ours(form: str) -> tuple[Measured, ...]:
        """A model for each factor."""
        return tuple(Measured(f"superres-x{factor}{form}", score_field(measure, name)) for factor in FACTORS for name in SETS)

    once = ours("-paper")[: len(SETS)]
    twice = tuple(Measured("superres-x2-paper", score_field(measure, name, factor=3)) for name in SETS)
    nothing = (None,) * len(SETS)
    bicubic_x4 = tuple(Measured("superres-x4", score_field(f"bicubic_{measure}", name)) for name in SETS)
    return Table(
        key=f"superres-{measure}",
        title=f"Super-resolution, {measure.upper()} ({number} of the paper, which has x2 and x3)",
        columns=tuple(f"x{factor} {name}" for factor in FACTORS for name in SETS),
        groups=(
            (
                Row("Bicubic", (*PUBLISHED_BICUBIC[which].split(), *bicubic_x4)),
                *(Row(method, (*figures[which].split(), *nothing)) for method, *figures in PUBLISHED_SUPERRES),
            ),
            (
                Row("sckn, as in the paper: x3 by x2 twice", (*once, *twice, *nothing)),
                Row("sckn, the paper's network for each factor", ours("-paper")),
                Row("sckn, a model for each factor", ours("")),
                Row("sckn, fast, a model for each factor", ours("-fast")),
            ),
        ),
        decimals=MEASURES[measure],
        notes=(f"Published figures are those of the paper's {number}.", "Ours are of one seed, from results/."),
    )


SUPERRES_PSNR = _superres("psnr", "Table 2")
SUPERRES_SSIM = _superres("ssim", "Table 3")
