"""PSNR and SSIM of trained upscalers on Set5, Set14 and Kodak, added to their results, where `sckn tables` finds them.

    python experiments/score_superres.py runs/superres-x2 runs/superres-x3 --data FOLDER

FOLDER holds the three sets. A model is the run folder of a training, whose result sckn train has written, and which keeps the
figures for its report, too; or a file or the name of a model that ships, such as superres-x2, which are measured as they are
and go by the result of their name.
"""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import tyro

from sckn.checkpoint import load_upscaler
from sckn.results import add_to_result, code_version, machine, read_result
from sckn.superres.scores import SCORES, score_upscaler
from sckn.training.run_files import CONFIG, model_file, read_json, write_json


def score(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")],
    data: Path,
    results: Path = Path("results"),
    device: str = "cpu",
) -> None:
    """Measure models, and add the figures to their results.

    Args:
        models: Run folders, files, or names.
        data: Folder with Set5, Set14 and Kodak.
        results: Folder with the results of the trainings.
        device: Where to compute.
    """
    for model in models:
        started = perf_counter()
        name = _checked_name(model, results)
        figures = score_upscaler(load_upscaler(model_file(model), torch.device(device)), data)
        if Path(model).is_dir():
            write_json(Path(model) / SCORES, figures)
        told = f"runs/{name}" if Path(model).is_dir() else name  # where sckn train puts it
        scored = {
            "code_version": code_version(),
            "machine": machine(),
            "seconds": round(perf_counter() - started, 2),
            "command": f"python experiments/score_superres.py {told} --data FOLDER --device {device}",
        }
        path = add_to_result(results / f"{name}.json", {**figures, "scored": scored})
        print(f"{path}: PSNR {figures['psnr']}, SSIM {figures['ssim']}")


def _checked_name(model: str, results: Path) -> str:
    """Of the result; that of a run folder must be of the same settings."""
    settings = Path(model) / CONFIG
    name = read_json(settings)["name"] if settings.is_file() else Path(model).name.removesuffix(".safetensors")
    result = read_result(results / f"{name}.json")  # before the work, not after it
    if settings.is_file() and result.get("config") != read_json(settings):
        raise SystemExit(f"{results / name}.json is of other settings than {model}; write it with sckn train --resume")
    return name


if __name__ == "__main__":
    tyro.cli(score)
