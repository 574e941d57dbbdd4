"""`sckn train`: a classifier with labels or without, or an upscaler, as the experiment says."""

import statistics
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import tyro

from sckn.commands.endings import resumable
from sckn.commands.options import Device, Flag, MaybePath, chosen_device
from sckn.files import check_folder, remove_leftovers
from sckn.freed_memory import keep_freed_memory
from sckn.processes import Processes, joined_processes, own_device
from sckn.results import write_result
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.superres.training import run_upscaling
from sckn.training.experiment import Experiment, SeedReport
from sckn.training.run_files import MODEL, code_versions, machines
from sckn.training.with_labels import run_with_labels
from sckn.training.without_labels import run_without_labels

__all__ = ["train"]


def train(
    experiment: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT.toml")],
    data: Path,
    run: MaybePath = None,
    resume: Flag = False,
    validation_only: Flag = False,
    tensorboard: Flag = False,
    results: Path = Path("results"),
    device: Device = "auto",
) -> None:
    """Run an experiment and write its result.

    Example: sckn train experiments/cifar10-unsup-64-256.toml --data cifar10

    Several GPUs: torchrun --nproc-per-node 8 -m -- sckn train ... (with the --)

    Args:
        experiment: TOML file.
        data: Folder or archive of the data set.
        run: Folder for the run; else runs/NAME.
        resume: Go on where the run was interrupted.
        validation_only: Neither look at the test set nor write a result.
        tensorboard: Write TensorBoard events, too.
        results: Folder for the result file.
        device: auto takes a GPU if there is one.
    """
    started = perf_counter()
    settings = (UpscalingExperiment if is_upscaling_experiment(experiment) else Experiment).from_toml(experiment)
    place = chosen_device(device)
    if place.type == "cpu":
        keep_freed_memory()
    if not validation_only:
        check_folder(results, "--results")
    write = partial(_write_result, results, settings, command=f"sckn train {experiment} --data DIR --device {device}")
    folder = Path("runs") / settings.name if run is None else run
    if isinstance(settings, UpscalingExperiment):
        if validation_only:
            raise ValueError("photographs held out alone judge the training of an upscaler; leave out --validation-only")
        with resumable(folder), joined_processes(place) as processes:
            if processes.count > 1:
                raise ValueError(f"{experiment} trains an upscaler, in one process; start it without torchrun")
            _train_upscaler(settings, data, place, folder, write, resume=resume, tensorboard=tensorboard)
    elif settings.recipe is None:
        with joined_processes(place) as processes:
            if processes.count > 1 or run is not None or resume or tensorboard:
                raise ValueError(
                    f"{experiment} trains without labels, in one process and without a run folder; "
                    "leave out --run, --resume and --tensorboard"
                )
            _train_without_labels(settings, data, place, started, write, test=not validation_only)
    else:
        with resumable(folder), joined_processes(place) as processes:
            options = {"resume": resume, "tensorboard": tensorboard, "test": not validation_only}
            _train_with_labels(settings, data, place, folder, write, processes, **options)


def _train_upscaler(
    experiment: UpscalingExperiment,
    data: Path,
    device: torch.device,
    run: Path,
    write: Callable[..., Path],
    *,
    resume: bool,
    tensorboard: bool,
) -> None:
    """Figures of the result are those of photographs held out; test sets are for `score_upscaler`."""
    say = partial(print, flush=True)
    say(f"{experiment.name}: reading {data} ...")
    report = run_upscaling(experiment, data, device, run, resume=resume, tensorboard=tensorboard, say=say)
    seconds = sum(sum(record["seconds"].values()) for record in (*report.earlier, *report.history))
    path = write(figures=report.figures(), seeds=[experiment.seed], seconds=seconds, **_origin(run))
    ours, plain = report.validation, report.bicubic
    if ours is not None and plain is not None:
        print(f"held out: PSNR {ours.psnr:.2f} (bicubic {plain.psnr:.2f}), SSIM {ours.ssim:.4f} (bicubic {plain.ssim:.4f})")
    print(f"written to {path}; the model is {run / MODEL}")


def _train_without_labels(
    experiment: Experiment, data: Path, device: torch.device, started: float, write: Callable[..., Path], *, test: bool
) -> None:
    _say_what_begins(experiment, data, partial(print, flush=True))
    reports = run_without_labels(experiment, data, device, test=test)
    _finish_classifier(reports, perf_counter() - started, write, test=test)


def _train_with_labels(
    experiment: Experiment,
    data: Path,
    device: torch.device,
    run: Path,
    write: Callable[..., Path],
    processes: Processes,
    *,
    resume: bool,
    tensorboard: bool,
    test: bool,
) -> None:
    say = partial(print, flush=True) if processes.first else _say_nothing
    _say_what_begins(experiment, data, say)
    reports = run_with_labels(
        experiment,
        data,
        own_device(device),
        run,
        resume=resume,
        test=test,
        tensorboard=tensorboard,
        processes=processes,
        say=say,
    )
    if processes.first:
        seconds = sum(sum(report.seconds.values()) for report in reports)
        _finish_classifier(reports, seconds, partial(write, **_origin(run)), test=test)


def _say_what_begins(experiment: Experiment, data: Path, say: Callable[[str], None]) -> None:
    say(f"{experiment.name}: reading {data}, preparing the images, then {len(experiment.seeds)} run(s) ...")


def _write_result(results: Path, settings: Experiment | UpscalingExperiment, **content: Any) -> Path:
    if results.is_dir():
        remove_leftovers(results / f"{settings.name}.json")
    return write_result(results, name=settings.name, dataset=settings.dataset, config=settings.to_dict(), **content)


def _origin(run: Path) -> dict[str, Any]:
    """By which code and on which machine a run was made, from all its processes."""
    return {"measured_by": "; ".join(code_versions(run)), "measured_on": machines(run)}


def _finish_classifier(reports: list[SeedReport], seconds: float, write: Callable[..., Path], *, test: bool) -> None:
    _print_seeds(reports)
    if not test:
        print("the test set was not looked at, and no result was written")
        return
    errors = [report.test_error for report in reports if report.test_error is not None]
    mean, deviation = statistics.mean(errors), statistics.stdev(errors) if len(errors) > 1 else None
    path = write(
        figures={
            "test_error": round(mean, 3),
            "deviation": None if deviation is None else round(deviation, 3),
            "runs": [asdict(report) for report in reports],
        },
        seeds=[report.seed for report in reports],
        seconds=seconds,
    )
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    print(f"mean {mean:10.2f} %{spread}   written to {path}")


def _print_seeds(reports: list[SeedReport]) -> None:
    print("seed   test error   training   validation   lambda   epochs")
    for report in reports:
        print(f"{report.seed:4d} {_percent(report.test_error, 10)} {_percent(report.train_error, 8)} ", end="")
        best, epochs = report.lambda_exponent, "" if report.epochs is None else report.epochs
        print(f"{_percent(report.validation_errors.get(best), 10)}   2^{best}/n {epochs:>6}")


def _percent(value: float | None, width: int) -> str:
    return f"{'-':>{width}}  " if value is None else f"{value:{width}.2f} %"


def _say_nothing(*_: object, **__: object) -> None:
    """In all processes but the first."""
