"""What a kernel network costs beside a plain network with the same convolutions: steps, encoding, inverse roots, epochs.

The plain one has convolution, ReLU, average pooling to the same sizes and a 1 x 1 convolution in each layer, the same loss, SGD
with momentum, the order of memory and on a GPU the CUDA graph of ours. Times of one call compare; those of two may not.

    python benchmarks/speed.py            # all that fits the machine, written to results/speed.json
    python benchmarks/speed.py --only encoding roots --filters 32 --batches 16
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F

from sckn.inverse_root import InverseRoot
from sckn.losses import SquaredHinge
from sckn.network import CKN, NetworkConfig
from sckn.precision import Precision, precision
from sckn.results import write_result
from sckn.training.experiment import Experiment
from sckn.training.filter_step import FilterStep
from sckn.training.samples import Samples

EXPERIMENT = Experiment.from_toml(Path(__file__).parents[1] / "experiments" / "cifar10-128.toml")
CLASSES, SIDE = 10, 32
NAMES: dict[Precision, str] = {"highest": "fp32", "high": "TF32", "medium": "bf16"}

Part = Literal["step", "encoding", "roots", "epoch"]
Row = dict[str, Any]


def network_config(filters: int, inverse_root: InverseRoot | None = None) -> NetworkConfig:
    layers = [replace(layer, filters=filters) for layer in EXPERIMENT.network.layers]
    if inverse_root is not None:
        layers = [replace(layer, inverse_root=inverse_root) for layer in layers]
    return NetworkConfig(3, tuple(layers))


class PlainNetwork(nn.Module):
    """The plain counterpart of a kernel network."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        channels, side, layers = config.in_channels, SIDE, []
        for layer in config.layers:
            pooled = layer.output_size(side, side)[0]
            layers += [nn.Conv2d(channels, layer.filters, layer.patch, padding=layer.patch // 2, bias=False), nn.ReLU()]
            layers += [nn.AdaptiveAvgPool2d(pooled)] if pooled != side else []
            layers += [nn.Conv2d(layer.filters, layer.filters, 1, bias=False)]
            channels, side = layer.filters, pooled
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(channels * side * side, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images.contiguous(memory_format=torch.channels_last)).flatten(1))


def plain_network(config: NetworkConfig, device: torch.device) -> PlainNetwork:
    """With its weights in channels-last order, too."""
    network: Any = PlainNetwork(config).to(device)
    return network.to(memory_format=torch.channels_last)


class FrozenRoots(CKN):
    """With the inverse roots of its first filters, so that a step has no p x p work."""

    roots: list[Tensor] | None = None

    def inverse_roots(self, directions: list[Tensor] | None = None) -> list[Tensor]:
        if self.roots is None:
            with torch.no_grad():
                self.roots = super().inverse_roots(directions)
        return self.roots


def random_samples(count: int, device: torch.device) -> Samples:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, SIDE, SIDE, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    targets = 2.0 * F.one_hot(labels, CLASSES) - 1
    return Samples(images.to(device), targets.to(device))


def trained(network: CKN, samples: Samples, batch: int, name: Precision) -> FilterStep:
    assert EXPERIMENT.recipe is not None
    recipe = replace(EXPERIMENT.recipe, batch_size=batch, precision=name, epochs=100, active_set=False)
    width = network.config.layers[-1].filters * network.config.output_size(SIDE, SIDE)[0] ** 2
    step = FilterStep(network, samples, recipe, width=width, regularization=1e-4, seed=0)
    network.train()
    with torch.no_grad():
        network.inverse_roots()
    step.ready(scale=1.0)
    return step


def kernel_step(filters: int, batch: int, name: Precision, device: torch.device, kind: type[CKN] = CKN) -> Callable[[], None]:
    """One step of training as `train_supervised` makes it."""
    torch.manual_seed(0)
    samples = random_samples(2 * batch, device)
    step = trained(kind(network_config(filters)).to(device), samples, batch, name)
    index = torch.arange(batch, device=device)
    for base, rate in step._rates:
        rate.fill_(base / 100)  # nothing is to be learned
    return lambda: step._batch_step(index, None, batch)


def plain_step(filters: int, batch: int, name: Precision, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    network = plain_network(network_config(filters), device)
    samples, loss = random_samples(2 * batch, device), SquaredHinge()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    index = torch.arange(batch, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        scores = network(samples.images[index])
        with torch.autocast(device.type, enabled=False):
            (loss(samples.targets[index], scores.float()).sum() / batch).backward()
        optimizer.step()

    return recorded(step) if device.type == "cuda" else step


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """The same as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median over `repeats`, after three that do not count."""
    times = []
    for number in range(repeats + 3):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            time = begin.elapsed_time(end)
        else:
            started = perf_counter()
            work()
            time = 1000 * (perf_counter() - started)
        if number >= 3:
            times.append(time)
    return statistics.median(times)


def steps(filters: int, batch: int, name: Precision, device: torch.device, repeats: int) -> Row:
    """A training step: ours, ours with frozen roots, and the plain network's."""
    with precision(name, device):
        ours = milliseconds(kernel_step(filters, batch, name, device), device, repeats)
        frozen = milliseconds(kernel_step(filters, batch, name, device, FrozenRoots), device, repeats)
        plain = milliseconds(plain_step(filters, batch, name, device), device, repeats)
    return {"ms": ours, "frozen_ms": frozen, "plain_ms": plain, "ratio": ours / plain, "frozen_part": frozen / ours}


def encoding(filters: int, batch: int, name: Precision, device: torch.device, repeats: int) -> Row:
    """The features of a batch, roots known."""
    torch.manual_seed(0)
    config = network_config(filters)
    ours, plain = CKN(config).to(device).eval(), plain_network(config, device).eval()
    images = random_samples(batch, device).images
    with torch.no_grad(), precision(name, device):
        ours_ms = milliseconds(lambda: ours(images), device, repeats)
        plain_ms = milliseconds(lambda: plain.layers(images.contiguous(memory_format=torch.channels_last)), device, repeats)
    return {"ms": ours_ms, "plain_ms": plain_ms, "ratio": ours_ms / plain_ms}


def roots(filters: int, method: InverseRoot, device: torch.device, repeats: int) -> Row:
    """The p x p part alone, for all nine layers: kernel matrices, roots, and gradients back to the filters."""
    torch.manual_seed(0)
    network = CKN(network_config(filters, method)).to(device).train()
    weights = torch.randn(filters, filters, device=device)
    learned = list(network.parameters())

    def forward_and_back() -> None:
        total = torch.stack([(root * weights).sum() for root in network.inverse_roots()]).sum()
        torch.autograd.grad(total, learned)

    return {"ms": milliseconds(forward_and_back, device, repeats)}


def epoch(filters: int, name: Precision, device: torch.device, images: int) -> Row:
    """Filters and W together, as the recipe trains them."""
    torch.manual_seed(0)
    assert EXPERIMENT.recipe is not None
    with precision(name, device):
        network, samples = CKN(network_config(filters)).to(device), random_samples(images, device)
        step = trained(network, samples, EXPERIMENT.recipe.batch_size, name)
        step.epoch(0, 1e-2)
        step.active.flags.fill_(True)
        started = perf_counter()
        step.epoch(1, 1e-2)  # it returns a number, so it has waited for the device
    return {"seconds": perf_counter() - started, "images": images}


def main(
    only: tuple[Part, ...] = ("step", "encoding", "roots", "epoch"),
    filters: tuple[int, ...] = (128, 512),
    batches: tuple[int, ...] = (128, 512),
    precisions: tuple[Precision, ...] = ("highest", "high", "medium"),
    images: int = 50_000,
    repeats: int = 20,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    results: Path | None = Path("results"),
) -> None:
    """Measure, print a table, and write results/speed.json."""
    place, started, rows = torch.device(device), perf_counter(), []

    def add(part: Part, row: Row, **settings: Any) -> None:
        rows.append({"part": part, **settings, **{name: round(value, 4) for name, value in row.items()}})
        print(*(f"{name}={value}" for name, value in rows[-1].items()), flush=True)

    for p in filters:
        for name in precisions:
            for batch in batches:
                if "step" in only:
                    add("step", steps(p, batch, name, place, repeats), filters=p, batch=batch, precision=NAMES[name])
                if "encoding" in only:
                    add("encoding", encoding(p, batch, name, place, repeats), filters=p, batch=batch, precision=NAMES[name])
            if "epoch" in only:
                add("epoch", epoch(p, name, place, images), filters=p, precision=NAMES[name])
        if "roots" in only:
            methods: tuple[InverseRoot, ...] = ("eigh", "newton_schulz", "moving_frame")
            for method in methods:
                add("roots", roots(p, method, place, repeats), filters=p, method=method)
    if results is not None:
        write_result(
            results,
            name="speed",
            dataset="synthetic",
            figures={"rows": rows},
            config={"filters": filters, "batches": batches, "images": images, "repeats": repeats},
            seeds=[0],
            seconds=perf_counter() - started,
            command="python benchmarks/speed.py",
        )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
