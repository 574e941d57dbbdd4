"""How time and memory of the paper's network grow with images, filters, layers and the side of the images.

    python benchmarks/growth.py [--only filters side]

Along each axis all sizes take turns. Memory is the peak of a process of its own for each, less that of one that only loads the
libraries and encodes one small image; on a GPU it is what was allocated there. Images come in batches, so that memory does not
grow with their number.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from measuring import DEVICE, RESULTS, Report, in_turns
from networks import paper_network
from peak import peak_of_process
from torch import Tensor

from sckn.network import CKN
from sckn.training.unsupervised import encoded_batches

Axis = Literal["images", "filters", "layers", "side"]
What = Literal["encoding", "step"]


@dataclass(frozen=True)
class Size:
    """What is encoded, or goes through one training step a batch."""

    images: int
    filters: int
    layers: int
    side: int
    batch: int


BASES = {"cuda": Size(4096, 128, 9, 32, 256), "cpu": Size(32, 32, 9, 32, 8), "tiny": Size(4, 4, 1, 8, 2)}
FACTORS: dict[Axis, tuple[int, ...]] = {"images": (1, 2, 4, 8), "filters": (1, 2, 4, 8), "side": (1, 2, 4, 8), "layers": ()}
LAYERS = (1, 3, 5, 7, 9)


def sizes(axis: Axis, base: Size, tiny: bool) -> list[Size]:
    """Along one axis, all else as in the base."""
    values = LAYERS if axis == "layers" else [factor * getattr(base, axis) for factor in FACTORS[axis]]
    return [replace(base, **{axis: value}) for value in (values[:1] if tiny else values)]


def batches(size: Size) -> Iterator[Tensor]:
    """Random images, made when they are asked for."""
    draws = torch.Generator().manual_seed(0)
    for start in range(0, size.images, size.batch):
        yield torch.randn(min(size.batch, size.images - start), 3, size.side, size.side, generator=draws)


def work(size: Size, what: What, network: CKN) -> None:
    """Encode the images, or find the gradients of their features."""
    if what == "encoding":
        for features in encoded_batches(network, batches(size), batch_size=size.batch):
            del features
        return
    parameters = list(network.train().parameters())
    for images in batches(size):
        torch.autograd.grad(network(images.to(parameters[0].device)).square().sum(), parameters)


def network_for(size: Size, device: torch.device) -> CKN:
    torch.manual_seed(0)
    return CKN(paper_network(size.filters, layers=size.layers)).to(device)


def measure_memory(description: str) -> None:
    """In a process of its own; prints what was allocated on a GPU."""
    given = json.loads(description)
    torch.set_num_threads(given["threads"])
    size, device = Size(**given["size"]), torch.device(given["device"])
    work(size, given["what"], network_for(size, device))
    print(torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0)


def memory(size: Size, what: What, device: torch.device) -> float:
    """Peak in MiB."""
    description = {"size": asdict(size), "what": what, "device": str(device), "threads": torch.get_num_threads()}
    peak, printed = peak_of_process(__file__, "--measure", json.dumps(description))
    return float(printed) if device.type == "cuda" else peak


def main(
    only: tuple[Axis, ...] = get_args(Axis),
    what: tuple[What, ...] = get_args(What),
    repeats: int = 3,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Measure, write rows of results/speed.json, print a table."""
    report = Report(__file__, device, results)
    place = report.device
    base = BASES["tiny" if tiny else place.type]
    nothing = 0.0 if place.type == "cuda" else memory(Size(1, 4, 1, 8, 1), "encoding", place)
    for axis in only:
        for each in what:
            if (axis, each) == ("images", "step"):  # as encoding: one batch after the other
                continue
            along = sizes(axis, base, tiny)
            networks = [network_for(size, place) for size in along]
            works = {
                str(n): partial(work, size, each, network)
                for n, (size, network) in enumerate(zip(along, networks, strict=True))
            }
            times = in_turns(works, place, 1 if tiny else repeats)
            for n, size in enumerate(along):
                figures = {
                    "ms": times[str(n)],
                    "to_first": times[str(n)] / times["0"],
                    "peak_mib": memory(size, each, place) - nothing,
                }
                report.add("growth", {"axis": axis, "what": each, **asdict(size)}, figures)
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure_memory(sys.argv[2])
    else:
        tyro.cli(main, description=__doc__)
