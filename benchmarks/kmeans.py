"""Spherical k-means at the size of the widest layer: seconds and peak memory, written to results/.

python benchmarks/kmeans.py                                    10^6 patches of dimension 9,216, 16,384 centroids
python benchmarks/kmeans.py --patches 10000 --dimension 27 --centroids 64
"""

import argparse
import resource
import time
from pathlib import Path

import torch

from sckn.kmeans import spherical_kmeans
from sckn.results import write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=9216)
    parser.add_argument("--centroids", type=int, default=16384)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--precision", choices=["tf32", "ieee"], default="tf32", help="of products on a GPU")
    parser.add_argument("--results", type=Path, default=Path("results"))
    settings = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.fp32_precision = settings.precision

    # Patches around random directions, as those of images are around a few; drawn in pieces to spare memory.
    draws = torch.Generator(device).manual_seed(0)
    centres = torch.randn(settings.centroids, settings.dimension, generator=draws, device=device)
    patches = torch.empty(settings.patches, settings.dimension, device=device)
    for piece in patches.split(65536):
        chosen = torch.randint(settings.centroids, (len(piece),), generator=draws, device=device)
        torch.randn(piece.shape, generator=draws, device=device, out=piece)
        piece += centres[chosen]
        piece /= torch.linalg.vector_norm(piece, dim=1, keepdim=True)
    del centres

    def run() -> tuple[float, torch.Tensor, list[float]]:
        started = time.perf_counter()
        found = spherical_kmeans(
            patches, settings.centroids, iterations=settings.iterations, generator=torch.Generator().manual_seed(0)
        )
        return time.perf_counter() - started, found.centroids, found.cosines  # the cosines are on the host: all is done

    seconds, centroids, cosines = run()
    seconds_again, centroids_again, _ = run()
    on_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else on_host
    figures = {
        "kmeans_seconds": round(seconds, 3),
        "kmeans_seconds_again": round(seconds_again, 3),
        "seconds_per_iteration": round(seconds_again / (len(cosines) - 1), 3),
        "peak_gib": round(gib, 2),
        "patches_gib": round(patches.numel() * patches.element_size() / 2**30, 2),
        "mean_cosine": [round(cosine, 6) for cosine in cosines],
        "same_twice": bool(torch.equal(centroids, centroids_again)),
    }
    config = {key: value for key, value in vars(settings).items() if key != "results"}
    size = f"{settings.patches}-{settings.dimension}-{settings.centroids}"
    options = " ".join(f"--{key} {value}" for key, value in config.items())
    path = write_result(
        settings.results,
        name=f"kmeans-{size}",
        dataset="synthetic",
        figures=figures,
        config=config,
        seeds=[0],
        seconds=seconds + seconds_again,
        command=f"python benchmarks/kmeans.py {options}",
    )
    for name, value in figures.items():
        print(f"{name:24} {value}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
