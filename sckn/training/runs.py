"""`RunFolder`: settings, figures and checkpoints of a training in a folder, so that it can be followed and interrupted."""

import json
import math
import os
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
from sckn.training.run_files import (
    BEST,
    CONFIG,
    CURVES,
    ENVIRONMENT,
    LAST,
    METRICS,
    MODEL,
    TENSORBOARD,
    metric_lines,
    read_history,
    read_json,
    usable_folder,
    write_json,
)
from sckn.training.state import EpochRecord, TrainingState

__all__ = ["RunFolder"]

# A folder with one of these holds a run; the settings are written last at the start, so that a run has them.
FILES = (CONFIG, METRICS, LAST, BEST, MODEL)
LEARNED = (METRICS, LAST, BEST, MODEL)
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
        run = cls(path, config, _summary_writer() if tensorboard else None)
        begun = cls.has_begun(path, config, resume=resume)
        with usable_folder(path):
            path.mkdir(parents=True, exist_ok=True)
            for name in (*FILES, ENVIRONMENT, CURVES):
                remove_leftovers(path / name)
        run._write_environment(resumed=begun)
        if not begun:
            write_json(path / CONFIG, config)
        return run

    @staticmethod
    def has_begun(path: Path, config: dict[str, Any], *, resume: bool) -> bool:
        """Whether `open` would go on with a run that is there; what it would refuse is refused. Nothing is written."""
        with usable_folder(path):
            begun = path.exists() and not {file.name for file in path.iterdir()}.isdisjoint(FILES)
        if begun and not resume:
            raise ValueError(f"{path} already holds a run; give --resume to go on with it, or another folder")
        if begun:
            _refuse_other_settings(path, _as_json(config))
        return begun

    @contextmanager
    def left_if_it_learned(self) -> Iterator[None]:
        """A training that fails in the block before anything was learned leaves no settings to hold up the next one."""
        try:
            yield
        except BaseException:
            folders = [*self.path.glob("*/*/"), *self.path.glob("*/"), self.path]  # seed-0/final, for example
            if not any((folder / name).exists() for folder in folders for name in LEARNED):
                for folder in folders:
                    for name in (CONFIG, ENVIRONMENT):
                        (folder / name).unlink(missing_ok=True)
                    with suppress(OSError):  # it holds something else
                        folder.rmdir()
            raise

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
            with self._saving(self.path / TENSORBOARD):
                self._show(record)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """What was spent on the training before its next record, which will say so."""
        self._seconds[phase] = seconds

    def save_best(self, model: KernelModel) -> None:
        """Keep the best model so far."""
        best = self.path / BEST
        with self._saving(best):
            checkpoint.save(model, best)

    # -- and more -----------------------------------------------------------------------------------------------------

    def history(self) -> list[EpochRecord]:
        """As `read_history`."""
        return read_history(self.path)

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
            with self._saving(self.path / TENSORBOARD):
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
        return self.path / CURVES

    @property
    def _last(self) -> Path:
        return self.path / LAST

    @property
    def _metrics(self) -> Path:
        return self.path / METRICS

    def _write_environment(self, *, resumed: bool) -> None:
        path = self.path / ENVIRONMENT
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

    def _drop_records_after(self, epoch: int) -> None:
        kept = sum(len(line) for line, _ in takewhile(lambda line: line[1]["epoch"] <= epoch, metric_lines(self.path)))
        if self._metrics.exists() and self._metrics.stat().st_size != kept:
            with self._saving(self._metrics):
                os.truncate(self._metrics, kept)  # needs no room on a disk that may be full

    def _add_to_last_record(self, closing_seconds: float) -> None:
        lines = metric_lines(self.path)
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
            self._writer = self._writer_class(str(self.path / TENSORBOARD), purge_step=epoch)
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


def _refuse_other_settings(path: Path, config: dict[str, Any]) -> None:
    for name, old, new in _differences(read_json(path / CONFIG), config, ""):
        raise ValueError(
            f"{path} holds a run with {name} = {old}, but {name} = {new} was given; give the settings it has, or another folder"
        )


def _as_json(config: dict[str, Any]) -> dict[str, Any]:
    """As it will be read again: tuples are lists."""
    try:
        return json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the settings of a run must be such that JSON can hold them: {error}") from None


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
