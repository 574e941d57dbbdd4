"""Local whitening of images of the size of CIFAR-10, beside the same formula in numpy, one image after the other.

python benchmarks/whitening.py [--images 60000]
"""

from pathlib import Path

import numpy as np
import torch
import tyro
from measuring import DEVICE, RESULTS, Report, in_turns
from threadpoolctl import threadpool_limits

from sckn.whitening import local_whitening

PATCH, POWER = 3, 0.25
MOST_BY_NUMPY = 200


def whitened_by_numpy(image: np.ndarray) -> np.ndarray:
    """(c, H, W) from 0 to 1 -> the same shape, as the documentation of `local_whitening` says it; for images without
    directions that are constant."""
    channels, height, width = image.shape
    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH), axis=(1, 2))  # (c, H', W', e, e)
    X = windows.transpose(0, 3, 4, 1, 2).reshape(channels, PATCH * PATCH, -1)
    X = (X - X.mean(axis=1, keepdims=True)).reshape(channels * PATCH * PATCH, -1)
    X = X - X.mean(axis=1, keepdims=True)
    values, U = np.linalg.eigh(X @ X.T)
    kept = values > 1e-12 * values[-1]
    X = (U[:, kept] * values[kept] ** -POWER) @ (U[:, kept].T @ X)
    X = X.reshape(channels, PATCH, PATCH, height - PATCH + 1, width - PATCH + 1)
    total, count = np.zeros_like(image), np.zeros_like(image)
    for i in range(PATCH):
        for j in range(PATCH):
            place = np.s_[:, i : i + X.shape[3], j : j + X.shape[4]]
            total[place] += X[:, i, j]
            count[place] += 1
    return total / count


def main(
    images: int | None = None, repeats: int = 3, device: str = DEVICE, tiny: bool = False, results: Path | None = RESULTS
) -> None:
    """Measure, write rows of results/speed.json, print a table."""
    report = Report(__file__, device, results)
    count = images or (5 if tiny else 60_000 if report.device.type == "cuda" else 2000)
    draws = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=draws, dtype=torch.uint8)
    few = min(count, MOST_BY_NUMPY)
    on_host = pixels[:few].numpy() / 255

    def by_numpy() -> np.ndarray:
        with threadpool_limits(torch.get_num_threads()):
            return np.stack([whitened_by_numpy(image) for image in on_host])

    works = {"ms": lambda: local_whitening(pixels.to(report.device)), "numpy_ms": by_numpy}
    times = in_turns(works, report.device, 1 if tiny else repeats)
    difference = np.abs(local_whitening(pixels[:few].to(report.device)).cpu().numpy() - by_numpy()).max()
    figures = {
        "us_an_image": 1000 * times["ms"] / count,
        "numpy_us_an_image": 1000 * times["numpy_ms"] / few,
        "ratio": times["ms"] / count / (times["numpy_ms"] / few),
        "largest_difference": float(difference),
    }
    report.add("whitening", {"images": count}, figures)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
