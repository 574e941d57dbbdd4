"""Maps in parts that a processor's cache holds: for a large one, going to memory and back costs more than the work."""

from collections.abc import Iterator

from torch import Tensor

__all__ = ["parts_in_cache"]

# Numbers of a map that one operation goes over before the next does.
IN_CACHE = 2**17


def parts_in_cache(maps: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of maps (B, c, H, W) and of others of as many images and pixels. What is no map, or not on a processor, is in one
    part.

    Example
    -------
    >>> import torch
    >>> maps, norms = torch.rand(4, 128, 64, 64), torch.rand(4, 1, 64, 64)
    >>> [part.shape for part, _ in parts_in_cache(maps, norms)][:2]
    [torch.Size([1, 128, 16, 64]), torch.Size([1, 128, 16, 64])]
    """
    if maps.dim() != 4 or maps.device.type != "cpu" or any(other.shape[2:] != maps.shape[2:] for other in others):
        yield (maps, *others)
        return
    _, channels, height, width = maps.shape
    rows = max(1, IN_CACHE // max(1, channels * width))
    images = max(1, rows // max(1, height))
    for of_images in zip(*(each.split(images) for each in (maps, *others)), strict=True):
        yield from zip(*(each.split(rows, dim=2) for each in of_images), strict=True)
