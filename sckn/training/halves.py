"""Cross-fitting: two linear models, each found from one half of the samples and used for the other.

A linear model of many features fits the samples that it was found from better than others, so that the filters learn to
help it where it is right by memory. A sample that meets the model of the other half shows how well the features generalise.
"""

import torch
from torch import Tensor

from sckn.processes import ALONE, Processes

__all__ = ["Halves"]


class Halves:
    """The halves of the samples, dealt anew by `deal`, and the linear model found from each.

    Both tensors keep their places, where a recorded step finds them.

    Parameters
    ----------
    count: samples of this process.
    weights: W of all samples, (d, outputs); those of the halves have its type and device.
    """

    def __init__(self, count: int, weights: Tensor, processes: Processes = ALONE) -> None:
        self.weights = weights.new_zeros(2, *weights.shape)
        self.second = torch.zeros(count, dtype=torch.bool, device=weights.device)  # who is in the second half
        self.processes = processes

    def deal(self, total: int, generator: torch.Generator) -> Tensor:
        """New halves of the `total` samples of all processes; who of this one is in the second."""
        order = torch.randperm(total, generator=generator)
        second = torch.zeros(total, dtype=torch.bool)
        second[order[total // 2 :]] = True
        return second[self.processes.share].to(self.second.device)

    def keep(self, weights: Tensor, second: Tensor) -> None:
        """The models (2, d, outputs) of these halves."""
        with torch.no_grad():
            self.weights.copy_(weights)
            self.second.copy_(second)

    def scores(self, features: Tensor, index: Tensor) -> Tensor:
        """Of the samples `index` of this process, by the model of the half that they are not in."""
        of_first, of_second = features @ self.weights[0], features @ self.weights[1]
        return torch.where(self.second[index].unsqueeze(1), of_first, of_second)
