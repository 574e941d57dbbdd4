"""Spherical k-means beside scikit-learn's Lloyd and, where it is installed, faiss: same start, same number of iterations.

python benchmarks/kmeans.py              # on a GPU also the layers of 512 and, without the others, of 16,384 centroids
python benchmarks/kmeans.py --patches 10000 --dimension 27 --centroids 64
"""

import importlib
import resource
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from measuring import DEVICE, RESULTS, Report, in_turns
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor

from sckn.kmeans import spherical_kmeans
from sckn.precision import Precision, precision


@dataclass(frozen=True)
class Size:
    """How many patches of which dimension become how many centroids."""

    patches: int = 100_000
    dimension: int = 27
    centroids: int = 64

    @property
    def work(self) -> int:
        return self.patches * self.dimension * self.centroids


TINY, WIDE, WIDEST = Size(300, 5, 4), Size(1_000_000, 1152, 512), Size(1_000_000, 9216, 16384)
MOST_WORK_ON_PROCESSORS = 10**12  # multiply-adds of an iteration


def random_patches(size: Size, device: torch.device) -> Tensor:
    """Unit vectors around random directions, as patches of images are around a few; drawn in pieces to spare memory."""
    draws = torch.Generator(device).manual_seed(0)
    centres = torch.randn(size.centroids, size.dimension, generator=draws, device=device)
    patches = torch.empty(size.patches, size.dimension, device=device)
    for piece in patches.split(65536):
        chosen = torch.randint(size.centroids, (len(piece),), generator=draws, device=device)
        torch.randn(piece.shape, generator=draws, device=device, out=piece)
        piece += centres[chosen]
        piece /= torch.linalg.vector_norm(piece, dim=1, keepdim=True)
    return patches


def by_scikit_learn(patches: np.ndarray, initial: np.ndarray, iterations: int) -> None:
    with threadpool_limits(torch.get_num_threads()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # after so few iterations
        settings: dict[str, Any] = {"init": initial, "n_init": 1, "max_iter": iterations, "tol": 0, "algorithm": "lloyd"}
        KMeans(len(initial), **settings).fit(patches)


def by_faiss(faiss: Any, patches: np.ndarray, initial: np.ndarray, iterations: int) -> None:
    faiss.omp_set_num_threads(torch.get_num_threads())
    most = len(patches) // len(initial) + 1  # it would take a sample of larger data
    model = faiss.Kmeans(patches.shape[1], len(initial), niter=iterations, spherical=True, max_points_per_centroid=most)
    model.train(patches, init_centroids=initial)


def measure(report: Report, size: Size, iterations: int, repeats: int, name: Precision) -> None:
    patches = random_patches(size, report.device)
    initial = patches[: size.centroids].clone()
    draws = torch.Generator()

    def ours() -> list[float]:
        return spherical_kmeans(patches, size.centroids, iterations=iterations, generator=draws, initial=initial).cosines

    works: dict[str, Callable[[], object]] = {"ms": ours}
    if size.work <= MOST_WORK_ON_PROCESSORS:
        on_host, start = patches.cpu().numpy(), initial.cpu().numpy()
        works["sklearn_ms"] = lambda: by_scikit_learn(on_host, start, iterations)
        try:
            faiss = importlib.import_module("faiss")
            works["faiss_ms"] = lambda: by_faiss(faiss, on_host, start, iterations)
        except ImportError:
            pass
    if report.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with precision(name, report.device):
        times = in_turns(works, report.device, repeats)
        cosines = ours()
    figures: dict[str, Any] = dict(times)
    figures |= {other.replace("_ms", "_ratio"): times["ms"] / times[other] for other in times if other != "ms"}
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if report.device.type == "cuda" else host
    figures |= {"patches_gib": patches.nbytes / 2**30, "first_cosine": cosines[0], "last_cosine": cosines[-1]}
    report.add("kmeans", {**vars(size), "iterations": iterations, "precision": name}, figures)


def main(
    patches: int | None = None,
    dimension: int | None = None,
    centroids: int | None = None,
    iterations: int = 10,
    repeats: int = 5,
    precision: Precision = "high",
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Measure, write rows of results/speed.json, print a table. On a GPU memory is that of the GPU."""
    report = Report(__file__, device, results)
    given = {"patches": patches, "dimension": dimension, "centroids": centroids}
    asked = {name: value for name, value in given.items() if value is not None}
    sizes = [TINY] if tiny else [Size(**asked)] if asked else [Size()]
    if not tiny and not asked and report.device.type == "cuda":
        sizes += [WIDE, WIDEST]
    for size in sizes:
        measure(report, size, iterations, 1 if tiny or size in (WIDE, WIDEST) else repeats, precision)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
