"""The command line: thin functions that call the library and print."""

import json
import signal
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, Union

import torch
import tyro
from tqdm import tqdm

import sckn
from sckn.checkpoint import CheckpointError, as_classifier, load, load_classifier, load_upscaler
from sckn.classification import STANDARD_INPUT, classify_files
from sckn.confusion import draw_confusion, evaluation_text
from sckn.data.catalog import OFFICIAL, DatasetName, Inventory, megabytes, take_inventory
from sckn.data.download import download as fetch
from sckn.data.folder import printable
from sckn.demo import run_demo
from sckn.evaluation import evaluate as evaluated
from sckn.files import remove_leftovers
from sckn.processes import joined_processes, own_device
from sckn.results import write_result
from sckn.settings import real_number
from sckn.shipped import SHIPPED, find_shipped, upscaler_name
from sckn.superres.commands import train_upscaler
from sckn.superres.evaluation import evaluate_upscaling
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.superres.upscale_files import plan, upscale_files
from sckn.superres.upscaler import Upscaler
from sckn.tables import TABLES, TableFormat, render_table
from sckn.training.experiment import Experiment, read_dataset
from sckn.training.report import write_report
from sckn.training.runs import code_versions, find_model, read_json
from sckn.training.with_labels import run_with_labels
from sckn.training.without_labels import run_without_labels
from sckn.web.command import serve

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
    run: Path | None = None,
    resume: bool = False,
    validation_only: bool = False,
    tensorboard: bool = False,
    results: Path = Path("results"),
    device: Device = "auto",
) -> None:
    """Run an experiment and write its result.

    Example: sckn train experiments/cifar10-unsup-64-256.toml --data cifar10

    Several GPUs, with labels: torchrun --nproc-per-node 8 -m -- sckn train ... (with the --)

    Args:
        experiment: TOML file.
        data: Folder or archive of the data set as its site hands it out.
        run: Folder for checkpoints, metrics and curves of a training with labels; runs/NAME by default.
        resume: Go on with the run in that folder where it was interrupted.
        validation_only: Choose on validation, but neither train on all images nor look at the test set.
        tensorboard: Write TensorBoard events into the run folder, too.
        results: Folder for the result, one JSON file.
        device: Where to compute; auto takes a GPU if there is one.
    """
    started = perf_counter()
    if is_upscaling_experiment(experiment):
        if validation_only:
            raise ValueError("photographs held out alone judge the training of an upscaler; leave out --validation-only")
        _train_upscaler(experiment, data, run, resume, tensorboard, results, device)
        return
    settings, place = Experiment.from_toml(experiment), _device(device)
    recipe = settings.recipe
    _check_results(results)
    folder = Path("runs") / settings.name if run is None else run
    with _resumable(folder if settings.recipe else None), joined_processes(place) as processes:
        say = partial(print, flush=True) if processes.first else _say_nothing
        if settings.recipe is None and (processes.count > 1 or run is not None or resume or tensorboard):
            raise ValueError(
                f"{experiment} trains without labels, in one process and without a run folder; "
                "leave out --run, --resume and --tensorboard"
            )
        say(f"{settings.name}: reading {data}, preparing the images, then {len(settings.seeds)} run(s) ...")
        if settings.recipe is None:
            reports = run_without_labels(settings, data, place, test=not validation_only)
        else:
            reports = run_with_labels(
                settings,
                data,
                own_device(place),
                folder,
                resume=resume,
                test=not validation_only,
                tensorboard=tensorboard,
                processes=processes,
                say=say,
            )
        if not processes.first:
            return
    print("seed   test error   training   validation   lambda   epochs")
    for report in reports:
        print(f"{report.seed:4d} {_percent(report.test_error, 10)} {_percent(report.train_error, 8)} ", end="")
        best, epochs = report.lambda_exponent, "" if report.epochs is None else report.epochs
        print(f"{_percent(report.validation_errors.get(best), 10)}   2^{best}/n {epochs:>6}")
    if validation_only:
        print("the test set was not looked at, and no result was written")
        return
    errors = [report.test_error for report in reports if report.test_error is not None]
    deviation = statistics.stdev(errors) if len(errors) > 1 else None
    if results.is_dir():
        remove_leftovers(results / f"{settings.name}.json")
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
        seconds=perf_counter() - started if recipe is None else sum(sum(report.seconds.values()) for report in reports),
        command=f"sckn train {experiment} --data DIR --device {device}",
        measured_by=None if recipe is None else "; ".join(code_versions(folder)),
    )
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    print(f"mean {statistics.mean(errors):10.2f} %{spread}   written to {path}")


def _train_upscaler(
    experiment: Path, data: Path, run: Path | None, resume: bool, tensorboard: bool, results: Path, device: Device
) -> None:
    settings, place = UpscalingExperiment.from_toml(experiment), _device(device)
    _check_results(results)
    folder = Path("runs") / settings.name if run is None else run
    with _resumable(folder), joined_processes(place) as processes:
        if processes.count > 1:
            raise ValueError(f"{experiment} trains an upscaler, in one process; start it without torchrun")
        train_upscaler(
            settings,
            data,
            folder,
            results,
            place,
            command=f"sckn train {experiment} --data DIR --device {device}",
            resume=resume,
            tensorboard=tensorboard,
            say=partial(print, flush=True),
        )


def _check_results(folder: Path) -> None:
    """Before the work, not after it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give a folder for the result with --results")


def data(
    name: Annotated[DatasetName | None, tyro.conf.Positional] = None,
    *,
    data: Path,
    download: bool = False,
    extra: bool = False,
) -> None:
    """Tell which data sets a folder holds, what is missing, and where to get it.

    Example: sckn data cifar10 --data DIR --download

    Args:
        name: Data set; without it all official ones. "folder" is any folder with one sub-folder a class.
        data: Folder to look into, as for sckn train.
        download: Fetch what is missing from the official site into that folder.
        extra: With --download, fetch the extra images of SVHN, too.
    """
    if download and name in (None, "folder"):
        raise ValueError("say which data set to download: sckn data cifar10, cifar100 or svhn, with --download")
    if extra and not (download and name == "svhn"):
        raise ValueError("--extra goes with sckn data svhn --download; leave it out")
    for each in OFFICIAL if name is None else (name,):
        inventory = take_inventory(each, data)
        if download:
            for file in (*inventory.downloads, *(inventory.optional if extra else ())):
                fetch(file, data)
            inventory = take_inventory(each, data)
        _print_inventory(each, inventory, data)
    if name is None:
        print("folder: any folder with one sub-folder a class; sckn data folder --data DIR looks into one")


def evaluate(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Path,
    dataset: DatasetName | None = None,
    scale: int | None = None,
    json: bool = False,
    picture: Path | None = None,
    batch_size: int | None = None,
    device: Device = "auto",
) -> None:
    """Test a trained model: a classifier's errors and what it confuses, or an upscaler's PSNR and SSIM.

    Example: sckn evaluate runs/cifar10-128 --data DIR

    Args:
        model: File, run folder (its first seed), or name of a model of sckn.
        data: Data set (its test part is used), or for an upscaler a folder of photos.
        dataset: Data set, if not that of the training; classes match by name.
        scale: Factor for an upscaler, if not its own.
        json: Print JSON.
        picture: Draw the confusion matrix into this PNG file, too.
        batch_size: Images at a time for a classifier; 256 by default.
        device: Where to compute; auto takes a GPU if there is one.
    """
    if picture is not None and picture.suffix.lower() != ".png":
        raise ValueError(f"{picture} must be a PNG file; give a name that ends in .png")
    loaded = load(_model_file(model), _device(device))
    if isinstance(loaded, Upscaler):
        _refuse(f"{model} is an upscaler and knows no classes", dataset=dataset, picture=picture, batch_size=batch_size)
        _evaluate_upscaler(loaded, model, data, scale, json)
        return
    classifier = as_classifier(loaded, model)
    _refuse(f"{model} is a classifier and makes nothing larger", scale=scale)
    name = dataset or classifier.experiment.get("dataset")
    if name is None:
        raise ValueError(f"{model} does not tell which data set it was trained on; say with --dataset which to test it on")
    settings = {**classifier.experiment, "image_size": classifier.image_size, "extra": False}  # the test set has no extra part
    _, test = read_dataset(name, data, settings)
    evaluation = evaluated(classifier, test, 256 if batch_size is None else batch_size, progress=True)
    title = classifier.name or model
    if json:
        _print_json({"model": model, "name": classifier.name, "dataset": name, **evaluation.to_dict()})
    else:
        print(f"{title} on {name}")
        print(evaluation_text(evaluation))
    if picture is not None:  # last: without matplotlib the figures are there all the same
        draw_confusion(evaluation, picture, title)


def _evaluate_upscaler(upscaler: Upscaler, model: str, folder: Path, scale: int | None, json: bool) -> None:
    factor = upscaler.scale if scale is None else scale
    evaluation = evaluate_upscaling(folder, factor, partial(upscaler.upscale_luminance, factor=factor))
    if json:
        _print_json({"model": model, **evaluation.to_dict()})
    else:
        print(f"{model} at x{factor} on {folder}")
        print(evaluation.table())


def _refuse(reason: str, **options: object) -> None:
    """Options that were given and do not belong to what is done."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{reason}; leave out {' and '.join(given)}")


def classify(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...")],
    top: int = 3,
    json: bool = False,
    device: Device = "auto",
) -> None:
    """Tell the best classes of images, with their scores.

    Example: sckn classify cifar10 photo.jpg

    Args:
        model: File, run folder (its first seed), or name of a model that comes with sckn.
        images: Image files, folders with such, or - for an image on standard input.
        top: How many classes to tell for each.
        json: Print JSON.
        device: Where to compute; auto takes a GPU if there is one.
    """
    if not images:
        raise ValueError("there are no images to classify; give files, folders, or - for standard input")
    if images.count(STANDARD_INPUT) > 1:
        raise ValueError("there is one image on standard input; give - once")
    classifier = load_classifier(_model_file(model), _device(device))
    answers, count, problems = [], 0, 0
    for answer in classify_files(classifier, images, sys.stdin.buffer, top=top):
        count += 1
        if json:
            answers.append(answer.to_dict())
        elif answer.problem is None:
            print(f"{printable(answer.image)}: {', '.join(f'{printable(name)} {score:.2f}' for name, score in answer.best)}")
        if answer.problem is not None:
            problems += 1
            print(f"sckn: {printable(answer.image)} cannot be read: {answer.problem}", file=sys.stderr)
    if json:
        _print_json({"model": model, "name": classifier.name, "images": answers})
    if problems:
        sys.stdout.flush()  # what was found comes before what was not
        _fail(f"{problems} of {count} images cannot be read")


def upscale(
    photos: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PHOTO...")],
    output: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="OUT")],
    scale: float | None = None,
    model: str | None = None,
    fast: bool = False,
    tile: int | None = None,
    memory: float = 0.5,
    device: Device = "auto",
) -> None:
    """Make photographs larger.

    Example: sckn upscale photo.jpg -o large.png --scale 3

    Args:
        photos: Image files, folders with such, or patterns like "*.jpg".
        output: File for a single photo, or folder.
        scale: Any number above 1; by default that of the model, or 2.
        model: File, run folder, or name, if not the one for the scale.
        fast: Take the fast model for the scale.
        tile: Most pixels along a side of what is done at a time.
        memory: GiB that work on one tile may take.
        device: Where to compute; auto takes a GPU if there is one.
    """
    if fast and model is not None:
        raise ValueError("--fast chooses among the models of sckn; give it or --model, not both")
    jobs = plan(photos, output)
    factor = None if scale is None else real_number("scale", scale, above=1)
    source = upscaler_name(factor or 2, fast=fast) if model is None else _model_file(model)
    upscaler = load_upscaler(source, _device(device))
    problems = 0
    for outcome in upscale_files(upscaler, jobs, factor, memory_gib=memory, tile=tile):
        for sentence in (*outcome.notes, *([outcome.problem] if outcome.problem else [])):
            tqdm.write(f"sckn: {printable(sentence)}", file=sys.stderr)
        problems += outcome.size is None
        if outcome.size is not None:
            tqdm.write(f"{printable(str(outcome.target))}: {outcome.size[0]} x {outcome.size[1]} pixels")
    if problems and len(jobs) > 1:
        sys.stdout.flush()  # what was made comes before what was not
        _fail(f"{problems} of {len(jobs)} photos could not be made larger")
    if problems:
        sys.exit(1)


def tables(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TABLE...")] = (),
    format: TableFormat = "text",  # noqa: A002  (the name of the option)
    results: Path = Path("results"),
) -> None:
    """Print the tables of the paper with our results beside them.

    Example: sckn tables --format markdown

    Args:
        names: Which tables of classification, superres-psnr, superres-ssim; all by default.
        format: As text, for Markdown, or for LaTeX with the package booktabs.
        results: Folder with the results; one that is not there is a dash.
    """
    known = {table.key: table for table in TABLES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no table {unknown[0]!r}; there is {', '.join(known)}")
    print("\n\n".join(render_table(known[name], results, format) for name in names or known))


def report(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    data: Path | None = None,
    device: Device = "auto",
) -> None:
    """Write the report of a training with labels, report.html in its run folder, anew.

    Example: sckn report runs/cifar10-128

    Args:
        run: Run folder of sckn train.
        data: Folder or archive of the data set, to find again the patches to which filters respond most.
        device: Where to compute; auto takes a GPU if there is one.
    """
    train = None
    if data is not None and (run / "config.json").is_file():
        config = read_json(run / "config.json")
        train, _ = read_dataset(config.get("dataset", ""), data, config)
    print(write_report(run, train, _device(device)))


def _model_file(source: str) -> str | Path:
    """Of a file, name, or run folder; a folder of a name that sckn knows may be one of data, and is passed over."""
    path = Path(source)
    if not path.is_dir() or source in SHIPPED or find_shipped(source):
        return source
    found = find_model(path)
    if found is None:
        raise CheckpointError(
            f"{source} holds no finished training; expected the run folder of a training with labels, "
            "which sckn train --resume brings to its end"
        )
    return found


def _print_json(content: object) -> None:
    print(json.dumps(content, allow_nan=False))


def _print_inventory(name: DatasetName, inventory: Inventory, folder: Path) -> None:
    print(f"{name}: {inventory.title}")
    for line in inventory.found:
        print(f"  found    {line}")
    for line in inventory.missing:
        print(f"  missing  {line}")
    for word, files in (("get", inventory.downloads), ("optional", inventory.optional)):
        for file in files:
            print(f"  {word:8} {file.address}  {megabytes(file.size)}")
    if inventory.downloads:
        print(f"           or: sckn data {name} --data {folder} --download")


def _percent(value: float | None, width: int) -> str:
    return f"{'-':>{width}}  " if value is None else f"{value:{width}.2f} %"


def _say_nothing(*_: object, **__: object) -> None:
    """In all processes but the first."""


def _device(name: Device) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def main() -> None:
    """Entry point: what goes wrong is told in one sentence."""
    if sys.argv[1:] == ["--version"]:
        print(f"sckn {sckn.__version__}")
        return
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and the like wish
            signal.signal(number, _stop)
    warnings.showwarning = _show_warning
    try:
        _run_command()
    except _Terminated as stop:
        _fail("; ".join(["stopped", *stop.args]), 143)
    except KeyboardInterrupt as stop:
        _fail("; ".join(["interrupted", *stop.args]), 130)
    except torch.OutOfMemoryError:
        _fail("the GPU's memory does not suffice; set a smaller batch_size or fewer filters")
    except ImportError as error:
        _fail(str(error))
    except (ValueError, OSError) as error:
        _fail(error.strerror if isinstance(error, OSError) and error.strerror else str(error))


def _run_command() -> None:
    commands = (demo, data, train, report, evaluate, classify, upscale, tables, serve)
    overview = sys.argv[1:] in ([], ["-h"], ["--help"])
    choices = [
        # in the overview each has a line, in its own help all that its docstring says
        tyro.conf.subcommand(each.__name__, constructor=each, description=_first_line(each) if overview else None)
        for each in commands
    ]
    tyro.cli(
        Union[tuple(Annotated[Any, choice] for choice in choices)],  # noqa: UP007  # pyright: ignore
        prog="sckn",
        description="Supervised convolutional kernel networks. Example: sckn demo",
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _first_line(command: Callable[..., None]) -> str:
    return (command.__doc__ or "").splitlines()[0]


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """One sentence, as for errors, instead of a line of source code."""
    print(f"sckn: {message}", file=sys.stderr)


STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM)."""


def _stop(number: int, _: object) -> None:
    """The first signal lets the program end in order, a second one ends it at once."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_DFL)
    raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def _resumable(folder: Path | None) -> Iterator[None]:
    """An interrupt, told with how to go on, where there is a run folder."""
    try:
        yield
    except KeyboardInterrupt as stop:
        hint = [] if folder is None else [f"what was finished is in {folder}, go on with --resume"]
        raise type(stop)(*hint) from None


def _fail(sentence: str, code: int = 1) -> None:
    print(f"sckn: {sentence}", file=sys.stderr)
    sys.exit(code)
