"""The active set: only samples whose loss still has a gradient are visited (section 3.2)."""

import math

import torch
from torch import Tensor

from sckn.processes import ALONE, Processes

__all__ = ["ActiveSet"]


class ActiveSet:
    """Which samples are active, initially all; `flags` (n,) are those of this process.

    A step clears the flag of a sample whose loss has no gradient for any class. Random choices come from a CPU generator
    that is in the same state in all processes, so that all see the same epoch.
    """

    def __init__(self, count: int, device: torch.device, processes: Processes = ALONE) -> None:
        self.flags = torch.ones(count, dtype=torch.bool, device=device)
        self.processes = processes

    def all_flags(self) -> Tensor:
        """The flags of the samples of all processes, on the CPU."""
        return self.processes.interleaved(self.flags).cpu()

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """The active samples of all processes in random order, as numbers on the CPU."""
        active = torch.nonzero(self.all_flags()).flatten()
        return active[torch.randperm(len(active), generator=generator)]

    def own(self, samples: Tensor) -> Tensor:
        """Of these samples, those of this process, numbered as it holds them."""
        rank, count = self.processes.rank, self.processes.count
        return samples if count == 1 else samples[samples % count == rank] // count

    def reactivate(self, part: float, generator: torch.Generator) -> None:
        """A random part of the inactive samples becomes active."""
        inactive = torch.nonzero(~self.all_flags()).flatten()
        chosen = inactive[torch.randperm(len(inactive), generator=generator)[: math.ceil(part * len(inactive))]]
        self.flags[self.own(chosen).to(self.flags.device)] = True

    def fraction(self) -> float:
        """The part of all samples that is active."""
        flags = self.flags.double()
        totals = self.processes.sum(torch.stack([flags.sum(), flags.new_tensor(float(len(flags)))]))
        return float(totals[0] / totals[1])
