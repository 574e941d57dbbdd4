"""Random flips and shifts of images, as data augmentation on the device that holds them."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["draw_moves", "moved_images"]


def draw_moves(count: int, flip: bool, shift: int, generator: torch.Generator) -> Tensor | None:
    """For each image whether it is mirrored, and its shift by rows and columns, -shift to shift: (count, 3); None if no
    image moves. All are drawn at once from a CPU generator, so that they do not depend on device or batches."""
    if not flip and not shift:
        return None
    mirrored = torch.randint(0, 2, (count, 1), generator=generator) * int(flip)
    shifts = torch.randint(-shift, shift + 1, (count, 2), generator=generator)
    return torch.cat([mirrored, shifts], dim=1)


def moved_images(images: Tensor, moves: Tensor | None, shift: int) -> Tensor:
    """Images (B, c, H, W), each mirrored and then shifted as `moves` (B, 3) says; zeros come in from outside."""
    if moves is None:
        return images
    height, width = images.shape[2:]
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    mirrored, down, right = moves[:, :1], moves[:, 1:2], moves[:, 2:]  # (B, 1)
    rows = row - down + shift  # (B, H), into the padded image
    columns = column - right + shift  # (B, W)
    columns = torch.where(mirrored > 0, width - 1 + 2 * shift - columns, columns)
    padded = F.pad(images, (shift, shift, shift, shift)).permute(0, 2, 3, 1)  # (B, H + 2 shift, W + 2 shift, c)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
