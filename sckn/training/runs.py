"""The folder of a training: its settings, figures and checkpoints, so that it can be followed and interrupted.

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
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from sckn import checkpoint
from sckn.checkpoint import UNREADABLE, CheckpointError, read_tensors, write_tensors
from sckn.extras import MissingPackageError
from sckn.files import append_line, remove_leftovers, written_whole
from sckn.model import KernelModel
from sckn.results import code_version, machine
from sckn.superres.upscaler import Upscaler
from sckn.training.curves import draw_curves
from sckn.training.state import EpochRecord, TrainingState

__all__ = [
    "CLASSIFIER",
    "EVALUATION",
    "FIGURES",
    "MODEL",
    "RunFolder",
    "code_versions",
    "find_classifier",
    "find_model",
    "machines",
    "read_json",
    "write_json",
]

MODEL = "model.safetensors"

# A folder with one of these holds a run; the settings are written last at the start, so that a run has them.
FILES = ("config.json", "metrics.jsonl", "last.safetensors", "best.safetensors", MODEL)
# What an experiment keeps of its final trainings, see with_labels.py.
CLASSIFIER, EVALUATION = "classifier.safetensors", "evaluation.json"
# And what its report tells.
FIGURES = "report.json"
SHOWN_IN_TENSORBOARD = ("objective", "loss", "train_error", "validation_error", "learning_rate", "active_fraction", "seconds")


class RunFolder:
    """A `TrainingStore` in a folder. With several processes the first one opens it, and it alone.

    Example
    -------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     run = RunFolder.open(folder, {"epochs": 2}, resume=False)
    ...     run.record({"epoch": 0, "objective": 0.5, "accepted": True})
    ...     run.history()
    [{'epoch': 0, 'objective': 0.5, 'accepted': True}]
    """

    def __init__(self, path: Path, config: dict[str, Any], writer_class: Any = None) -> None:
        self.path, self.config = path, config
        self._writer_class, self._writer = writer_class, None
        self._seconds: dict[str, float] = {}

    @classmethod
    def open(cls, path: str | Path, config: dict[str, Any], *, resume: bool, tensorboard: bool = False) -> Self:
        """A new run, or with `resume` the one that is there, if there is one and its settings are these."""
        path, config = Path(path), _as_json(config)
        writer_class = _summary_writer() if tensorboard else None
        run = cls(path, config, writer_class)
        with _usable(path):
            path.mkdir(parents=True, exist_ok=True)
            there = {file.name for file in path.iterdir()}
        begun = not there.isdisjoint(FILES)
        if begun and not resume:
            raise ValueError(f"{path} already holds a run; give --resume to go on with it, or another folder")
        if begun:
            run._check_config()
        with _usable(path):
            for name in (*FILES, "environment.json", "curves.png"):
                remove_leftovers(path / name)
        run._write_environment(resumed=begun)
        if not begun:
            write_json(path / "config.json", config)
        return run

    # -- the TrainingStore --------------------------------------------------------------------------------------------

    def has_state(self) -> bool:
        """Whether there is a state to go on from."""
        return os.path.exists(self._last)  # that of Path raises an error where the folder may not be entered

    def load_state(self) -> TrainingState | None:
        """The state to go on from, if there is one; figures of epochs after it, which will come again, are dropped."""
        if not self.has_state():
            self._drop_records_after(-1)
            return None
        remedy = "put a copy of it there, or start again in another folder"
        content = read_tensors(self._last, ("TrainingState",), expected="the state of a training", remedy=remedy)
        try:
            numbers = json.loads(content.metadata["numbers"])
            if not isinstance(numbers["epoch"], int):
                raise ValueError("its epoch is not a whole number")
        except UNREADABLE as error:
            raise CheckpointError(f"the numbers in {self._last} cannot be read: {error!r}; {remedy}") from None
        self._drop_records_after(numbers["epoch"])
        return TrainingState(content.tensors, numbers)

    def save_state(self, state: TrainingState) -> None:
        """Make safe what `load_state` gives back, to the last bit."""
        with self._saving(self._last):
            # Python's JSON knows Infinity and NaN
            write_tensors(self._last, "TrainingState", state.tensors, {"numbers": json.dumps(state.numbers)})

    def record(self, record: EpochRecord) -> None:
        """Add the figures of an epoch; they are on the disk when this returns."""
        if self._seconds:
            record, self._seconds = {**record, "seconds": self._seconds | record["seconds"]}, {}
        with self._saving(self._metrics):
            append_line(self._metrics, json.dumps(_finite(record), allow_nan=False))
        if self._writer_class is not None:
            with self._saving(self.path / "tensorboard"):
                self._show(record)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """What was spent on the training before its next record, which will say so."""
        self._seconds[phase] = seconds

    def save_best(self, model: KernelModel) -> None:
        """Keep the best model so far."""
        best = self.path / "best.safetensors"
        with self._saving(best):
            checkpoint.save(model, best)

    # -- and more -----------------------------------------------------------------------------------------------------

    def history(self) -> list[EpochRecord]:
        """The figures of all epochs, also of those before the run was resumed; what was not finite is None."""
        return [record for _, record in self._lines()]

    def finish(self, model: KernelModel | Upscaler, closing_seconds: float | None = None) -> None:
        """Keep the final model; draw the curves, where matplotlib is installed. What came after the last epoch is added to its
        seconds."""
        final = self.path / MODEL
        if closing_seconds is not None:
            self._add_to_last_record(closing_seconds)
        with self._saving(final):
            checkpoint.save(model, final)
        self.draw_curves()
        if self._writer is not None:
            with self._saving(self.path / "tensorboard"):
                self._writer.close()
            self._writer = None

    def finished(self) -> bool:
        """Whether the training came to its end, and `finish` was told what came after it: then the model is final."""
        history = self.history()
        if not history or not (self.path / MODEL).exists():
            return False
        return history[-1]["epoch"] == self.config.get("epochs") and "closing" in history[-1].get("seconds", {})

    def draw_curves(self, *, missing: bool = False) -> None:
        """Where matplotlib is installed; with `missing` only if they are not there."""
        history = self.history()
        if history and not (missing and self._curves.exists()):
            with self._saving(self._curves), suppress(MissingPackageError):
                draw_curves(history, self._curves, self.path.resolve().name)

    def final_model(self) -> KernelModel:
        """What `finish` kept."""
        final = self.path / MODEL
        model = checkpoint.load(final)
        if not isinstance(model, KernelModel):
            raise CheckpointError(f"{final} does not hold the model of this training; remove it, and it is made again")
        return model

    @property
    def _curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def _last(self) -> Path:
        return self.path / "last.safetensors"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def _check_config(self) -> None:
        stored = read_json(self.path / "config.json")
        for name, old, new in _differences(stored, self.config, ""):
            raise ValueError(
                f"{self.path} holds a run with {name} = {old}, but {name} = {new} was given; "
                "give the settings it has, or another folder"
            )

    def _write_environment(self, *, resumed: bool) -> None:
        path = self.path / "environment.json"
        start = {
            "code_version": code_version(),
            "machine": machine(),
            "command": shlex.join(sys.orig_argv),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if resumed and path.exists():
            first = read_json(path)
            write_json(path, {**first, "resumed": [*first.get("resumed", []), start]})
        else:
            write_json(path, start)

    def _lines(self) -> list[tuple[bytes, EpochRecord]]:
        """Each line of the metrics and what it says; a last line that was not finished is left out."""
        if not self._metrics.exists():
            return []
        with _usable(self.path):
            lines = self._metrics.read_bytes().splitlines(keepends=True)
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
                    f"line {number} of {self._metrics} cannot be read ({error}); remove it, or put a copy of the file there"
                ) from None
            found.append((line, record))
        return found

    def _drop_records_after(self, epoch: int) -> None:
        kept = sum(len(line) for line, _ in takewhile(lambda line: line[1]["epoch"] <= epoch, self._lines()))
        if self._metrics.exists() and self._metrics.stat().st_size != kept:
            with self._saving(self._metrics):
                os.truncate(self._metrics, kept)  # needs no room on a disk that may be full

    def _add_to_last_record(self, closing_seconds: float) -> None:
        lines = self._lines()
        if not lines:
            return
        *before, (_, last) = lines
        last["seconds"] = {**last.get("seconds", {}), "closing": closing_seconds}
        content = b"".join(line for line, _ in before) + json.dumps(last, allow_nan=False).encode() + b"\n"
        with self._saving(self._metrics), written_whole(self._metrics) as temporary:
            temporary.write_bytes(content)

    def _show(self, record: EpochRecord) -> None:
        """Figures for TensorBoard, which then shows no others of this epoch or later ones."""
        epoch = record["epoch"]
        if self._writer is None:
            self._writer = self._writer_class(str(self.path / "tensorboard"), purge_step=epoch)
        figures = {**record, "seconds": sum(record.get("seconds", {}).values())}
        for name in SHOWN_IN_TENSORBOARD:
            value = figures.get(name)
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    @contextmanager
    def _saving(self, path: Path) -> Iterator[None]:
        """A disk that is full, or gone, is told with what it means for the run."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error.strerror or str(error)
            left = "the last checkpoint is intact" if self.has_state() else "there is no checkpoint yet"
            sentence = f"{path} cannot be written ({reason}); {left}: mend this and go on with --resume"
            raise OSError(error.errno, sentence) from None


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
    firsts = [read_json(path) for path in sorted(Path(run).rglob("environment.json"), key=_depth)]
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


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(error.errno, f"{path} is not a folder; choose another one for the run") from None
    except OSError as error:
        raise OSError(error.errno, f"the folder {path} cannot be used ({error.strerror}); choose another one") from None


def _as_json(config: dict[str, Any]) -> dict[str, Any]:
    """As it will be read again: tuples are lists."""
    try:
        return json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the settings of a run must be such that JSON can hold them: {error}") from None


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """A file of a run, whole or not at all; what a process left that was killed while it wrote it is removed."""
    if path.parent.is_dir():
        remove_leftovers(path)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n")


def read_json(path: Path, kind: type = dict) -> Any:
    """What `write_json` wrote: a table, or a list."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, kind):
            raise ValueError(f"it is no {'list' if kind is list else 'table'}")
    except (OSError, *UNREADABLE) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read ({reason}); put a copy of it there, or choose another folder") from None
    return content


def _differences(old: Any, new: Any, name: str) -> Iterator[tuple[str, str, str]]:
    """Name and both values of each setting that differs, in the order of the new ones."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            below = f"{name}.{key}" if name else key
            if key in old and key in new:
                yield from _differences(old[key], new[key], below)
            else:
                values = [json.dumps(table[key]) if key in table else "nothing" for table in (old, new)]
                yield below, values[0], values[1]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(*pair, f"{name}[{index}]")
    elif old != new:
        yield name, json.dumps(old), json.dumps(new)


def _finite(value: Any) -> Any:
    """The value with None for each number that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingPackageError("writing for TensorBoard", "the package tensorboard", "tensorboard") from None
    return SummaryWriter
