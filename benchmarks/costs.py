"""What a kernel network must compute and move at least: multiply-adds and bytes for an image, and the times these take here.

    python benchmarks/costs.py            # the two floors of the paper's networks, beside the measured times

Nobody can be faster than both floors: arithmetic at the speed of a large matrix product, bytes at that of a large copy. The
first depends on the precision; in bf16 only the products with patches of several pixels are that fast, so that the floor is too
low. The second does not, because maps are in fp32 between the layers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
import tyro
from measuring import DEVICE, NAMES, RESULTS, Report, in_turns
from networks import SIDE, paper_network, random_samples
from torch import Tensor

from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.precision import Precision, precision, without_autocast
from sckn.superres.experiment import UpscalingExperiment

__all__ = ["Cost", "layer_cost", "multiply_adds_per_output_pixel", "network_cost"]


@dataclass(frozen=True)
class Cost:
    """Of one image: multiply-adds of the products, and numbers that must pass between processor and memory."""

    forward: int = 0
    step: int = 0
    forward_numbers: int = 0
    step_numbers: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.forward + other.forward,
            self.step + other.step,
            self.forward_numbers + other.forward_numbers,
            self.step_numbers + other.step_numbers,
        )


def layer_cost(config: LayerConfig, channels: int, height: int, width: int, *, first: bool = False) -> Cost:
    """Of one layer on a map of `channels` x height x width; the `first` one needs no gradient of its input.

    Products: the convolution with Z, pooling by one matrix for each axis, the product with A. The p x p work of a step is not
    here, as it does not depend on the images. A step has each product three times, once forward and once for each of its two
    factors, and pooling twice.

    Numbers: a program that does everything between two large products in one go still reads its input, writes the kernel map,
    reads it to pool it, and writes its output. In a step it also keeps the pooled map, and on the way back reads the gradient
    of the output, the pooled and the kernel map, writes the gradient of the projections, and reads it twice: for the gradient
    of the input, which it writes, and for that of the filters, for which it reads the input once more.
    """
    p, lost = config.filters, 0 if config.padding else config.patch - 1
    rows, columns = height - lost, width - lost
    pooled_rows, pooled_columns = config.output_size(height, width)
    convolution = channels * config.patch**2 * p * rows * columns
    pooling = p * (pooled_rows * rows * columns + pooled_rows * pooled_columns * columns) if config.subsampling != 1 else 0
    root = p * p * pooled_rows * pooled_columns
    entering, mapped, leaving = channels * height * width, p * rows * columns, p * pooled_rows * pooled_columns
    forward_numbers = entering + 2 * mapped + leaving
    back = leaving + leaving + 4 * mapped + entering + (0 if first else entering)
    return Cost(
        forward=convolution + pooling + root,
        step=(2 if first else 3) * convolution + 2 * pooling + 3 * root,
        forward_numbers=forward_numbers,
        step_numbers=forward_numbers + leaving + back,
    )


def network_cost(config: NetworkConfig, height: int, width: int) -> Cost:
    """Of all layers, without the linear model."""
    total, channels = Cost(), config.in_channels
    for number, layer in enumerate(config.layers):
        total += layer_cost(layer, channels, height, width, first=number == 0)
        height, width = layer.output_size(height, width)
        channels = layer.filters
    return total


def multiply_adds_per_output_pixel(experiment: UpscalingExperiment) -> float:
    """Of an upscaler: its convolutions, the products with A and the linear model, without the borders of tiles."""
    channels, total = 1, 0
    for layer in experiment.network.layers:
        total += channels * layer.patch**2 * layer.filters + layer.filters**2
        channels = layer.filters
    return (total + channels * experiment.upscaler.outputs) / experiment.upscaler.outputs


def rates(name: Precision, device: torch.device, size: int, repeats: int) -> tuple[float, float]:
    """Multiply-adds and bytes in a millisecond: of a product of size x size matrices, and of a copy read and written."""
    kind = torch.bfloat16 if name == "medium" else torch.float32
    a, b, product = (torch.randn(size, size, device=device, dtype=kind) for _ in range(3))
    source = torch.zeros(16 * size * size, device=device)
    target = torch.zeros_like(source)
    works = {"product": lambda: torch.mm(a, b, out=product), "copy": lambda: target.copy_(source)}
    with precision(name, device):
        times = in_turns(works, device, repeats, first=2)
    return size**3 / times["product"], 2 * source.nbytes / times["copy"]


def forward_and_back(network: CKN, images: Tensor, roots: list[Tensor]) -> None:
    """A step but for the p x p work and the update."""
    maps = network(images, roots)
    with without_autocast(maps.device):  # as in training
        torch.autograd.grad(maps.square().sum(), [layer.filters for layer in network.kernel_layers])


def measured(network: CKN, images: Tensor, name: Precision, repeats: int) -> dict[str, float]:
    """Milliseconds of an image, forward and in a step, with known roots."""
    with precision(name, images.device):
        with torch.no_grad():
            encode, roots = network.prepared(), network.inverse_roots()

        def forward() -> None:
            with torch.no_grad():
                encode(images)

        works = {"forward": forward, "step": lambda: forward_and_back(network, images, roots)}
        times = in_turns(works, images.device, repeats)
    return {what: time / len(images) for what, time in times.items()}


def main(
    filters: tuple[int, ...] = (),
    batch: int = 0,
    precisions: tuple[Precision, ...] = (),
    repeats: int = 0,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Count, measure, write rows of results/speed.json, print a table."""
    report = Report(__file__, device, results)
    place = report.device
    on_gpu = place.type == "cuda"
    repeats = repeats or (1 if tiny else 20 if on_gpu else 3)
    batch = batch or (2 if tiny else 512 if on_gpu else 32)
    for name in precisions or (get_args(Precision) if on_gpu else ("highest",)):
        arithmetic, bandwidth = rates(name, place, 64 if tiny else 8192 if on_gpu else 2048, repeats)
        for p in filters or ((8,) if tiny else (128, 512)):
            config = paper_network(p)
            cost = network_cost(config, SIDE, SIDE)
            images = random_samples(batch, place).images.contiguous(memory_format=torch.channels_last)
            times = measured(CKN(config).to(place).eval(), images, name, repeats)
            for what, products, numbers in (
                ("forward", cost.forward, cost.forward_numbers),
                ("step", cost.step, cost.step_numbers),
            ):
                figures = {
                    "mflop": 2e-6 * products,
                    "mbyte": 4e-6 * numbers,
                    "arithmetic_ms": products / arithmetic,
                    "bytes_ms": 4 * numbers / bandwidth,
                    "ms": times[what],
                }
                floor = max(figures["arithmetic_ms"], figures["bytes_ms"])
                settings = {"filters": p, "batch": batch, "precision": NAMES[name], "what": what}
                report.add("floors", settings, {**figures, "ratio": figures["ms"] / floor})
        rate = {"gflop_a_second": 2e-6 * arithmetic, "gbyte_a_second": 1e-6 * bandwidth}
        report.add("rates", {"precision": NAMES[name]}, rate)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
