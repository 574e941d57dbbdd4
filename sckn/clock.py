"""How long each phase of a work takes."""

from time import perf_counter

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds of each phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """The time since the last call was spent on this phase."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = perf_counter()
        self.seconds[phase], self._last = round(now - self._last, 4), now
