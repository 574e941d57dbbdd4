"""Running means of what SGD learns: less noisy than its last iterate."""

from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import Tensor

from sckn.network import CKN

__all__ = ["IterateAverage"]


class IterateAverage:
    """Exponential means of parameters: mean <- decay mean + (1 - decay) parameter, at each update."""

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        self.parameters, self.decay = list(parameters), decay
        self.means = [parameter.detach().clone() for parameter in self.parameters]

    def restart(self) -> None:
        """The parameters as they are now become the means."""
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean.copy_(parameter.detach())

    def update(self) -> None:
        """After a step. It waits for nothing, and can be part of a CUDA graph."""
        values = [parameter.detach() for parameter in self.parameters]
        torch._foreach_lerp_(self.means, values, 1 - self.decay)  # pyright: ignore[reportPrivateImportUsage]

    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of one of the parameters."""
        return next(mean for mean, candidate in zip(self.means, self.parameters, strict=True) if candidate is parameter)

    def averaged(self, network: CKN) -> CKN:
        """A copy of the network with the mean of each of its parameters; filters are projected back onto the sphere."""
        copy = deepcopy(network)
        with torch.no_grad():
            for parameter, copied in zip(network.parameters(), copy.parameters(), strict=True):
                copied.copy_(self.mean_of(parameter))
            for layer in copy.kernel_layers:
                layer.filters.div_(torch.linalg.vector_norm(layer.filters, dim=(1, 2, 3), keepdim=True))
        return copy
