"""CUDA graphs being recorded: what they record has no values yet, so that nothing may be read from the device."""

import torch

__all__ = ["capturing"]


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph records what is done on this device now."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
