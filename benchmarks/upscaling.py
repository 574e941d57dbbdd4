"""Making a photograph larger: the paper's network and those of the models, each beside a plain network of the same sizes.

    python benchmarks/upscaling.py [--only superres-x2-fast]

The plain network (convolution, ReLU, 1 x 1 convolution) sees as many pixels as ours does in one tile; ours also interpolates.
Memory is the peak of `sckn upscale` in a process of its own. The weights are random: they change neither time nor memory.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import tyro
from costs import multiply_adds_per_output_pixel
from measuring import DEVICE, RESULTS, Report, in_turns
from networks import EXPERIMENTS, PlainNetwork
from peak import peak_of_process
from PIL import Image

from sckn import CKN, KernelModel, Upscaler, save
from sckn.patches import channels_last
from sckn.superres import detail
from sckn.superres.experiment import UpscalingExperiment

Name = Literal["superres-x2-paper", "superres-x2", "superres-x2-fast"]


@dataclass(frozen=True)
class Size:
    """Side of the small image whose time is taken, and megapixels of the result whose memory is."""

    side: int
    megapixels: float


SIZES: dict[Name, Size] = {
    "superres-x2-paper": Size(96, 1),
    "superres-x2": Size(128, 4),
    "superres-x2-fast": Size(256, 24),
}
TINY = Size(24, 0.002)


def random_upscaler(experiment: UpscalingExperiment) -> Upscaler:
    torch.manual_seed(0)
    weights = torch.randn(experiment.network.layers[-1].filters, experiment.upscaler.outputs)
    return Upscaler(KernelModel(CKN(experiment.network), weights, per_pixel=True), experiment.upscaler).eval()


def times_of(experiment: UpscalingExperiment, side: int, device: torch.device, repeats: int) -> dict[str, float]:
    upscaler = random_upscaler(experiment).to(device)
    y = 255 * torch.rand(side, side, generator=torch.Generator().manual_seed(0)).to(device)
    # what the network sees of a tile: with what it needs around it, less the border of the local mean
    seen_side = experiment.upscaler.grid * (side + 2 * upscaler.context) - 2 * detail.MARGIN
    seen = channels_last(torch.randn(1, 1, seen_side, seen_side, device=device))
    bare: Any = PlainNetwork(experiment.network, seen_side, experiment.upscaler.outputs, per_pixel=True).to(device)
    plain = bare.to(memory_format=torch.channels_last)
    works = {
        "ms": lambda: upscaler.upscale_luminance(y, tile=side),
        "plain_ms": lambda: plain(seen),
        "network_ms": lambda: upscaler.model(seen),
    }
    with torch.no_grad():
        times = in_turns(works, device, repeats)
    return {**times, "ratio": times["ms"] / times["plain_ms"], "network_ratio": times["network_ms"] / times["plain_ms"]}


def peak_gib(experiment: UpscalingExperiment, megapixels: float, device: torch.device) -> float:
    """Of a photograph in colours, from file to file."""
    pixels = megapixels * 1e6 / experiment.scale**2
    height, width = round((pixels * 2 / 3) ** 0.5), round((pixels * 3 / 2) ** 0.5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(random_upscaler(experiment), folder / "model.safetensors")
        noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "small.png")
        files = [str(folder / "small.png"), "-o", str(folder / "large.png")]
        options = ["--model", str(folder / "model.safetensors"), "--device", device.type]
        peak, _ = peak_of_process("-m", "sckn", "upscale", *files, *options)
        with Image.open(folder / "large.png") as large:
            if large.size != (experiment.scale * width, experiment.scale * height):
                raise RuntimeError(f"sckn upscale gave {large.size[0]} x {large.size[1]} pixels")
    return peak / 1024


def main(
    only: tuple[Name, ...] = get_args(Name),
    megapixels: float | None = None,
    repeats: int = 3,
    device: str = DEVICE,
    tiny: bool = False,
    results: Path | None = RESULTS,
) -> None:
    """Measure, write rows of results/speed.json, print a table. `megapixels` are those of the result whose memory is taken."""
    report = Report(__file__, device, results)
    for name in only:
        experiment = UpscalingExperiment.from_toml(EXPERIMENTS / f"{name}.toml")
        size = TINY if tiny else SIZES[name]
        enlarged = size.megapixels if megapixels is None else megapixels
        figures = {
            "multiply_adds": round(multiply_adds_per_output_pixel(experiment)),
            **times_of(experiment, size.side, report.device, 1 if tiny else repeats),
            "peak_gib": peak_gib(experiment, enlarged, report.device),
        }
        report.add("upscaling", {"experiment": name, "side": size.side, "megapixels": enlarged}, figures)
    report.finish()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
