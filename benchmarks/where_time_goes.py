"""Where the time of an epoch goes: kernels of the GPU, or operators on a CPU, by what they are for.

    python benchmarks/where_time_goes.py [--filters 512 --precisions high]

Three programs: "before" is `train_supervised` as a straightforward program, with eigendecompositions, no kernels of our own
and no CUDA graph; "now" as it is; "plain" the plain network of `speed.py`. Images are noise.

Of three epochs the first warms up, the second is timed by the clock (filters, W, both), and the steps of the third are
profiled, without the solver for W. A group in which nothing happened is left out. Work is grouped by the names of what did it:
"before" pools by products of matrices and has most of norms and exponentials as elementwise kernels; on a CPU so does "now",
whose inverse roots are products of matrices there, too.
"""

import importlib
import json
import os
import pkgutil
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
import tyro
from measuring import DEVICE, NAMES, RESULTS, Report, in_turns
from networks import PAPER, paper_network, random_samples
from speed import epoch_recipe, plain_epoch
from torch.profiler import ProfilerActivity, profile

import sckn.fused
from sckn.network import CKN
from sckn.precision import Precision, precision
from sckn.training.batch_step import BatchStep
from sckn.training.filter_step import FilterStep
from sckn.training.samples import Samples
from sckn.training.supervised import train_supervised

__all__ = ["group_of_kernel", "group_of_operator", "kernels_in", "straightforward"]

Program = Literal["before", "now", "plain"]
Group = Literal["convolutions", "products", "pooling", "norms_exponentials", "p_x_p", "elementwise"]
Row = dict[str, Any]

# The first pattern that is found in a name tells the group; what none is found in is elementwise. Names that begin with _ are
# those of the Triton kernels in sckn/fused.
KERNELS: dict[Group, str] = {
    "p_x_p": r"^_(product|combine|join)$|syev|rotate|sytrd|ormtr|stedc|laed|larf|steqr",
    "pooling": r"^_pool$|adaptive_?average|adaptive_?avg",
    "norms_exponentials": r"^_(forward|backward|sum|times|step|unit|unit_backward)$|avg_?pool",  # of squares, over a patch
    "convolutions": r"dgrad|fprop|wgrad|implicit_?gemm|winograd|convolve",
    "products": r"gemm|gemv|nvjet|cutlass|splitk",
}
OPERATORS: dict[Group, str] = {
    "p_x_p": r"linalg_(?!vector_norm)|cholesky|triangular",
    "pooling": r"adaptive",
    "convolutions": r"conv(?!ert)",
    "products": r"mm(_|$)|matmul|linear$|einsum",
    "norms_exponentials": r"aten::(exp|log|sqrt|rsqrt)_?$|norm|exponential|avg_?pool",
}
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # what the profiler calls work of the GPU


@cache
def group_of_kernel(name: str) -> Group:
    """What a kernel of the GPU is for."""
    return _group(name, KERNELS)


def group_of_operator(name: str) -> Group:
    """What an operator on a CPU is for."""
    return _group(name, OPERATORS)


def _group(name: str, patterns: dict[Group, str]) -> Group:
    for group, pattern in patterns.items():
        if re.search(pattern, name, re.IGNORECASE):
            return group
    return "elementwise"


class Profile:
    """PyTorch's profiler, on for as long as `recording`, and what it saw."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._profiler = profile(activities=[ProfilerActivity.CUDA if self.on_gpu else ProfilerActivity.CPU])

    @contextmanager
    def recording(self) -> Iterator[None]:
        if self.on_gpu:
            torch.cuda.synchronize()
        with self._profiler:
            yield
            if self.on_gpu:
                torch.cuda.synchronize()

    def figures(self) -> Row:
        """Milliseconds of each group and of all, and the number of kernels, or of operators called on a CPU."""
        milliseconds: dict[Group, float] = dict.fromkeys(get_args(Group), 0.0)
        launches = 0
        for group, time, count in self._kernels() if self.on_gpu else self._operators():
            milliseconds[group] += time
            launches += count
        if not launches:
            raise RuntimeError("PyTorch's profiler saw no work; on a GPU it needs NVIDIA's CUPTI")
        groups = {f"{group}_ms": time for group, time in milliseconds.items() if time}
        return {**groups, "all_kernels_ms": sum(milliseconds.values()), "launches": launches}

    def _kernels(self) -> Iterator[tuple[Group, float, int]]:
        # PyTorch's own sums take minutes for the hundred thousands of kernels of an epoch
        with TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(trace))
            yield from kernels_in(trace)

    def _operators(self) -> Iterator[tuple[Group, float, int]]:
        for row in self._profiler.key_averages():
            yield group_of_operator(row.key), row.self_cpu_time_total / 1000, row.count


def wake_profiler(device: torch.device) -> None:
    """Before a CUDA graph is recorded: the library that the profiler asks does not always see, or survive, graphs older than
    its start, so it is kept from the first time on."""
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    with Profile(device).recording():
        torch.zeros(1, device=device)


def kernels_in(trace: Path) -> Iterator[tuple[Group, float, int]]:
    """Group, milliseconds and 1 for each kernel, copy and fill on the GPU in a trace of PyTorch's profiler."""
    text = trace.read_text(errors="replace")
    for event in json.loads(text, strict=False)["traceEvents"]:
        if event.get("cat") in ON_GPU:
            yield group_of_kernel(event["name"]), event["dur"] / 1000, 1


@contextmanager
def straightforward() -> Iterator[None]:
    """Without kernels of our own and without CUDA graphs."""
    with ExitStack() as changes:
        for found in pkgutil.iter_modules(sckn.fused.__path__, "sckn.fused."):
            module = importlib.import_module(found.name)
            if hasattr(module, "applies"):
                changes.enter_context(patch.object(module, "applies", lambda *_, **__: False))
        changes.enter_context(patch.object(BatchStep, "_recordable", lambda _: False))
        yield


def kernel_network(filters: int, samples: Samples, batch: int, name: Precision, before: bool) -> Row:
    """An epoch of `train_supervised`: by the clock, and where the time of its steps goes."""
    torch.manual_seed(0)
    images, epochs = samples.images, 3
    config = paper_network(filters, "eigh" if before else None, dropout=True)
    profiled, epoch = Profile(images.device), FilterStep.epoch

    def last_profiled(step: FilterStep, number: int, factor: float) -> float:
        if number + 1 < epochs:
            return epoch(step, number, factor)
        with profiled.recording():
            return epoch(step, number, factor)

    with patch.object(FilterStep, "epoch", last_profiled):
        trained = train_supervised(
            CKN(config).to(images.device),
            images,
            samples.targets,
            regularization=1 / len(images),
            recipe=epoch_recipe(name, batch, epochs),
            progress=False,
        )
    seconds = next(record["seconds"] for record in trained.history if record["epoch"] == epochs - 1)
    clock = {"filters_ms": 1e3 * seconds["filters"], "weights_ms": 1e3 * seconds["weights"]}
    return {**profiled.figures(), **clock, "ms": sum(clock.values())}


def plain_network(filters: int, samples: Samples, batch: int, name: Precision) -> Row:
    """The same of the plain network's steps."""
    device = samples.images.device
    profiled = Profile(device)
    with precision(name, device):
        work = plain_epoch(filters, batch, samples)
        ms = in_turns({"plain": work}, device, 1)["plain"]
        with profiled.recording():
            work()
    return {**profiled.figures(), "filters_ms": ms, "ms": ms}


def main(
    programs: tuple[Program, ...] = get_args(Program),
    filters: tuple[int, ...] = (),
    batch: int = 0,
    precisions: tuple[Precision, ...] = (),
    images: int = 0,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Profile, write rows of results/speed.json, print a table. Milliseconds are those of an epoch of `images`."""
    report = Report(__file__, device, results)
    place = report.device
    on_gpu = place.type == "cuda"
    assert PAPER.recipe is not None
    wake_profiler(place)
    images = images or (8 if tiny else 2048 if on_gpu else 128)
    batch = min(batch or (4 if tiny else PAPER.recipe.batch_size), images)
    samples = random_samples(images, place)
    for p in filters or ((8,) if tiny else (128, 512) if on_gpu else (128,)):
        for name in precisions or (("high", "medium") if on_gpu else ("highest",)):
            for program in programs:
                settings = {"program": program, "filters": p, "batch": batch, "precision": NAMES[name], "images": images}
                if program == "plain":
                    figures = plain_network(p, samples, batch, name)
                elif program == "now":
                    figures = kernel_network(p, samples, batch, name, before=False)
                else:
                    with straightforward():
                        figures = kernel_network(p, samples, batch, name, before=True)
                report.add("profile", settings, figures)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
