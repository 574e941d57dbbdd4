"""Figures that others published, as the paper's tables print them, and the paper's own."""

from dataclasses import dataclass

__all__ = ["CLASSIFICATION", "Measured", "Row", "Table"]


@dataclass(frozen=True)
class Measured:
    """A figure of ours: the field of a file in results/, and the field with its standard deviation over seeds."""

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
        ),
        (Row("sckn, with flips and shifts", (Measured("cifar10-augmented"), None)),),
    ),
    notes=(
        "Published figures are those of the paper's Table 1 and section 4.1.",
        "Ours are means over seeds, ± their standard deviation, from results/.",
    ),
)
