"""Spherical k-means against a loop in numpy, and its promises: deterministic, monotone, no cluster lost."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from test_processes import TEAMS, team
from torch import Tensor

from sckn.kmeans import KMeans, _assign, spherical_kmeans
from sckn.processes import Processes


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit_vectors(count: int, dimension: int, dtype: torch.dtype = torch.float64) -> Tensor:
    vectors = torch.randn(count, dimension, dtype=dtype)
    return vectors / vectors.norm(dim=1, keepdim=True)


def naive_kmeans(vectors: np.ndarray, centroids: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Lloyd's algorithm for cosines, one vector at a time; no cluster may become empty."""
    clusters = nearest = np.full(len(vectors), -1)
    cosines = []
    for iteration in range(iterations + 1):
        cosines.append(np.mean([max(float(v @ c) for c in centroids) for v in vectors]))
        nearest = np.array([int(np.argmax([v @ c for c in centroids])) for v in vectors])
        if (nearest == clusters).all() or iteration == iterations:
            break
        clusters = nearest
        sums = [sum(v for v, cluster in zip(vectors, clusters, strict=True) if cluster == k) for k in range(len(centroids))]
        centroids = np.array([s / np.linalg.norm(s) for s in sums])
    return centroids, nearest, cosines


@pytest.mark.parametrize("iterations", [1, 3, 50])
def test_agrees_with_a_naive_loop(iterations: int) -> None:
    vectors = unit_vectors(80, 3)
    initial = vectors[:6].clone()
    centroids, clusters, cosines = naive_kmeans(vectors.numpy(), initial.numpy(), iterations)
    result = spherical_kmeans(vectors, 6, iterations=iterations, generator=seeded(0), initial=initial)
    np.testing.assert_allclose(result.centroids.numpy(), centroids, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.cosines, cosines, rtol=1e-12)
    np.testing.assert_array_equal(result.clusters.numpy(), clusters)


@pytest.mark.parametrize("iterations", [0, 1, 3, 50])
def test_clusters_are_those_of_the_centroids_returned(iterations: int) -> None:
    vectors = unit_vectors(200, 4)
    result = spherical_kmeans(vectors, 9, iterations=iterations, generator=seeded(0))
    np.testing.assert_array_equal(result.clusters.numpy(), (vectors @ result.centroids.T).numpy().argmax(axis=1))


def test_depends_on_the_seed_alone() -> None:
    vectors = unit_vectors(300, 8, torch.float32)
    first, again, other = (spherical_kmeans(vectors, 12, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.centroids, again.centroids)
    assert torch.equal(first.clusters, again.clusters)
    assert not torch.equal(first.centroids, other.centroids)


def test_the_data_and_the_start_are_left_alone() -> None:
    vectors = unit_vectors(100, 4)
    initial = vectors[:5].clone()
    kept_vectors, kept_initial = vectors.clone(), initial.clone()
    spherical_kmeans(vectors, 5, generator=seeded(0), initial=initial)
    assert torch.equal(vectors, kept_vectors)
    assert torch.equal(initial, kept_initial)


@pytest.mark.parametrize("seed", range(5))
def test_mean_cosine_never_falls(seed: int) -> None:
    vectors = unit_vectors(400, 5)
    cosines = spherical_kmeans(vectors, 30, iterations=40, generator=seeded(seed)).cosines
    assert len(cosines) > 3
    assert all(later >= earlier - 1e-14 for earlier, later in itertools.pairwise(cosines))


def test_well_separated_clusters_are_found() -> None:
    centres = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64))[0][:6]
    truth = torch.arange(6).repeat_interleave(40)
    vectors = centres[truth] + 0.05 * torch.randn(240, 10, dtype=torch.float64)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    start = vectors[::40].clone()  # one of each, so that no local optimum is in the way
    result = spherical_kmeans(vectors, 6, generator=seeded(0), initial=start)
    assert adjusted_rand_score(truth.numpy(), result.clusters.numpy()) == 1.0
    assert float((result.centroids * centres).sum(dim=1).min()) > 0.995


def test_centroids_have_unit_norm() -> None:
    result = spherical_kmeans(unit_vectors(200, 6), 15, generator=seeded(0))
    torch.testing.assert_close(result.centroids.norm(dim=1), torch.ones(15, dtype=torch.float64))


def in_a_cone(count: int) -> tuple[Tensor, Tensor]:
    """Unit vectors within a right angle of the first, and five centroids: it, and four at its opposite, which are empty after
    the first assignment."""
    vectors = torch.randn(count, 3, dtype=torch.float64)
    vectors[:, 0] = 2 + vectors[:, 0].abs()
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    assert float((vectors @ vectors[0]).min()) > 0
    return vectors, torch.cat([vectors[:1], -vectors[:1].expand(4, 3)])


def test_empty_clusters_take_the_worst_fit_vectors() -> None:
    vectors, initial = in_a_cone(50)
    result = spherical_kmeans(vectors, 5, iterations=30, generator=seeded(0), initial=initial)
    assert sorted(set(result.clusters.tolist())) == [0, 1, 2, 3, 4]
    assert all(later >= earlier - 1e-14 for earlier, later in itertools.pairwise(result.cosines))
    one_step = spherical_kmeans(vectors, 5, iterations=1, generator=seeded(0), initial=initial)
    worst = torch.argsort(vectors @ vectors[0])[:4]
    torch.testing.assert_close(one_step.centroids[1:], vectors[worst], rtol=0, atol=0)


def test_a_cluster_whose_members_cancel_is_repaired() -> None:
    """Two opposite vectors, both at a right angle to their only centroid: their sum has no direction."""
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    result = spherical_kmeans(vectors, 1, generator=seeded(0), initial=torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(result.centroids.norm(dim=1), torch.ones(1, dtype=torch.float64))


def test_a_cluster_whose_members_cancel_up_to_rounding_is_repaired() -> None:
    """What is left of the sum is a rounding error, whose direction says nothing: one of the vectors takes its place."""
    vectors = torch.tensor([[0.6, 0.8], [-0.6, -0.8]], dtype=torch.float64)
    vectors[1, 1] += 2e-16
    assert 0 < float(vectors.sum(dim=0).norm()) < 1e-15
    result = spherical_kmeans(vectors, 1, generator=seeded(0), initial=torch.tensor([[0.8, -0.6]], dtype=torch.float64))
    assert any(torch.equal(result.centroids[0], vector) for vector in vectors)


def test_as_many_centroids_as_vectors() -> None:
    vectors = unit_vectors(12, 4)
    result = spherical_kmeans(vectors, 12, generator=seeded(0))
    assert sorted(result.clusters.tolist()) == list(range(12))
    assert result.cosines[-1] == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_change_the_result(chunk: int) -> None:
    vectors = unit_vectors(60, 5)
    whole = spherical_kmeans(vectors, 5, generator=seeded(0))
    in_chunks = spherical_kmeans(vectors, 5, generator=seeded(0), chunk=chunk)
    assert torch.equal(in_chunks.clusters, whole.clusters)
    torch.testing.assert_close(in_chunks.centroids, whole.centroids, rtol=1e-13, atol=1e-13)
    assert in_chunks.cosines == pytest.approx(whole.cosines, rel=1e-13)


@pytest.mark.parametrize("rows", [3, 1024, 2500])
def test_of_equal_centroids_the_first_is_taken(rows: int) -> None:
    """As numpy's argmax does; rows come in whole blocks and a rest."""
    vectors = unit_vectors(rows, 5)
    centroids = unit_vectors(4, 5).repeat(2, 1)
    cosine, nearest = _assign(vectors, centroids, chunk=2400)
    similarities = vectors.numpy() @ centroids[:4].numpy().T
    np.testing.assert_array_equal(nearest.numpy(), similarities.argmax(1))
    np.testing.assert_allclose(cosine.numpy(), similarities.max(1), rtol=1e-5, atol=1e-6)


def test_too_few_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"8 filters .* got 7"):
        spherical_kmeans(unit_vectors(7, 3), 8, generator=seeded(0))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    vectors = unit_vectors(7, 3)
    vectors[4, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        spherical_kmeans(vectors, 2, generator=seeded(0))


def shared_kmeans(processes: Processes, vectors: Tensor, count: int, initial: Tensor | None, chunk: int | None) -> KMeans:
    return spherical_kmeans(
        vectors, count, iterations=30, generator=seeded(3), chunk=chunk, initial=initial, processes=processes
    )


def check_shared(
    processes: int, vectors: Tensor, count: int, initial: Tensor | None = None, chunk: int | None = None
) -> KMeans:
    """Several processes find what one finds, up to rounding, and all of them the same to the last bit."""
    alone = spherical_kmeans(vectors, count, iterations=30, generator=seeded(3), chunk=chunk, initial=initial)
    found = team(processes).run(shared_kmeans, vectors, count, initial, chunk)
    for shared in found:
        assert torch.equal(shared.clusters, alone.clusters)
        torch.testing.assert_close(shared.centroids, alone.centroids, rtol=1e-12, atol=1e-12)
        assert shared.cosines == pytest.approx(alone.cosines, rel=1e-12)
        assert torch.equal(shared.centroids, found[0].centroids)
        assert shared.cosines == found[0].cosines
    return alone


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("rows", [301, 300])
@pytest.mark.parametrize("processes", TEAMS)
def test_shared_between_processes(processes: int, rows: int, chunk: int | None) -> None:
    alone = check_shared(processes, unit_vectors(rows, 5), 12, chunk=chunk)
    assert 5 < len(alone.cosines) <= 31


@pytest.mark.parametrize("processes", TEAMS)
def test_lost_clusters_are_repaired_alike_in_all_processes(processes: int) -> None:
    """The worst-fit vectors are in the part of the last process."""
    vectors, initial = in_a_cone(50)
    vectors = vectors[torch.argsort(vectors @ vectors[0], descending=True)]
    alone = check_shared(processes, vectors, 5, initial)
    assert sorted(set(alone.clusters.tolist())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("processes", TEAMS)
def test_a_process_without_vectors_takes_part(processes: int) -> None:
    """Of three processes one has no row of two; the two rows cancel in their only cluster."""
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    alone = check_shared(processes, vectors, 1, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert any(torch.equal(alone.centroids[0], vector) for vector in vectors)


@pytest.mark.parametrize("processes", TEAMS)
def test_nan_is_refused_by_all_processes(processes: int) -> None:
    vectors = unit_vectors(30, 3)
    vectors[-1, 1] = torch.nan
    for outcome in team(processes).outcomes(shared_kmeans, vectors, 2, vectors[:2], None):
        with pytest.raises(ValueError, match="NaN or infinity"):
            raise outcome


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("chunk", [None, 3000])
def test_cuda_gives_the_same_bits_twice(chunk: int | None) -> None:
    """Large enough for sums in random order to show."""
    vectors = unit_vectors(20_000, 75, torch.float32).cuda()
    first, again = (spherical_kmeans(vectors, 64, generator=seeded(1), chunk=chunk) for _ in range(2))
    assert torch.equal(first.centroids, again.centroids)
    assert torch.equal(first.clusters, again.clusters)
    assert first.cosines == again.cosines


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    """In float64, where no vector is so near to two centroids that rounding decides."""
    vectors = unit_vectors(2000, 12)
    on_cpu = spherical_kmeans(vectors, 20, generator=seeded(1))
    on_cuda = spherical_kmeans(vectors.cuda(), 20, generator=seeded(1))
    assert torch.equal(on_cuda.clusters.cpu(), on_cpu.clusters)
    torch.testing.assert_close(on_cuda.centroids.cpu(), on_cpu.centroids, rtol=1e-10, atol=1e-10)
