"""What a kernel network costs beside a plain network with the same convolutions: steps, encoding, inverse roots, epochs.

The plain one has convolution, ReLU, average pooling to the same sizes and a 1 x 1 convolution in each layer, the same loss, SGD
with momentum, the order of memory and on a GPU the CUDA graph of ours. Images are noise.

    python benchmarks/speed.py            # all that fits the machine, merged into results/speed.json
    python benchmarks/speed.py --only encoding roots --filters 32 --batches 16
    python benchmarks/speed.py --only step --compiled     # beside a plain network by torch.compile, too; needs a C compiler
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from measuring import DEVICE, NAMES, RESULTS, Report, in_turns
from networks import PAPER, SIDE, paper_network, plain_network, random_samples
from torch import Tensor

from sckn.inverse_root import InverseRoot
from sckn.losses import SquaredHinge
from sckn.network import CKN
from sckn.precision import Precision, precision, without_autocast
from sckn.training.filter_step import FilterStep
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples
from sckn.training.supervised import train_supervised

METHODS: tuple[InverseRoot, ...] = ("eigh", "newton_schulz", "moving_frame")

Part = Literal["step", "encoding", "roots", "epoch"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured unless the command says otherwise."""

    filters: tuple[int, ...]
    batches: tuple[int, ...]
    precisions: tuple[Precision, ...]
    images: int  # of an epoch
    repeats: int


SIZES = {
    "cuda": Sizes((128, 512), (128, 512), ("highest", "high", "medium"), 50_000, 20),
    "cpu": Sizes((64, 128, 512), (32,), ("highest",), 128, 3),
    "tiny": Sizes((8,), (4,), ("highest",), 8, 1),
}


class FrozenRoots(CKN):
    """With the inverse roots of its first filters, so that a step has no p x p work."""

    roots: list[Tensor] | None = None

    def inverse_roots(self, directions: list[Tensor] | None = None) -> list[Tensor]:
        if self.roots is None:
            with torch.no_grad():
                self.roots = super().inverse_roots(directions)
        return self.roots


def step_of_training(network: CKN, samples: Samples, batch: int, name: Precision) -> FilterStep:
    assert PAPER.recipe is not None
    recipe = replace(PAPER.recipe, batch_size=batch, precision=name, epochs=100, active_set=False)
    width = network.config.layers[-1].filters * network.config.output_size(SIDE, SIDE)[0] ** 2
    step = FilterStep(network, samples, recipe, width=width, regularization=1e-4, seed=0)
    network.train()
    with torch.no_grad():
        network.inverse_roots()
    return step


def kernel_step(filters: int, batch: int, name: Precision, device: torch.device, kind: type[CKN] = CKN) -> Callable[[], None]:
    """One step of training as `train_supervised` makes it."""
    torch.manual_seed(0)
    samples = random_samples(2 * batch, device)
    step = step_of_training(kind(paper_network(filters)).to(device), samples, batch, name)
    index = torch.arange(batch, device=device)
    step.set_rates(0.01)  # nothing is to be learned
    return lambda: step.step(index, None, batch)


def plain_step(filters: int, batch: int, samples: Samples, index: Tensor, *, compiled: bool = False) -> Callable[[], object]:
    """One step of the plain network with the samples `index`, which may change from step to step."""
    torch.manual_seed(0)
    device = index.device
    network: Any = plain_network(paper_network(filters), device)
    loss = SquaredHinge()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    if compiled:
        torch.compiler.reset()  # those of other sizes would count against the number of programs it keeps
        network = torch.compile(network, dynamic=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        scores = network(samples.images[index])
        with without_autocast(device):
            (loss(samples.targets[index], scores.float()).sum() / batch).backward()
        optimizer.step()

    return recorded(step) if device.type == "cuda" else step


@dataclass(frozen=True)
class Recorded:
    """A CUDA graph, and the step whose tensors it reads and writes: without it their memory would be given to others."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]

    def __call__(self) -> None:
        self.graph.replay()


def recorded(step: Callable[[], object]) -> Callable[[], None]:
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
    return Recorded(graph, step)


def steps(filters: int, batch: int, name: Precision, device: torch.device, repeats: int, compiled: bool = False) -> Row:
    """A training step: ours, ours with frozen roots, the plain network's, and that after torch.compile, which ours is not."""
    with precision(name, device):
        samples, index = random_samples(2 * batch, device), torch.arange(batch, device=device)
        works: dict[str, Callable[[], object]] = {
            "ms": kernel_step(filters, batch, name, device),
            "frozen_ms": kernel_step(filters, batch, name, device, FrozenRoots),
            "plain_ms": plain_step(filters, batch, samples, index),
        }
        if compiled:
            works["compiled_ms"] = plain_step(filters, batch, samples, index, compiled=True)
        times = in_turns(works, device, repeats, first=3 if device.type == "cuda" else 1)
    ratios = {"ratio": times["ms"] / times["plain_ms"], "frozen_part": times["frozen_ms"] / times["ms"]}
    if compiled:
        ratios["compiled_ratio"] = times["ms"] / times["compiled_ms"]
    return {**times, **ratios}


def encoding(filters: int, batch: int, name: Precision, device: torch.device, repeats: int) -> Row:
    """The features of a batch, roots known; both networks are CUDA graphs on a GPU."""
    torch.manual_seed(0)
    config = paper_network(filters)
    ours, plain = CKN(config).to(device).eval(), plain_network(config, device).eval()
    images = random_samples(batch, device).images
    with torch.no_grad(), precision(name, device):
        encode = ours.prepared()
        works: dict[str, Callable[[], object]] = {"ms": lambda: encode(images), "plain_ms": lambda: plain.encode(images)}
        if device.type == "cuda":
            works = {each: recorded(work) for each, work in works.items()}
        times = in_turns(works, device, repeats, first=3 if device.type == "cuda" else 1)
    return {**times, "ratio": times["ms"] / times["plain_ms"]}


def roots(filters: int, device: torch.device, repeats: int) -> dict[InverseRoot, Row]:
    """The p x p part alone, for all nine layers: kernel matrices, roots, and gradients back to the filters, by each method."""
    torch.manual_seed(0)
    weights = torch.randn(filters, filters, device=device)

    def forward_and_back(network: CKN) -> None:
        total = torch.stack([(root * weights).sum() for root in network.inverse_roots()]).sum()
        torch.autograd.grad(total, list(network.parameters()))

    networks = {method: CKN(paper_network(filters, method)).to(device).train() for method in METHODS}
    times = in_turns({method: partial(forward_and_back, network) for method, network in networks.items()}, device, repeats)
    return {method: {"ms": times[method], "to_eigh": times[method] / times["eigh"]} for method in METHODS}


def epoch_recipe(name: Precision, batch: int, epochs: int) -> Recipe:
    """That of the experiment, with all epochs alike: at one small learning rate, with all samples."""
    assert PAPER.recipe is not None
    rates: Row = {"learning_rate": 1e-3, "alpha_learning_rate": 1e-4, "schedule": "constant", "warmup": 0.0}
    return replace(PAPER.recipe, batch_size=batch, precision=name, epochs=epochs, active_set=False, **rates)


def plain_epoch(filters: int, batch: int, samples: Samples) -> Callable[[], None]:
    """The plain network's steps with all samples in random order; the last batch is filled up."""
    index = torch.arange(batch, device=samples.images.device)
    step = plain_step(filters, batch, samples, index)

    def work() -> None:
        for part in torch.randperm(len(samples.images), device=index.device).split(batch):
            index[: len(part)] = part
            step()

    return work


def epoch(filters: int, name: Precision, device: torch.device, images: int) -> Row:
    """An epoch of `train_supervised` with the recipe and the dropout of the experiment, filters and W together: medians of the
    last three of four. Images are noise, with random labels, and filters start at random: what the solver does for W on real
    images is another number of iterations. Beside it the plain network's steps with as many batches."""
    torch.manual_seed(0)
    assert PAPER.recipe is not None
    batch = min(PAPER.recipe.batch_size, images)
    samples = random_samples(images, device)
    network = CKN(paper_network(filters, dropout=True)).to(device)
    recipe = epoch_recipe(name, batch, epochs=4)
    trained = train_supervised(
        network, samples.images, samples.targets, regularization=1 / images, recipe=recipe, progress=False
    )
    last = trained.history[-3:]
    parts = {f"{each}_ms": 1e3 * statistics.median(r["seconds"][each] for r in last) for each in ("filters", "weights")}
    with precision(name, device):
        plain_ms = in_turns({"plain_ms": plain_epoch(filters, batch, samples)}, device, 3)["plain_ms"]
    ms = sum(parts.values())
    iterations = statistics.median(r["solver_iterations"] for r in last)
    return {"ms": ms, **parts, "plain_ms": plain_ms, "ratio": ms / plain_ms, "images": images, "solver_iterations": iterations}


def main(
    only: tuple[Part, ...] = ("step", "encoding", "roots", "epoch"),
    filters: tuple[int, ...] | None = None,
    batches: tuple[int, ...] | None = None,
    precisions: tuple[Precision, ...] | None = None,
    images: int | None = None,
    repeats: int | None = None,
    compiled: bool = False,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Measure, write rows of results/speed.json, print a table."""
    report = Report(__file__, device, results)
    place = report.device
    sizes = SIZES["tiny" if tiny else place.type]
    repeats, images = repeats or sizes.repeats, images or sizes.images
    for p in filters or sizes.filters:
        for name in precisions or sizes.precisions:
            for batch in batches or sizes.batches:
                settings = {"filters": p, "batch": batch, "precision": NAMES[name]}
                if "step" in only:
                    report.add("step", settings, steps(p, batch, name, place, repeats, compiled))
                if "encoding" in only:
                    report.add("encoding", settings, encoding(p, batch, name, place, repeats))
            if "epoch" in only:
                report.add("epoch", {"filters": p, "precision": NAMES[name]}, epoch(p, name, place, images))
        if "roots" in only:
            for method, row in roots(p, place, repeats).items():
                report.add("roots", {"filters": p, "method": method}, row)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
