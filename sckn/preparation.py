"""How images become what a network was trained on; a model carries it, so that nobody has to remember."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from sckn.data.batches import floating_point
from sckn.settings import real_number
from sckn.whitening import local_whitening

__all__ = ["Preparation"]


@dataclass(frozen=True)
class Preparation:
    """What is done to images (n, c, h, w), in bytes or in floating point from 0 to 1, before the network sees them.

    whitening_power: of the local whitening of each image; 0 leaves images as they are.
    """

    whitening_power: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "whitening_power", real_number("whitening_power", self.whitening_power, least=0))

    def __call__(self, images: Tensor) -> Tensor:
        return local_whitening(images, power=self.whitening_power) if self.whitening_power else floating_point(images)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Any) -> Self:
        """What `to_dict` described; a setting that is not known here would prepare images in another way, and is refused."""
        if not isinstance(settings, dict) or set(settings) != {"whitening_power"}:
            raise ValueError(f"a preparation is a table with whitening_power alone, got {settings!r}; upgrade sckn")
        return cls(**settings)
