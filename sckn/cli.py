"""The command line: thin functions that call the library and print."""

import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

import torch
import tyro

import sckn
from sckn.demo import run_demo
from sckn.results import write_result
from sckn.training.experiment import Experiment, run_experiment

__all__ = ["main"]

Device = Literal["auto", "cpu", "cuda"]


def demo() -> None:
    """Train a small network on scikit-learn's digits without labels; about a minute. Example: sckn demo"""
    started = perf_counter()
    report = run_demo(print)
    print()
    print("test error           linear SVM on")
    print(f"  {report.pixels_error:5.2f} %            the pixels")
    print(f"  {report.network_error:5.2f} %            the features of the kernel network")
    print(f"\n{perf_counter() - started:.0f} seconds. Next: sckn train --help, or sckn.CKNClassifier in your own program")


def train(
    experiment: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT.toml")],
    data: Path,
    results: Path = Path("results"),
    device: Device = "auto",
) -> None:
    """Run an experiment and write its result.

    Example: sckn train experiments/cifar10-unsup-64-256.toml --data cifar10

    Args:
        experiment: TOML file.
        data: Folder with the data set as its site hands it out.
        results: Folder for the result, one JSON file.
        device: Where to compute; auto takes a GPU if there is one.
    """
    started = perf_counter()
    settings, place = Experiment.from_toml(experiment), _device(device)
    if results.exists() and not results.is_dir():  # before the work, not after it
        raise ValueError(f"{results} is not a folder; give a folder for the result with --results")
    print(f"{settings.name}: reading {data}, preparing the images, then {len(settings.seeds)} run(s) ...", flush=True)
    reports = run_experiment(settings, data, place)
    errors = [report.test_error for report in reports]
    deviation = statistics.stdev(errors) if len(errors) > 1 else None
    path = write_result(
        results,
        name=settings.name,
        dataset=settings.dataset,
        figures={
            "test_error": round(statistics.mean(errors), 3),
            "deviation": None if deviation is None else round(deviation, 3),
            "runs": [asdict(report) for report in reports],
        },
        config=settings.to_dict(),
        seeds=list(settings.seeds),
        seconds=perf_counter() - started,
        command=f"sckn train {experiment} --data DIR --device {device}",
    )
    print("seed   test error   training   validation   lambda")
    for report in reports:
        best = report.lambda_exponent
        errors_of_run = f"{report.test_error:10.2f} % {report.train_error:8.2f} % {report.validation_errors[best]:10.2f} %"
        print(f"{report.seed:4d} {errors_of_run}   2^{best}/n")
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    print(f"mean {statistics.mean(errors):10.2f} %{spread}   written to {path}")


def _device(name: Device) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def main() -> None:
    """Entry point: what goes wrong is told in one sentence."""
    if sys.argv[1:] == ["--version"]:
        print(f"sckn {sckn.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"demo": demo, "train": train},
            prog="sckn",
            description="Supervised convolutional kernel networks. Example: sckn demo",
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except torch.OutOfMemoryError:
        _fail("the GPU's memory does not suffice; set a smaller batch_size or fewer filters")
    except (ValueError, OSError) as error:
        _fail(error.strerror if isinstance(error, OSError) and error.strerror else str(error))


def _fail(sentence: str) -> None:
    print(f"sckn: {sentence}", file=sys.stderr)
    sys.exit(1)
