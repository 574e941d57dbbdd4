"""Spherical k-means: the centroids that span the subspace F of a layer trained without labels (section 2).

Deterministic under a seed on any device, in chunks, so that memory beyond the data is bounded by one chunk of
similarities: 10^6 patches of dimension 9,216 with 16,384 centroids fit on one GPU.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.precision import without_autocast
from sckn.processes import ALONE, Processes

__all__ = ["KMeans", "spherical_kmeans"]

ROWS = 1024  # that one core compares with all centroids at a time


@dataclass(frozen=True)
class KMeans:
    """Centroids (k, d) of unit norm, the cluster of each row (n,), and the mean cosine at the start and after
    each iteration."""

    centroids: Tensor
    clusters: Tensor
    cosines: list[float]


def spherical_kmeans(
    vectors: Tensor,
    count: int,
    *,
    iterations: int = 20,
    generator: torch.Generator,
    chunk: int | None = None,
    initial: Tensor | None = None,
    processes: Processes = ALONE,
) -> KMeans:
    """Cluster unit vectors by their cosine, starting from distinct random ones.

    Parameters
    ----------
    vectors: (n, d), rows of unit norm.
    count: number of centroids, at most n.
    iterations: at most so many; fewer where no vector changes its cluster any more.
    generator: a CPU generator, so that the start is the same on every device.
    chunk: rows compared with all centroids at a time; by default about 2^28 similarities.
    initial: (count, d) centroids to start from instead.
    processes: those that share the work. All hold all vectors, and generators in the same state; each compares a part of
        the vectors with the centroids, and all get the whole result, the same to the last bit.
    """
    rows = len(vectors)
    if rows < count:
        raise ValueError(
            f"{count} filters need at least {count} patches other than zero, got {rows}; "
            "give more images, larger ones, or ask for fewer filters"
        )
    chunk = chunk or max(1024, 2**28 // count)
    if initial is None:
        initial = vectors[torch.randperm(rows, generator=generator)[:count].to(vectors.device)]
    with without_autocast(vectors.device):
        return _lloyd(vectors, initial, iterations, chunk, processes)


def _lloyd(vectors: Tensor, centroids: Tensor, iterations: int, chunk: int, processes: Processes) -> KMeans:
    own = _own_rows(len(vectors), processes)
    cosine, clusters = _assign(vectors[own], centroids, chunk)  # of the vectors of this process
    cosines = [_mean(cosine, len(vectors), processes)]
    if not math.isfinite(cosines[0]):
        raise ValueError("the patches hold NaN or infinity; clean the images first")
    for _ in range(iterations):
        centroids = _update(vectors, own, clusters, cosine, len(centroids), chunk, processes)
        before = clusters
        cosine, clusters = _assign(vectors[own], centroids, chunk)
        cosines.append(_mean(cosine, len(vectors), processes))
        moved = torch.tensor(not torch.equal(before, clusters), dtype=torch.float32, device=vectors.device)
        if not processes.sum(moved):
            break
    return KMeans(centroids, _of_all_rows(clusters, len(vectors), processes), cosines)


def _own_rows(rows: int, processes: Processes) -> slice:
    """The rows that this process works on: one block, so that they need no copy."""
    return slice(processes.rank * rows // processes.count, (processes.rank + 1) * rows // processes.count)


def _of_all_rows(values: Tensor, rows: int, processes: Processes) -> Tensor:
    """One value for each row, (n,), from those that each process found for its own rows."""
    if processes.count == 1:
        return values
    together = values.new_zeros(rows)
    together[_own_rows(rows, processes)] = values
    return processes.sum(together)


def _mean(cosine: Tensor, rows: int, processes: Processes) -> float:
    if processes.count == 1:
        return float(cosine.mean())
    return float(processes.sum(cosine.sum(dtype=torch.float64)) / rows)


def _assign(vectors: Tensor, centroids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """For each row its largest cosine and the centroid that gives it."""
    cosine = torch.empty(len(vectors), dtype=vectors.dtype, device=vectors.device)
    nearest = torch.empty(len(vectors), dtype=torch.long, device=vectors.device)
    for start in range(0, len(vectors), chunk):
        part = slice(start, start + chunk)
        if vectors.device.type == "cpu":
            cosine[part], nearest[part] = _nearest_by_pooling(vectors[part], centroids)
        else:
            torch.max(vectors[part] @ centroids.T, dim=1, out=(cosine[part], nearest[part]))
    return cosine, nearest


def _nearest_by_pooling(vectors: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The same as max pooling over the centroids, which PyTorch does for several rows at once where its `max` takes one number
    after the other: three times faster on a processor."""
    whole = len(vectors) // ROWS * ROWS
    blocks = [vectors[:whole].unflatten(0, (-1, ROWS))] if whole else []
    blocks += [vectors[None, whole:]] if whole < len(vectors) else []
    cosine, nearest = [], []
    for rows in blocks:  # (b, ROWS, d)
        similarities = centroids @ rows.mT  # (b, k, ROWS)
        maps = similarities.unsqueeze(2).permute(0, 3, 1, 2)  # (b, ROWS, k, 1) in channels-last order
        values, indices = F.max_pool2d(maps, (len(centroids), 1), return_indices=True)
        cosine.append(values.flatten())
        nearest.append(indices.flatten())
    return torch.cat(cosine), torch.cat(nearest)


def _update(
    vectors: Tensor, own: slice, clusters: Tensor, cosine: Tensor, count: int, chunk: int, processes: Processes
) -> Tensor:
    """New centroids: the normalised sum of each cluster; an empty cluster takes one of the worst-fit vectors."""
    sums = processes.sum(_cluster_sums(vectors[own], clusters, count, chunk))
    # a norm may be rounded differently by another kind of processor; all else is exact
    norms = processes.same(torch.linalg.vector_norm(sums, dim=1, keepdim=True))
    # a cluster is also lost when its members cancel
    lost = torch.nonzero(norms.flatten() <= 1e-6).flatten()
    centroids = sums.div_(norms.clamp_min(1e-6))
    if len(lost):
        cosine = _of_all_rows(cosine, len(vectors), processes)
        centroids[lost] = vectors[torch.argsort(cosine, stable=True)[: len(lost)]]
    return centroids


def _cluster_sums(vectors: Tensor, clusters: Tensor, count: int, chunk: int) -> Tensor:
    """Sum of the rows of each cluster, (count, d).

    On a GPU `index_add_` adds in a random order, so there the rows are sorted by cluster and summed in segments.
    """
    sums = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    if vectors.device.type == "cpu":
        # a few at a time, as it sorts them: all at once would leave the cache
        for rows, of_rows in zip(vectors.split(ROWS), clusters.split(ROWS), strict=True):
            sums.index_add_(0, of_rows, rows)
        return sums
    for start in range(0, len(vectors), chunk):
        part = slice(start, start + chunk)
        order = torch.argsort(clusters[part], stable=True)
        sizes = torch.bincount(clusters[part], minlength=count)
        sums += torch.segment_reduce(vectors[part][order], "sum", lengths=sizes, axis=0, unsafe=True)
    return sums
