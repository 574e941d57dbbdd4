"""Sharpness-aware minimisation (Foret et al. 2021) on the sphere: prefer filters around which the loss is low, too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sckn.training.sphere import sphere_direction

__all__ = ["uphill"]


@contextmanager
def uphill(filters: Sequence[Tensor], radius: float) -> Iterator[None]:
    """Within the block, the filters of all layers, each (p, d) or (p, ...) with rows of unit norm, are where the loss is
    highest at this distance, to first order: moved together by `radius` along their gradients, and back onto the sphere.

    It waits for no device, so that a CUDA graph can hold it. Gradients taken in the block are to replace those before it.
    """
    with torch.no_grad():
        before = [Z.clone() for Z in filters]
        tangent = [sphere_direction(Z.flatten(1), _gradient(Z).flatten(1)) for Z in filters]
        length = torch.stack([direction.square().sum() for direction in tangent]).sum().sqrt()
        step = torch.where(length > 0, radius / length, 0)
        for Z, direction in zip(filters, tangent, strict=True):
            moved = Z.flatten(1) + step * direction
            Z.copy_((moved / torch.linalg.vector_norm(moved, dim=1, keepdim=True)).view_as(Z))
    try:
        yield
    finally:
        with torch.no_grad():
            for Z, values in zip(filters, before, strict=True):
                Z.copy_(values)


def _gradient(Z: Tensor) -> Tensor:
    return torch.zeros_like(Z) if Z.grad is None else Z.grad
