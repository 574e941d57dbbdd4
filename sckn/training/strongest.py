"""What filters of the upper layers look for: the parts of training images to which they respond most."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sckn.classifier import ImageClassifier
from sckn.kernels import WithAlpha
from sckn.layer import KernelLayer, evaluating

__all__ = ["StrongestPatches", "strongest_patches"]


@dataclass(frozen=True, eq=False)
class StrongestPatches:
    """Of a layer, counted from 1: some of its filters, and for each its patches (filters, n, c, side, side), best first."""

    layer: int
    filters: tuple[int, ...]
    patches: np.ndarray


@dataclass(frozen=True)
class _Grid:
    """Where the pixels of a map lie in the image, and how wide a part of it each one sees.

    Pixel k is centred at offset + k step. Of a pooling window, which has no sharp edge, one standard deviation to each side
    counts.
    """

    offset: float = 0.5
    step: float = 1.0
    field: float = 1.0

    def patches(self, layer: KernelLayer) -> "_Grid":
        reach = (layer.config.patch - 1) * self.step
        offset = self.offset if layer.config.padding else self.offset + reach / 2
        return replace(self, offset=offset, field=self.field + reach)

    def pooled(self, layer: KernelLayer, before: int, after: int) -> "_Grid":
        if layer.config.subsampling == 1:
            return self
        factor, deviation = before / after, layer.config.pooling_width * layer.config.subsampling
        return _Grid(self.offset + self.step * (factor - 1) / 2, self.step * factor, self.field + 2 * deviation * self.step)

    def corner(self, place: int, side: int, size: int) -> int:
        """The first pixel of a part of `side` pixels around this place of the map, moved to lie inside the image."""
        first = round(self.offset + place * self.step - side / 2)
        return min(max(first, 0), size - side)


@torch.no_grad()
def strongest_patches(
    classifier: ImageClassifier, images: np.ndarray, *, filters: int = 8, count: int = 8, batch_size: int = 64
) -> list[StrongestPatches]:
    """For each layer above the first, `filters` of its filters, spread over all, and the parts of images (n, c, h, w) in
    bytes on which |x| kappa(z'x / |x|) is largest, one an image at most."""
    layers, device = classifier.model.network.kernel_layers, classifier.model.weights.device
    chosen = [_spread(layer.config.filters, filters) for layer in layers]
    similarities = [_similarity(layer, numbers) for layer, numbers in zip(layers, chosen, strict=True)]
    grids: list[_Grid] = []
    found: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in layers]
    with evaluating(classifier):
        for batch in torch.from_numpy(np.ascontiguousarray(images)).split(batch_size):
            maps, grid, grids = classifier.preparation(batch.to(device)).float(), _Grid(), []
            for layer, similarity, best in zip(layers, similarities, found, strict=True):
                grid = grid.patches(layer)
                grids.append(grid)
                responses = similarity(maps, torch.eye(similarity.config.filters, device=device))  # (B, filters, H', W')
                values, places = responses.flatten(2).max(dim=2)  # (B, filters)
                best.append(
                    (
                        values.cpu(),
                        places.div(responses.shape[3], rounding_mode="floor").cpu(),
                        (places % responses.shape[3]).cpu(),
                    )
                )
                maps = layer(maps)
                grid = grid.pooled(layer, responses.shape[2], maps.shape[2])
    return [
        StrongestPatches(number, tuple(chosen[number - 1]), _cut(images, grids[number - 1], found[number - 1], count))
        for number in range(2, len(layers) + 1)
    ]


def _spread(total: int, wanted: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, min(wanted, total)).round().astype(int)).tolist()


def _similarity(layer: KernelLayer, chosen: list[int]) -> KernelLayer:
    """A layer of these filters alone that, called with the identity for its root, gives |x| kappa(z'x / |x|) at each pixel,
    times the kernel's gain, which changes no order."""
    kernel = layer.kernel  # with its alpha as a tensor, since what was learned may exceed what a setting may be
    if isinstance(kernel, WithAlpha):
        kernel = replace(kernel, learnable=False)
    config = replace(layer.config, filters=len(chosen), subsampling=1.0, kernel=kernel, inverse_root="eigh")
    alone = KernelLayer(layer.in_channels, config).to(layer.filters.device)
    alone.filters.data = layer.filters.detach()[chosen].float()
    return alone


def _cut(images: np.ndarray, grid: _Grid, found: list[tuple[Tensor, Tensor, Tensor]], count: int) -> np.ndarray:
    size = images.shape[2]
    side = min(max(round(grid.field), 1), size)
    values, rows, columns = (torch.cat(parts) for parts in zip(*found, strict=True))  # (n, filters)
    best = values.topk(min(count, len(values)), dim=0).indices.T.tolist()  # (filters, count)
    patches = []
    for number, chosen in enumerate(best):
        for image in chosen:
            y = grid.corner(int(rows[image, number]), side, size)
            x = grid.corner(int(columns[image, number]), side, size)
            patches.append(images[image, :, y : y + side, x : x + side])
    return np.stack(patches).reshape(len(best), -1, *patches[0].shape)
