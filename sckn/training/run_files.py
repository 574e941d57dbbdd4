"""What a run folder holds, for those who read it: reports, results, commands. `RunFolder` (runs.py) writes it.

config.json          the settings
environment.json     code, machine, command and time of the start, and of each time the run was resumed
metrics.jsonl        one JSON object an epoch; numbers that are not finite are null
last.safetensors     the state after the last epoch, from which the training goes on
best.safetensors     the model with the least validation error so far
model.safetensors    the model at the end
curves.png           the metrics as a picture, at the end
tensorboard/         the metrics for TensorBoard, if asked for
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sckn.checkpoint import UNREADABLE, CheckpointError
from sckn.files import remove_leftovers, written_whole
from sckn.shipped import SHIPPED, find_shipped
from sckn.training.state import EpochRecord

__all__ = [
    "BEST",
    "CLASSIFIER",
    "CONFIG",
    "CURVES",
    "ENVIRONMENT",
    "EVALUATION",
    "FIGURES",
    "LAST",
    "METRICS",
    "MODEL",
    "TENSORBOARD",
    "code_versions",
    "find_classifier",
    "find_model",
    "machines",
    "metric_lines",
    "model_file",
    "read_history",
    "read_json",
    "usable_folder",
    "write_json",
]

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model.safetensors"
CURVES, TENSORBOARD = "curves.png", "tensorboard"
# What an experiment keeps of its final trainings, see with_labels.py.
CLASSIFIER, EVALUATION = "classifier.safetensors", "evaluation.json"
# And what its report tells.
FIGURES = "report.json"

# What to do about a file that cannot be read.
COPY = "put a copy of it there, or choose another folder"


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """A file of a run, whole or not at all; what a process left that was killed while it wrote it is removed."""
    if path.parent.is_dir():
        remove_leftovers(path)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n")


def read_json(
    path: Path, kind: type = dict, *, into: Callable[[Any], Any] = lambda content: content, remedy: str = COPY
) -> Any:
    """What `write_json` wrote, a table or a list, or what is made of that."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, kind):
            raise ValueError(f"it is no {'list' if kind is list else 'table'}")
        return into(content)
    except (OSError, *UNREADABLE) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read ({reason}); {remedy}") from None


def read_history(folder: Path) -> list[EpochRecord]:
    """The figures of all epochs, also of those before the run was resumed; what was not finite is None."""
    return [record for _, record in metric_lines(folder)]


def metric_lines(folder: Path) -> list[tuple[bytes, EpochRecord]]:
    """Each line of the metrics and what it says; a last line that was not finished is left out."""
    path = folder / METRICS
    if not path.exists():
        return []
    with usable_folder(folder):
        lines = path.read_bytes().splitlines(keepends=True)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(record["epoch"], int):
                raise ValueError("it does not tell its epoch")
        except UNREADABLE as error:
            if number == len(lines):
                break
            raise ValueError(
                f"line {number} of {path} cannot be read ({error}); remove it, or put a copy of the file there"
            ) from None
        found.append((line, record))
    return found


def code_versions(run: Path) -> list[str]:
    """Of the code that worked on the trainings in this folder, in order of the alphabet: one, unless code changed between."""
    return sorted({start["code_version"] for start in _starts(run)})


def machines(run: Path) -> dict[str, Any]:
    """That on which a run began, as a result tells it; others that worked on it are `resumed_on`."""
    first, *others = {json.dumps(start["machine"]): start["machine"] for start in _starts(run)}.values() or [{}]
    return {**first, "resumed_on": others} if others else first


def _depth(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def _starts(run: Path) -> list[dict[str, Any]]:
    """What each process that worked in this folder or in one inside it wrote when it began; of the folder itself first."""
    firsts = [read_json(path) for path in sorted(Path(run).rglob(ENVIRONMENT), key=_depth)]
    return [start for first in firsts for start in (first, *first.get("resumed", []))]


def find_classifier(folder: Path) -> Path | None:
    """The result of an experiment in its run folder: that of the first seed, which is no choice by the test set; or in the
    folder of one seed or of its final training."""
    seeds = [path for path in folder.glob("seed-*") if re.fullmatch(r"seed-\d+", path.name)]
    finals = [path / "final" for path in sorted(seeds, key=lambda path: int(path.name.removeprefix("seed-")))]
    places = [place / CLASSIFIER for place in (folder, folder / "final", *finals)]
    return next((place for place in places if place.is_file()), None)


def find_model(folder: Path) -> Path | None:
    """The classifier of an experiment in its run folder, or else what one training left: an upscaler, perhaps."""
    single = folder / MODEL
    return find_classifier(folder) or (single if single.is_file() else None)


def model_file(source: str) -> str | Path:
    """Of a file, name, or run folder; a folder of a name that sckn knows may be one of data, and is passed over."""
    path = Path(source)
    if not path.is_dir() or source in SHIPPED or find_shipped(source):
        return source
    found = find_model(path)
    if found is None:
        raise CheckpointError(
            f"{source} holds no finished training; expected the run folder of a training with labels or of an upscaler, "
            "which sckn train --resume brings to its end"
        )
    return found


@contextmanager
def usable_folder(path: Path) -> Iterator[None]:
    """That it is none, or may not be entered, is told."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(error.errno, f"{path} is not a folder; choose another one for the run") from None
    except OSError as error:
        raise OSError(error.errno, f"the folder {path} cannot be used ({error.strerror}); choose another one") from None
