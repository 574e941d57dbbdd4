"""What a network for super-resolution sees of a photograph: its detail, without the mean of the pixels around each."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["MARGIN", "without_local_mean"]

SIDE = 5  # of the box whose mean is removed
MARGIN = SIDE // 2


def without_local_mean(images: Tensor) -> Tensor:
    """(B, 1, H, W) -> (B, 1, H - 4, W - 4): only pixels whose box lies inside."""
    return images[..., MARGIN:-MARGIN, MARGIN:-MARGIN] - F.avg_pool2d(images, SIDE, stride=1)
