"""Local whitening of 60,000 images of the size of CIFAR-10: seconds, written to results/.

python benchmarks/whitening.py [--images 60000]
"""

import argparse
import time
from pathlib import Path

import torch

from sckn.images import local_whitening
from sckn.results import write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--results", type=Path, default=Path("results"))
    settings = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (settings.images, 3, 32, 32), generator=draws, dtype=torch.uint8)
    local_whitening(images[:256].to(device))  # the first call loads libraries
    started = time.perf_counter()
    whitened = local_whitening(images.to(device))
    checked = bool(torch.isfinite(whitened).all())  # waits for the device
    seconds = time.perf_counter() - started
    sample = local_whitening(images[:64])
    difference = float((whitened[:64].cpu() - sample).abs().max() / sample.abs().max())
    figures = {
        "whitening_seconds": round(seconds, 3),
        "images_per_second": round(settings.images / seconds),
        "finite": checked,
        "largest_difference_from_cpu": difference,
    }
    path = write_result(
        settings.results,
        name="whitening",
        dataset="synthetic",
        figures=figures,
        config={"images": settings.images},
        seeds=[0],
        seconds=seconds,
        command=f"python benchmarks/whitening.py --images {settings.images}",
    )
    for name, value in figures.items():
        print(f"{name:28} {value}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
