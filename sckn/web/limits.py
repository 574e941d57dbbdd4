"""`Limits`: how much of the computer visitors may take."""

from dataclasses import dataclass

from sckn.settings import real_number, whole_number

__all__ = ["Limits", "RefusalError"]


class RefusalError(ValueError):
    """What was asked for is not done: the status of HTTP, and a sentence for the visitor."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)  # both, so that it survives the way between processes
        self.status, self.sentence = status, sentence

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Limits:
    """How much of the computer visitors may take.

    Args:
        upload: Most MiB of an upload.
        upload_seconds: Most seconds of one.
        input: Most megapixels of an image.
        output: Most megapixels of a result.
        queue: Most photos waiting or kept.
        seconds: Most seconds of work on one.
        patience: Seconds till abandoned work stops.
        keep: Seconds that a result is kept.
        memory: Most GiB that a tile may take.
    """

    upload: float = 32.0
    upload_seconds: float = 300.0
    input: float = 25.0
    output: float = 64.0
    queue: int = 64
    seconds: float = 1800.0
    patience: float = 30.0
    keep: float = 120.0
    memory: float = 0.5

    def __post_init__(self) -> None:
        for name in ("upload", "upload_seconds", "input", "output", "seconds", "patience", "keep", "memory"):
            object.__setattr__(self, name, real_number(name, getattr(self, name), above=0))
        object.__setattr__(self, "queue", whole_number("queue", self.queue))

    @property
    def upload_bytes(self) -> int:
        return round(self.upload * 2**20)

    @property
    def input_pixels(self) -> int:
        return round(self.input * 1e6)

    @property
    def output_pixels(self) -> int:
        return round(self.output * 1e6)

    def check_result(self, width: int, height: int, scale: int) -> None:
        """Before the work, that its result is not too large."""
        if width * height * scale**2 > self.output_pixels:
            raise RefusalError(
                413,
                f"{width} x {height} pixels become {width * scale} x {height * scale}, and results here have at most "
                f"{self.output:g} megapixels; choose a smaller scale or a smaller photo",
            )
