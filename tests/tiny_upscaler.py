"""An upscaler that costs nothing, for tests of what is done with one."""

import torch

from sckn import CKN, KernelModel, LayerConfig, NetworkConfig, Upscaler, UpscalerConfig


def tiny_upscaler(scale: int = 2, weight: float = 3.0) -> Upscaler:
    """With random weights, the same each time; with weight 0 the network says nothing."""
    config = UpscalerConfig(scale, low_resolution=True, detail_unit=10.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = CKN(NetworkConfig(1, (LayerConfig(4, 3, padding=False),)))
        return Upscaler(KernelModel(network, weight * torch.randn(4, config.outputs), per_pixel=True), config).eval()
