"""Making a photograph larger: seconds for a megapixel of the result and peak memory, beside bicubic interpolation.

python benchmarks/upscaling.py [--experiment experiments/superres-x2-fast.toml] [--megapixels 24]

The weights are random: they change neither time nor memory.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch

from sckn import CKN, KernelModel, Upscaler
from sckn.results import write_result
from sckn.superres.experiment import UpscalingExperiment
from sckn.superres.imresize import imresize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/superres-x2-fast.toml"))
    parser.add_argument("--megapixels", type=float, default=24)
    parser.add_argument("--memory-gib", type=float, default=0.5)
    parser.add_argument("--results", type=Path, default=Path("results"))
    settings = parser.parse_args()
    experiment = UpscalingExperiment.from_toml(settings.experiment)
    network = CKN(experiment.network)
    weights = torch.randn(experiment.network.layers[-1].filters, experiment.upscaler.outputs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    upscaler = Upscaler(KernelModel(network, weights, per_pixel=True), experiment.upscaler).to(device)
    pixels = settings.megapixels * 1e6 / experiment.scale**2
    height, width = round((pixels * 2 / 3) ** 0.5), round((pixels * 3 / 2) ** 0.5)
    photo = np.random.RandomState(0).randint(0, 256, (height, width, 3)).astype(np.uint8)
    upscaler.upscale(photo[:64, :64])  # the first call loads libraries
    started = time.perf_counter()
    result = upscaler.upscale(photo, memory_gib=settings.memory_gib)
    seconds = time.perf_counter() - started
    megapixels = result.shape[0] * result.shape[1] / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB on Linux
    started = time.perf_counter()
    imresize(torch.from_numpy(photo[..., 0]).float(), experiment.scale)
    bicubic = time.perf_counter() - started
    figures = {
        "megapixels": round(megapixels, 2),
        "seconds_per_megapixel": round(seconds / megapixels, 3),
        "bicubic_luminance_seconds_per_megapixel": round(bicubic / megapixels, 3),
        "peak_process_gib": round(peak, 3),
        "threads": torch.get_num_threads(),
    }
    path = write_result(
        settings.results,
        name=f"upscaling-{experiment.name}",
        dataset="synthetic",
        figures=figures,
        config={"experiment": experiment.name, "megapixels": settings.megapixels, "memory_gib": settings.memory_gib},
        seeds=[0],
        seconds=seconds,
        command=f"python benchmarks/upscaling.py --experiment {settings.experiment} --megapixels {settings.megapixels:g}",
    )
    for name, value in figures.items():
        print(f"{name:42} {value}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
