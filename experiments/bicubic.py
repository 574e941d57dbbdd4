"""The bicubic figures of the paper's tables on super-resolution, which show that images are measured as there.

python experiments/bicubic.py --data FOLDER       # FOLDER holds Set5, Set14 and Kodak
"""

import argparse
from pathlib import Path
from time import perf_counter

from sckn.results import write_result
from sckn.superres.evaluation import evaluate_upscaling

# PSNR and SSIM as printed, for each factor and set.
PRINTED = {
    (2, "Set5"): (33.66, 0.9299),
    (2, "Set14"): (30.23, 0.8689),
    (2, "Kodak"): (30.84, 0.8684),
    (3, "Set5"): (30.39, 0.8677),
    (3, "Set14"): (27.54, 0.7741),
    (3, "Kodak"): (28.43, 0.7768),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("results"))
    settings = parser.parse_args()
    started = perf_counter()
    sets = []
    print("factor  set      PSNR  printed     SSIM  printed")
    for (scale, name), (psnr, ssim) in PRINTED.items():
        measured = evaluate_upscaling(settings.data / name, scale).bicubic
        equal = (round(measured.psnr, 2), round(measured.ssim, 4)) == (psnr, ssim)
        print(f"x{scale}      {name:5} {measured.psnr:7.2f} {psnr:8.2f}  {measured.ssim:7.4f} {ssim:8.4f}")
        sets.append({"scale": scale, "set": name, **measured.to_dict(), "as_printed": equal})
    path = write_result(
        settings.results,
        name="superres-bicubic",
        dataset="Set5, Set14, Kodak",
        figures={"sets": sets},
        config={},
        seeds=[],
        seconds=perf_counter() - started,
        command="python experiments/bicubic.py --data FOLDER",
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
