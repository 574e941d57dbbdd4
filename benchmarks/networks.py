"""What is compared: the paper's network of nine layers, the plain network beside it, and random images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sckn.inverse_root import InverseRoot
from sckn.network import NetworkConfig
from sckn.patches import channels_last
from sckn.precision import without_autocast
from sckn.training.experiment import Experiment
from sckn.training.samples import Samples

__all__ = ["CLASSES", "EXPERIMENTS", "PAPER", "SIDE", "PlainNetwork", "paper_network", "plain_network", "random_samples"]

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
PAPER = Experiment.from_toml(EXPERIMENTS / "cifar10-128.toml")
CLASSES, SIDE = 10, 32


def paper_network(
    filters: int, inverse_root: InverseRoot | None = None, layers: int = 9, *, dropout: bool = False
) -> NetworkConfig:
    """The first layers of the paper's network for CIFAR-10, with another number of filters; like the plain network without the
    dropout of the experiment, unless that is wanted."""
    changes: dict[str, Any] = {"filters": filters}
    if not dropout:
        changes["dropout"] = 0.0
    if inverse_root is not None:
        changes["inverse_root"] = inverse_root
    return NetworkConfig(3, tuple(replace(layer, **changes) for layer in PAPER.network.layers[:layers]))


class PlainNetwork(nn.Module):
    """The plain counterpart of a kernel network: convolution, ReLU, average pooling to the same sizes, 1 x 1 convolution."""

    def __init__(self, config: NetworkConfig, side: int, outputs: int, *, per_pixel: bool = False) -> None:
        super().__init__()
        channels, parts = config.in_channels, []
        for layer in config.layers:
            before = side if layer.padding else side - layer.patch + 1
            after = layer.output_size(side, side)[0]
            margin = layer.patch // 2 if layer.padding else 0
            parts += [nn.Conv2d(channels, layer.filters, layer.patch, padding=margin, bias=False), nn.ReLU()]
            parts += [nn.AdaptiveAvgPool2d(after)] if after != before else []
            parts += [nn.Conv2d(layer.filters, layer.filters, 1, bias=False)]
            channels, side = layer.filters, after
        self.layers = nn.Sequential(*parts)
        self.head = nn.Conv2d(channels, outputs, 1) if per_pixel else nn.Linear(channels * side * side, outputs)

    def encode(self, images: Tensor) -> Tensor:
        """The last map."""
        return self.layers(channels_last(images))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.encode(images)
        with without_autocast(maps.device):  # as for a kernel network
            maps = maps.to(self.head.weight.dtype)
            return self.head(maps if isinstance(self.head, nn.Conv2d) else maps.flatten(1))


def plain_network(config: NetworkConfig, device: torch.device, side: int = SIDE) -> PlainNetwork:
    """With its weights in channels-last order, too."""
    network: Any = PlainNetwork(config, side, CLASSES).to(device)
    return network.to(memory_format=torch.channels_last)


def random_samples(count: int, device: torch.device, side: int = SIDE) -> Samples:
    """Images of noise and targets 1 and -1."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, side, side, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return Samples(images.to(device), (2.0 * F.one_hot(labels, CLASSES) - 1).to(device))
