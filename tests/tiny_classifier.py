"""A classifier of images of 12 x 12 pixels that costs nothing, for tests of what is done with one."""

from pathlib import Path
from typing import Any

import torch

from sckn import CKN, ImageClassifier, LayerConfig, NetworkConfig
from sckn.model import KernelModel
from sckn.preparation import Preparation

CLASSES = ("cat", "dog", "a bird")
CONFIG = NetworkConfig(
    3,
    (LayerConfig(6, 3, subsampling=2.0, inverse_root="moving_frame"), LayerConfig(5, 1), LayerConfig(4, 3, subsampling=3.0)),
)


def tiny_classifier(**changes: Any) -> ImageClassifier:
    """With random weights, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = CKN(changes.pop("config", CONFIG)).train()
        with torch.no_grad():
            network(torch.rand(2, 3, 12, 12))  # the moving frame catches up
        height, width = network.config.output_size(12, 12)
        filters = network.config.layers[-1].filters
        model = KernelModel(network, torch.randn(filters * height * width, 3), torch.randn(3))
    settings: dict[str, Any] = {"preparation": Preparation(0.25), "name": "tiny", "experiment": {"dataset": "cifar10"}}
    return ImageClassifier(model, CLASSES, 12, **{**settings, **changes}).eval()


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
