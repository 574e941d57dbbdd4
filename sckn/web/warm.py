"""Imported by the fork server alone: what torch and Pillow import at their first use is there for every process after it.

Nothing is computed, since threads of the processor would not survive a fork.
"""

import torch
from PIL import Image

from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig

__all__: list[str] = []

with torch.device("meta"):
    CKN(NetworkConfig(1, (LayerConfig(filters=1, patch=1),)))
Image.init()
