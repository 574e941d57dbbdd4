"""Cross-fitting: two linear models, each found from one half of the samples and used for the other.

A linear model of many features fits the samples that it was found from better than others, so that the filters learn to
help it where it is right by memory. A sample that meets the model of the other half shows how well the features generalise.
"""

import torch
from torch import Tensor

from sckn.processes import ALONE, Processes

__all__ = ["Halves"]


class Halves:
    """The halves of the samples, and the linear model found from each, for use with the other.

    Both tensors keep their places, where a recorded step finds them.

    Parameters
    ----------
    count: samples of this process.
    weights: those of the halves have its shape (d, outputs), type and device.
    """

    def __init__(self, count: int, weights: Tensor, processes: Processes = ALONE) -> None:
        self.weights = weights.new_zeros(2, *weights.shape)
        self.second = torch.zeros(count, dtype=torch.bool, device=weights.device)  # who is in the second half
        self.processes = processes

    def deal(self, total: int, generator: torch.Generator) -> Tensor:
        """New halves of the `total` samples of all processes; who of this one is in the second."""
        second = torch.zeros(total, dtype=torch.bool)
        second[torch.randperm(total, generator=generator)[total // 2 :]] = True
        return self.second.copy_(second[self.processes.share])

    def keep(self, weights: Tensor) -> None:
        """The models (2, d, outputs) of the first and of the second half."""
        with torch.no_grad():
            self.weights.copy_(weights)

    def scores(self, features: Tensor, index: Tensor) -> Tensor:
        """Of the samples `index` of this process, by the model of the half that they are not in."""
        of_first, of_second = features @ self.weights[0], features @ self.weights[1]
        return torch.where(self.second[index].unsqueeze(1), of_first, of_second)
