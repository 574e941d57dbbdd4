"""Learning without labels, layer by layer: random patches, spherical k-means, centroids as filters (section 2)."""

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from sckn.data.batches import ImageSource, image_batches
from sckn.kmeans import spherical_kmeans
from sckn.layer import KernelLayer, evaluating
from sckn.network import CKN
from sckn.patches import sample_patches
from sckn.processes import ALONE, Processes
from sckn.settings import whole_number

__all__ = ["encode", "encoded_batches", "fit_unsupervised"]

Network = TypeVar("Network", CKN, KernelLayer)


@torch.no_grad()
def fit_unsupervised(
    network: Network,
    images: ImageSource,
    *,
    patches: int = 100_000,
    iterations: int = 20,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
    processes: Processes = ALONE,
) -> Network:
    """Learn the filters of every layer from images, in place; the network is returned.

    Parameters
    ----------
    network: a CKN or a single KernelLayer, on the device where the work is done.
    images: (n, c, H, W) as a tensor or an array, the path of a .npy file, a data set, or an iterable of batches that can
        be walked through once for each layer (a list or a DataLoader, not a generator).
    patches: drawn at random from all images for each layer; at least as many as filters.
    iterations: of k-means, at most.
    batch_size: images encoded at a time.
    seed: the same seed and batch size give the same filters, on every device up to rounding.
    progress: show a bar, if standard error is a terminal.
    processes: those that share the work. Each gives its own images, process r of c those numbered r, r + c, ...; of each
        batch of `batch_size`, a multiple of c, it encodes its share. All get the same filters, those that one process
        would find with all images, up to rounding.
    """
    layers = [network] if isinstance(network, KernelLayer) else network.kernel_layers
    if iter_once(images) and len(layers) > 1:
        raise ValueError(
            f"a generator can be walked through only once, but each of the {len(layers)} layers needs a pass; "
            "give a list of batches, a DataLoader or an array"
        )
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    patches, iterations = whole_number("patches", patches), whole_number("iterations", iterations)
    batch_size = whole_number("batch_size", batch_size)
    if batch_size % processes.count:
        raise ValueError(f"batch_size must be a multiple of the number of processes, {processes.count}, got {batch_size}")
    parameter = next(network.parameters())
    bar = tqdm(total=len(layers), desc="layers", unit="layer", disable=None if progress and processes.first else True)
    for depth, layer in enumerate(layers):
        config = layer.config
        bar.set_postfix_str(f"sampling {patches:,} patches")
        batches = _in_step(image_batches(images, batch_size // processes.count, parameter.device), processes, parameter.device)
        maps = (_through(layers, depth, batch.to(parameter.dtype)) for batch in batches)
        with evaluating(network):
            sample = sample_patches(maps, config.patch, config.padding, max(patches, config.filters), generator, processes)
        bar.set_postfix_str(f"k-means, {config.filters} filters")
        centroids = spherical_kmeans(
            sample, config.filters, iterations=iterations, generator=generator, processes=processes
        ).centroids
        layer.filters.copy_(centroids.view_as(layer.filters))
        bar.update()
    bar.close()
    return network


def iter_once(source: ImageSource) -> bool:
    """Whether the source is used up by one walk."""
    return hasattr(source, "__next__")


def _in_step(batches: Iterator[Tensor], processes: Processes, device: torch.device) -> Iterator[Tensor]:
    """The batches of this process, then empty ones while others have any left: all see as many, of maps of one size."""
    if processes.count == 1:
        yield from batches
        return
    seen = [0] * processes.count
    while True:
        batch = failure = None
        try:
            batch = next(batches, None)
        except Exception as error:
            failure = error
        shape = [-1] * 4 if failure else [0] * 4 if batch is None else list(batch.shape)
        shapes = processes.gathered(torch.tensor(shape, device=device)).tolist()
        if failure:
            raise failure
        if [-1] * 4 in shapes:  # the others would wait in vain for a process that has stopped
            raise RuntimeError(f"process {shapes.index([-1] * 4)} could not read its images")
        present = [shape for shape in shapes if any(shape)]
        if not present:
            return
        if any(shape[1:] != present[0][1:] for shape in present):
            raise ValueError(f"the processes hold images of different shapes in one batch: {present}")
        seen = [before + length for before, (length, *_) in zip(seen, shapes, strict=True)]
        if seen != processes.share_sizes(sum(seen)):
            raise ValueError(
                f"the processes cannot walk in step through {seen} images: of {processes.count}, process r is to give those "
                f"numbered r, r + {processes.count}, ..., in batches as large as those of the others"
            )
        yield torch.empty(0, *present[0][1:], device=device) if batch is None else batch


def _through(layers: list[KernelLayer], depth: int, images: Tensor) -> Tensor:
    """The input map of layer `depth`."""
    maps = layers[0].checked(images)
    for layer in layers[:depth]:
        maps = layer(maps)
    return maps


def encode(network: CKN | KernelLayer, images: ImageSource, *, batch_size: int = 256, progress: bool = False) -> Tensor:
    """The last maps of all images, flattened: (n, p h w), on the device of the network.

    Images come from any source that `fit_unsupervised` takes, and from a generator; `batch_size` are encoded at a time.
    """
    batches = encoded_batches(network, images, batch_size=batch_size)
    features = list(tqdm(batches, desc="encoding", unit="batch", disable=None if progress else True))
    if not features:
        raise ValueError("there are no images to encode: the data set is empty")
    return torch.cat(features)


def encoded_batches(network: CKN | KernelLayer, images: ImageSource, *, batch_size: int = 256) -> Iterator[Tensor]:
    """Features (B, p h w) of one batch of images after the other, for data sets whose features do not fit in memory."""
    parameter = next(network.parameters())
    for batch in image_batches(images, whole_number("batch_size", batch_size), parameter.device):
        with torch.no_grad(), evaluating(network):
            features = network(batch.to(parameter.dtype)).flatten(1)
        yield features
