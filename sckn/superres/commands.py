"""What `sckn train` does for an experiment on super-resolution; what is to be printed is handed to `say`."""

from collections.abc import Callable
from pathlib import Path

import torch

from sckn.files import remove_leftovers
from sckn.results import write_result
from sckn.superres.experiment import UpscalingExperiment
from sckn.superres.training import run_upscaling
from sckn.training.runs import MODEL, code_versions

__all__ = ["train_upscaler"]


def train_upscaler(
    experiment: UpscalingExperiment,
    data: Path,
    run: Path,
    results: Path,
    device: torch.device,
    *,
    command: str,
    resume: bool = False,
    tensorboard: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Path:
    """Train and write the result: its figures are those of photographs held out, test sets are for `score_upscaler`."""
    say(f"{experiment.name}: reading {data} ...")
    report = run_upscaling(experiment, data, device, run, resume=resume, tensorboard=tensorboard, say=say)
    if results.is_dir():
        remove_leftovers(results / f"{experiment.name}.json")
    path = write_result(
        results,
        name=experiment.name,
        dataset=experiment.dataset,
        figures=report.figures(),
        config=experiment.to_dict(),
        seeds=[experiment.seed],
        seconds=sum(sum(record["seconds"].values()) for record in report.history),
        command=command,
        measured_by="; ".join(code_versions(run)),
    )
    ours, plain = report.validation, report.bicubic
    if ours is not None and plain is not None:
        say(f"held out: PSNR {ours.psnr:.2f} (bicubic {plain.psnr:.2f}), SSIM {ours.ssim:.4f} (bicubic {plain.ssim:.4f})")
    say(f"written to {path}; the model is {run / MODEL}")
    return path
