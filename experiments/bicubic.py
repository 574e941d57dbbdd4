"""The bicubic figures of the paper's tables on super-resolution, which show that images are measured as there.

python experiments/bicubic.py --data FOLDER       # FOLDER holds Set5, Set14 and Kodak
"""

from pathlib import Path
from time import perf_counter

import tyro

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


def main(data: Path, results: Path = Path("results")) -> None:
    """PSNR and SSIM of bicubic interpolation on Set5, Set14 and Kodak, beside those that the paper prints.

    Args:
        data: Folder with the three sets.
        results: Folder of the JSON file.
    """
    started = perf_counter()
    sets = []
    print("factor  set      PSNR  printed     SSIM  printed")
    for (scale, name), (psnr, ssim) in PRINTED.items():
        measured = evaluate_upscaling(data / name, scale).bicubic
        equal = (round(measured.psnr, 2), round(measured.ssim, 4)) == (psnr, ssim)
        print(f"x{scale}      {name:5} {measured.psnr:7.2f} {psnr:8.2f}  {measured.ssim:7.4f} {ssim:8.4f}")
        sets.append({"scale": scale, "set": name, **measured.to_dict(), "as_printed": equal})
    path = write_result(
        results,
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
    tyro.cli(main)
