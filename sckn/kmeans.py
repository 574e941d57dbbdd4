"""Spherical k-means: the centroids that span the subspace F of a layer trained without labels (section 2).

Deterministic under a seed on any device, in chunks, so that memory beyond the data is bounded by one chunk of
similarities: 10^6 patches of dimension 9,216 with 16,384 centroids fit on one GPU.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["KMeans", "spherical_kmeans"]


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
    """
    rows = len(vectors)
    if rows < count:
        raise ValueError(
            f"{count} filters need at least {count} patches other than zero, got {rows}; give more images or ask for fewer"
        )
    chunk = chunk or max(1024, 2**28 // count)
    if initial is None:
        initial = vectors[torch.randperm(rows, generator=generator)[:count].to(vectors.device)]
    with torch.autocast(vectors.device.type, enabled=False):
        return _lloyd(vectors, initial, iterations, chunk)


def _lloyd(vectors: Tensor, centroids: Tensor, iterations: int, chunk: int) -> KMeans:
    cosine, clusters = _assign(vectors, centroids, chunk)
    cosines = [float(cosine.mean())]
    if not math.isfinite(cosines[0]):
        raise ValueError("the patches hold NaN or infinity; clean the images first")
    for _ in range(iterations):
        centroids = _update(vectors, clusters, cosine, len(centroids), chunk)
        before = clusters
        cosine, clusters = _assign(vectors, centroids, chunk)
        cosines.append(float(cosine.mean()))
        if torch.equal(before, clusters):
            break
    return KMeans(centroids, clusters, cosines)


def _assign(vectors: Tensor, centroids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """For each row its largest cosine and the centroid that gives it."""
    cosine = torch.empty(len(vectors), dtype=vectors.dtype, device=vectors.device)
    nearest = torch.empty(len(vectors), dtype=torch.long, device=vectors.device)
    for start in range(0, len(vectors), chunk):
        part = slice(start, start + chunk)
        torch.max(vectors[part] @ centroids.T, dim=1, out=(cosine[part], nearest[part]))
    return cosine, nearest


def _update(vectors: Tensor, clusters: Tensor, cosine: Tensor, count: int, chunk: int) -> Tensor:
    """New centroids: the normalised sum of each cluster; an empty cluster takes one of the worst-fit vectors."""
    sums = _cluster_sums(vectors, clusters, count, chunk)
    norms = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
    # a cluster is also lost when its members cancel
    lost = torch.nonzero(norms.flatten() <= 1e-6).flatten()
    centroids = sums.div_(norms.clamp_min(1e-6))
    if len(lost):
        centroids[lost] = vectors[torch.argsort(cosine, stable=True)[: len(lost)]]
    return centroids


def _cluster_sums(vectors: Tensor, clusters: Tensor, count: int, chunk: int) -> Tensor:
    """Sum of the rows of each cluster, (count, d).

    On a GPU `index_add_` adds in a random order, so there the rows are sorted by cluster and summed in segments.
    """
    sums = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    if vectors.device.type == "cpu":
        return sums.index_add_(0, clusters, vectors)
    for start in range(0, len(vectors), chunk):
        part = slice(start, start + chunk)
        order = torch.argsort(clusters[part], stable=True)
        sizes = torch.bincount(clusters[part], minlength=count)
        sums += torch.segment_reduce(vectors[part][order], "sum", lengths=sizes, axis=0, unsafe=True)
    return sums
