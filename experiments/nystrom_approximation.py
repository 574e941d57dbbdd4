"""How well do p filters approximate the kernel? `python experiments/nystrom_approximation.py`, under a minute on two cores.

On the digits of scikit-learn (8 x 8 pixels), filters learned from some images and measured on others, with p = 4 ... 256
filters taken as random patches (each set holds the smaller ones) or as centroids of spherical k-means:

(a) the mean residual |phi(x) - f_x|^2 of unit patches x projected onto the filters' span (appendix A);
(b) the relative error |K_Z - K| / |K| (Frobenius) of the kernel between images, equation (6), against the exact kernel
    without projections, for networks of one and two layers.

It draws docs/figures/nystrom-approximation.png and writes the numbers to results/nystrom-approximation.json.
"""

import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")  # no display is needed
import matplotlib.pyplot as plt
import torch
import tyro
from matplotlib.axes import Axes
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sckn.files import written_whole
from sckn.gram import exact_kernel_matrix, kernel_matrix
from sckn.kernels import Exponential, to_dict
from sckn.kmeans import spherical_kmeans
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import projection_residuals
from sckn.patches import sample_patches
from sckn.results import write_result

ROOT = Path(__file__).parents[1]
COUNTS = [4, 8, 16, 32, 64, 128, 256]
SEEDS = [0, 1, 2, 3, 4]
TRAIN, TEST = 300, 30  # images
PATCHES = 2000  # that k-means sees, and as many to measure residuals
LAYER = LayerConfig(filters=1, patch=3, subsampling=2, kernel=Exponential(alpha=4.0), epsilon=1e-6, norm_offset=1e-9)

Choice = Literal["random", "kmeans"]
Curves = dict[str, list[list[float]]]  # for each name, a row for each seed, a number for each count


def choose_filters(patches: Tensor, count: int, choice: Choice, seed: int) -> Tensor:
    """Filters (count, d) from unit patches (n, d), which come in a random order."""
    if choice == "random":
        return patches[:count]
    generator = torch.Generator().manual_seed(seed)
    centroids = spherical_kmeans(patches.float(), count, iterations=10, generator=generator).centroids
    return centroids.to(patches.dtype)  # single precision will do for clustering


def learn_network(images: Tensor, depth: int, count: int, choice: Choice, seed: int) -> CKN:
    """`depth` layers of `count` filters each, learned one after the other from images (n, c, H, W)."""
    network = CKN(NetworkConfig(images.shape[1], (replace(LAYER, filters=count),) * depth)).to(images.dtype).eval()
    maps = images
    for layer in network.kernel_layers:
        patches = shuffled_patches(maps, seed)
        layer.filters = nn.Parameter(choose_filters(patches, count, choice, seed).view_as(layer.filters))
        with torch.no_grad():
            maps = layer(maps)
    return network


def shuffled_patches(maps: Tensor, seed: int) -> Tensor:
    """Random unit patches (PATCHES, d) of maps (n, c, H, W), in a random order."""
    generator = torch.Generator().manual_seed(seed)
    patches = sample_patches([maps], LAYER.patch, LAYER.padding, PATCHES, generator)
    return patches[torch.randperm(len(patches), generator=generator)]


def residual_curves(train: Tensor, test: Tensor) -> Curves:
    """Panel (a)."""
    curves: Curves = {"random": [], "kmeans": []}
    for seed in SEEDS:
        patches, unseen = shuffled_patches(train, seed), shuffled_patches(test, seed)
        for choice in ("random", "kmeans"):
            filters = [choose_filters(patches, count, choice, seed) for count in COUNTS]
            curves[choice].append(
                [float(projection_residuals(unseen, Z, LAYER.kernel, epsilon=LAYER.epsilon).mean()) for Z in filters]
            )
    return curves


def kernel_error_curves(train: Tensor, test: Tensor) -> Curves:
    """Panel (b)."""
    curves: Curves = {}
    for depth in (1, 2):
        exact = exact_kernel_matrix(CKN(NetworkConfig(1, (LAYER,) * depth)), test)
        for choice in ("random", "kmeans"):
            curves[f"{depth}-layer-{choice}"] = [
                [
                    float((kernel_matrix(learn_network(train, depth, count, choice, seed), test) - exact).norm() / exact.norm())
                    for count in COUNTS
                ]
                for seed in SEEDS
            ]
    return curves


def mean_over_seeds(curve: list[list[float]]) -> list[float]:
    return [statistics.mean(values) for values in zip(*curve, strict=True)]


def draw_curve(axes: Axes, curve: list[list[float]], label: str, colour: str, style: str, marker: str) -> None:
    """The mean over the seeds, in a band from the smallest value to the largest."""
    low, high = zip(*[(min(values), max(values)) for values in zip(*curve, strict=True)], strict=True)
    axes.fill_between(COUNTS, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(COUNTS, mean_over_seeds(curve), color=colour, linestyle=style, marker=marker, markersize=4, label=label)


def draw(residuals: Curves, errors: Curves, path: Path) -> None:
    blue, orange = "tab:blue", "tab:orange"
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    draw_curve(left, residuals["random"], "random patches", blue, "--", "o")
    draw_curve(left, residuals["kmeans"], "k-means centroids", blue, "-", "s")
    left.set(title="(a) one patch", ylabel=r"mean $\|\varphi(x) - f_x\|^2$ over unit 3x3 patches")
    for depth, name, colour in ((1, "one layer", blue), (2, "two layers", orange)):
        draw_curve(right, errors[f"{depth}-layer-random"], f"{name}, random patches", colour, "--", "o")
        draw_curve(right, errors[f"{depth}-layer-kmeans"], f"{name}, k-means", colour, "-", "s")
    right.set(title="(b) kernel between images", ylabel=r"relative error $\|K_Z - K\|_F \,/\, \|K\|_F$")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="filters in each layer", xticks=COUNTS, xticklabels=COUNTS)
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    left.set_ylim(1e-2, 1)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=96, format="png")
    plt.close(figure)


def main(output: Path = ROOT / "docs" / "figures", results: Path = ROOT / "results") -> None:
    """Error of the projection onto p filters, for p = 4 ... 256, on digits.

    Args:
        output: Folder of the figure.
        results: Folder of the JSON file.
    """
    torch.set_num_threads(1)  # threads do not help matrices of 256 rows, and on a busy machine they wait for one another
    started = time.perf_counter()
    images = torch.tensor(load_digits(return_X_y=True)[0]).div(16).view(-1, 1, 8, 8)  # (n, 1, 8, 8), float64
    train, test = images[:TRAIN], images[-TEST:]
    residuals, errors = residual_curves(train, test), kernel_error_curves(train, test)
    figure = output / "nystrom-approximation.png"
    draw(residuals, errors, figure)
    result = write_result(
        results,
        name="nystrom-approximation",
        dataset="scikit-learn digits, 8 x 8",
        figures={
            "filters": COUNTS,
            "residual": {name: mean_over_seeds(curve) for name, curve in residuals.items()},
            "kernel_error": {name: mean_over_seeds(curve) for name, curve in errors.items()},
        },
        config={
            "layer": {**asdict(LAYER), "kernel": to_dict(LAYER.kernel), "filters": COUNTS},
            "learning_images": TRAIN,
            "measured_images": TEST,
            "patches": PATCHES,
        },
        seeds=SEEDS,
        seconds=time.perf_counter() - started,
        command="python experiments/nystrom_approximation.py",
    )
    print(f"{figure}\n{result}")


if __name__ == "__main__":
    tyro.cli(main)
