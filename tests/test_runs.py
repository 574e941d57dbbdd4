"""Run folders: a training can be followed, killed at any moment and resumed; what is wrong is told in one sentence."""

import builtins
import errno
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from test_curves import without
from test_files import files_limited_to, without_privileges

from sckn import CKN, CheckpointError, LayerConfig, NetworkConfig, load, save
from sckn.model import KernelModel
from sckn.training.recipe import Recipe
from sckn.training.run_files import machines, write_json
from sckn.training.runs import RunFolder
from sckn.training.state import EpochRecord, TrainingState, TrainingStore
from sckn.training.supervised import train_supervised

CONFIG: dict[str, Any] = {
    "epochs": 3,
    "recipe": {"learning_rate": 0.1, "preconditioner": None},
    "layers": [{"filters": 4}, {"filters": 8}],
}


def names(folder: Path) -> list[str]:
    """All that is in a folder, hidden files too."""
    return sorted(os.listdir(folder))


def record(epoch: int, **changes: Any) -> EpochRecord:
    return {
        "epoch": epoch,
        "objective": 0.5 / (1 + epoch),
        "loss": 0.4 / (1 + epoch),
        "train_error": 10.0 - epoch,
        "validation_error": 20.0 - epoch,
        "accepted": True,
        "learning_rate": 0.1,
        "active_fraction": 0.75,
        "alphas": [1.5, 2.5],
        "seconds": {"filters": 1.0, "weights": 0.25},
        **changes,
    }


def state(epoch: int, size: int = 5) -> TrainingState:
    return TrainingState({"weights": torch.full((size,), float(epoch))}, {"epoch": epoch, "best_error": math.inf})


def model(filters: int = 2) -> KernelModel:
    return KernelModel(CKN(NetworkConfig(1, (LayerConfig(filters, 3),))), torch.randn(filters, 3), per_pixel=True)


def filters_of(path: Path) -> int:
    found = load(path)
    assert isinstance(found, KernelModel)
    return found.network.config.layers[0].filters


def new_run(path: Path, **settings: Any) -> RunFolder:
    return RunFolder.open(path, CONFIG, **{"resume": False, **settings})


def run_with(path: Path, epochs: int) -> RunFolder:
    """A run after so many epochs, the one before the first included."""
    run = new_run(path)
    for epoch in range(epochs):
        run.record(record(epoch))
        run.save_state(state(epoch))
    return run


def resumed(path: Path, **settings: Any) -> RunFolder:
    return RunFolder.open(path, CONFIG, resume=True, **settings)


def epochs_in(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (path / "metrics.jsonl").read_text().splitlines()]


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_new_run_tells_settings_and_environment(tmp_path: Path) -> None:
    run: TrainingStore = new_run(tmp_path / "runs" / "first")
    folder = tmp_path / "runs" / "first"
    assert names(folder) == ["config.json", "environment.json"]
    assert json.loads((folder / "config.json").read_text()) == CONFIG
    environment = json.loads((folder / "environment.json").read_text())
    assert set(environment) == {"code_version", "machine", "command", "started"}
    assert "sha256:" in environment["code_version"]
    assert environment["machine"]["torch"] == torch.__version__
    assert sys.orig_argv[-1] in environment["command"]
    started = datetime.fromisoformat(environment["started"])
    assert started.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - started) < timedelta(minutes=5)
    assert run.load_state() is None


def test_an_empty_folder_and_other_files_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    new_run(tmp_path)
    assert names(tmp_path) == ["config.json", "environment.json", "notes.txt"]


def test_to_resume_where_nothing_is_begins(tmp_path: Path) -> None:
    run = resumed(tmp_path / "new")
    assert not run.has_state()
    assert run.load_state() is None
    assert run.history() == []
    assert "resumed" not in json.loads((tmp_path / "new" / "environment.json").read_text())


def fail_in(run: RunFolder) -> None:
    with pytest.raises(ValueError, match="no memory"), run.left_if_it_learned():
        raise ValueError("no memory")


def test_a_training_that_fails_before_it_learns_does_not_hold_up_the_next(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    new_run(tmp_path / "run" / "seed-0" / "final")
    (tmp_path / "mine").mkdir()
    fail_in(run)
    assert names(tmp_path) == ["mine"]
    run = RunFolder.open(tmp_path / "run", {**CONFIG, "epochs": 5}, resume=False)
    (tmp_path / "run" / "notes.txt").write_text("of somebody")
    fail_in(run)
    assert names(tmp_path / "run") == ["notes.txt"]


def test_what_was_learned_stays_when_a_training_fails(tmp_path: Path) -> None:
    run, part = new_run(tmp_path / "run"), new_run(tmp_path / "run" / "seed-0" / "final")
    part.record({"epoch": 0, "objective": 0.5, "accepted": True, "seconds": {}})
    before = names(tmp_path / "run")
    fail_in(run)
    assert names(tmp_path / "run") == before
    with pytest.raises(ValueError, match="already holds a run"):
        new_run(tmp_path / "run")


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "last.safetensors", "best.safetensors", "model.safetensors"])
def test_a_run_is_not_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("something")
    with pytest.raises(ValueError, match=r"already holds a run; give --resume to go on with it, or another folder$"):
        new_run(tmp_path)
    assert names(tmp_path) == [file]
    assert (tmp_path / file).read_text() == "something"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({**CONFIG, "epochs": 5}, "with epochs = 3, but epochs = 5 was given"),
        (
            {**CONFIG, "recipe": {"learning_rate": 0.2, "preconditioner": 0.1}},
            "with recipe.learning_rate = 0.1, but recipe.learning_rate = 0.2 was given",
        ),
        (
            {**CONFIG, "recipe": {"learning_rate": 0.1, "preconditioner": 0.1}},
            "with recipe.preconditioner = null, but recipe.preconditioner = 0.1 was given",
        ),
        (
            {**CONFIG, "layers": [{"filters": 4}, {"filters": 16}]},
            "with layers[1].filters = 8, but layers[1].filters = 16 was given",
        ),
        (
            {**CONFIG, "layers": [{"filters": 4}]},
            'with layers = [{"filters": 4}, {"filters": 8}], but layers = [{"filters": 4}] was given',
        ),
        ({**CONFIG, "seed": 1}, "with seed = nothing, but seed = 1 was given"),
        (
            {name: value for name, value in CONFIG.items() if name != "epochs"},
            "with epochs = 3, but epochs = nothing was given",
        ),
    ],
)
def test_other_settings_are_named_with_both_values(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    run_with(tmp_path, 2)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    with pytest.raises(ValueError, match=r"give the settings it has, or another folder$") as caught:
        RunFolder.open(tmp_path, changed, resume=True)
    assert complaint in str(caught.value)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_tuples_and_the_order_of_settings_make_no_difference(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"seeds": (1, 2), "name": "x"}, resume=False)
    run = RunFolder.open(tmp_path, {"name": "x", "seeds": [1, 2]}, resume=True)
    assert run.config == {"seeds": [1, 2], "name": "x"}


@pytest.mark.parametrize("value", [math.nan, {1, 2}, object()])
def test_settings_that_json_cannot_hold_are_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match="settings of a run must be such that JSON can hold them"):
        RunFolder.open(tmp_path / "run", {"setting": value}, resume=False)
    assert names(tmp_path) == []


def test_each_start_is_kept(tmp_path: Path) -> None:
    new_run(tmp_path)
    first = json.loads((tmp_path / "environment.json").read_text())
    resumed(tmp_path)
    resumed(tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    later = environment.pop("resumed")
    assert environment == first
    assert [set(start) for start in later] == [set(first)] * 2


def test_a_result_tells_all_machines_that_worked_on_a_run(tmp_path: Path) -> None:
    here = {"accelerator": None, "torch": "2.13"}
    there = {"accelerator": "NVIDIA H200", "torch": "2.11"}
    for folder, starts in (("a/final", [there, there]), (".", [there, there])):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        first, *later = ({"machine": machine} for machine in starts)
        write_json(tmp_path / folder / "environment.json", {**first, "resumed": later})
    assert machines(tmp_path) == there
    write_json(tmp_path / "a/final/environment.json", {"machine": there, "resumed": [{"machine": here}]})
    assert machines(tmp_path) == {**there, "resumed_on": [here]}


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("below", ["", "deeper", "even/deeper"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, below: str, resume: bool) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(OSError, match=rf"{blocked}.* is not a folder; choose another one"):
        new_run(blocked / below, resume=resume)
    assert blocked.read_text() == "a file"


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Not tmp_path, which only its owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            yield folder
        finally:
            folder.chmod(0o755)


@pytest.mark.parametrize(("mode", "below"), [(0o555, "new"), (0o555, ""), (0o000, ""), (0o000, "new"), (0o311, "")])
def test_a_folder_without_permission_is_named(mode: int, below: str) -> None:
    with folder_for_all() as folder:
        folder.chmod(mode)
        with without_privileges(), pytest.raises(OSError, match=r"cannot be (used|written) \(Permission denied\); choose"):
            new_run(folder / below)
        folder.chmod(0o755)
        assert names(folder) == []


def test_a_run_that_may_only_be_read_is_not_resumed() -> None:
    with folder_for_all() as folder:
        run_with(folder, 1)
        folder.chmod(0o555)
        with without_privileges(), pytest.raises(OSError, match=r"environment\.json cannot be written \(Permission denied\)"):
            resumed(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '{"epochs": 3} x', "\x00\x00"])
@pytest.mark.parametrize("file", ["config.json", "environment.json"])
def test_damaged_descriptions_are_named(tmp_path: Path, file: str, content: str) -> None:
    run_with(tmp_path, 1)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=rf"{file} cannot be read \(.+\); put a copy of it there, or choose another folder"):
        resumed(tmp_path)


def test_missing_descriptions(tmp_path: Path) -> None:
    run_with(tmp_path, 1)
    (tmp_path / "environment.json").unlink()
    resumed(tmp_path)
    assert (tmp_path / "environment.json").is_file()
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json cannot be read \(No such file or directory\)"):
        resumed(tmp_path)


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    run_with(tmp_path, 1)
    before = names(tmp_path)
    for name in [*before, "best.safetensors", "model.safetensors", "curves.png"]:
        (tmp_path / f".{name}.abc_1234{Path(name).suffix}").write_text("half")
    (tmp_path / ".config.json.swp").write_text("an editor's")
    with pytest.raises(ValueError, match="--resume"):
        new_run(tmp_path)
    assert len(names(tmp_path)) == 2 * len(before) + 4  # they may belong to a run under way
    resumed(tmp_path)
    assert names(tmp_path) == sorted([*before, ".config.json.swp"])


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# -- the state --------------------------------------------------------------------------------------------------------


def test_a_state_survives_to_the_last_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 0.1])
    shared = torch.randn(4, 3)
    tensors = {
        "flags": torch.rand(7) > 0.5,
        "generator": generator.get_state(),
        "float32": odd.float(),
        "float64": odd.double() / 3,
        "bfloat16": odd.bfloat16(),
        "int64": torch.tensor([2**62 + 1, -1]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "shared": shared,
        "shared again": shared,
        "transposed": shared.T,
        "needs a gradient": torch.ones(2, requires_grad=True),
    }
    numbers = {
        "epoch": 4,
        "best_error": math.inf,
        "least": -math.inf,
        "objective": 0.1 + 0.2,
        "tiny": 5e-324,
        "samples": 2**70,
        "flag": True,
        "nothing": None,
        "name": "é",
        "list": [1, 2.5],
    }
    run = new_run(tmp_path)
    assert not run.has_state()
    run.save_state(TrainingState(tensors, numbers))
    assert run.has_state()
    found = resumed(tmp_path).load_state()
    assert found is not None
    assert found.numbers == numbers
    assert [type(value) for value in found.numbers.values()] == [type(value) for value in numbers.values()]
    assert set(found.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype, name
        assert found.tensors[name].shape == tensor.shape, name
        assert bits(found.tensors[name]) == bits(tensor), name
    again = torch.Generator()
    again.set_state(found.tensors["generator"])
    assert torch.equal(torch.rand(5, generator=again), torch.rand(5, generator=generator))


def test_nan_survives_in_the_numbers(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save_state(TrainingState({}, {"epoch": 0, "objective": math.nan}))
    found = run.load_state()
    assert found is not None
    assert math.isnan(found.numbers["objective"])


def test_every_truncation_of_the_state_is_named(tmp_path: Path) -> None:
    run = run_with(tmp_path, 2)
    last = tmp_path / "last.safetensors"
    data = last.read_bytes()
    for length in {*range(0, len(data), 23), len(data) - 1}:
        last.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"last\.safetensors is not a whole .*start again in another folder$"):
            run.load_state()
        assert epochs_in(tmp_path) == [0, 1]  # nothing is dropped for a state that cannot be read


def test_a_file_that_is_no_state_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save_best(model())
    (tmp_path / "best.safetensors").rename(tmp_path / "last.safetensors")
    with pytest.raises(CheckpointError, match="holds a 'KernelModel', not a TrainingState; expected the state of a training"):
        run.load_state()
    with pytest.raises(CheckpointError, match="holds a 'TrainingState', not a CKN or a KernelModel"):
        load(run_with(tmp_path / "other", 1).path / "last.safetensors")


@pytest.mark.parametrize("numbers", [None, "{", "[]", "{}", '{"epoch": 1.5}', '{"epoch": Infinity}', '{"epoch": null}', "3"])
def test_numbers_that_cannot_be_read_are_named(tmp_path: Path, numbers: str | None) -> None:
    run = run_with(tmp_path, 1)
    last = tmp_path / "last.safetensors"
    with safe_open(last, framework="pt") as file:
        metadata = dict(file.metadata())
    metadata.pop("numbers")
    save_file({"weights": torch.zeros(2)}, last, metadata if numbers is None else {**metadata, "numbers": numbers})
    with pytest.raises(CheckpointError, match=r"the numbers in .*last\.safetensors cannot be read"):
        run.load_state()


# -- the figures ------------------------------------------------------------------------------------------------------


def test_seconds_spent_before_are_in_the_next_record_alone(tmp_path: Path) -> None:
    run = RunFolder.open(tmp_path, {}, resume=False)
    run.add_seconds("k-means", 2.5)
    for epoch in range(2):
        run.record({"epoch": epoch, "seconds": {"weights": 1.0}})
    assert [record["seconds"] for record in run.history()] == [{"k-means": 2.5, "weights": 1.0}, {"weights": 1.0}]


def test_figures_are_valid_json(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.record(record(0, validation_error=None))
    run.record(record(1, objective=math.nan, loss=math.inf, alphas=[math.nan, 2.0], seconds={"filters": -math.inf}))

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    assert found[0] == record(0, validation_error=None)
    assert found[1] == record(1, objective=None, loss=None, alphas=[None, 2.0], seconds={"filters": None})
    assert run.history() == found
    assert resumed(tmp_path).history() == found


def test_figures_are_on_the_disk_when_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    synced = []
    sync = os.fsync

    def watched(file: Any) -> None:
        sync(file)
        synced.append(epochs_in(tmp_path))

    monkeypatch.setattr(os, "fsync", watched)
    run.record(record(0))
    run.record(record(1))
    assert synced[0] == [0]
    assert synced[-1] == [0, 1]


def test_a_line_of_an_epoch_that_was_not_saved_is_dropped(tmp_path: Path) -> None:
    run = run_with(tmp_path, 3)
    run.record(record(3))  # and killed before the state was saved
    again = resumed(tmp_path)
    assert epochs_in(tmp_path) == [0, 1, 2, 3]
    found = again.load_state()
    assert found is not None
    assert found.numbers["epoch"] == 2
    assert epochs_in(tmp_path) == [0, 1, 2]
    again.record(record(3))
    again.save_state(state(3))
    assert epochs_in(tmp_path) == [0, 1, 2, 3]
    assert [figures["epoch"] for figures in again.history()] == [0, 1, 2, 3]


def test_a_line_before_the_first_state_is_dropped(tmp_path: Path) -> None:
    new_run(tmp_path).record(record(0))
    again = resumed(tmp_path)
    assert again.load_state() is None
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    again.record(record(0))
    assert epochs_in(tmp_path) == [0]


def test_every_half_line_is_dropped(tmp_path: Path) -> None:
    run_with(tmp_path, 2)
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_bytes()
    line = json.dumps(record(2)).encode()
    for length in {*range(1, len(line), 7), len(line)}:
        metrics.write_bytes(whole + line[:length])
        again = resumed(tmp_path)
        assert [figures["epoch"] for figures in again.history()] == [0, 1]
        assert again.load_state() is not None
        assert metrics.read_bytes() == whole
    metrics.write_bytes(whole + bytes(100))  # what some file systems leave after a power cut
    assert resumed(tmp_path).load_state() is not None
    assert metrics.read_bytes() == whole


def test_a_whole_file_is_left_alone(tmp_path: Path) -> None:
    run_with(tmp_path, 2)
    before = (tmp_path / "metrics.jsonl").stat()
    assert resumed(tmp_path).load_state() is not None
    after = (tmp_path / "metrics.jsonl").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("line", ["{", "[1]", "{}", "3", '{"epoch": null}'])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    run = run_with(tmp_path, 1)
    metrics = tmp_path / "metrics.jsonl"
    content = metrics.read_text() + line + "\n" + json.dumps(record(1)) + "\n"
    metrics.write_text(content)
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl cannot be read"):
        run.history()
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl cannot be read"):
        run.load_state()
    assert metrics.read_text() == content


# -- models and the end -----------------------------------------------------------------------------------------------


def test_the_best_model_is_replaced(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save_best(model(2))
    assert filters_of(tmp_path / "best.safetensors") == 2
    run.save_best(model(3))
    assert filters_of(tmp_path / "best.safetensors") == 3
    assert names(tmp_path) == ["best.safetensors", "config.json", "environment.json"]


def test_the_end_has_model_and_curves(tmp_path: Path) -> None:
    run, final = run_with(tmp_path, 3), model()
    run.finish(final)
    found = load(tmp_path / "model.safetensors")
    assert isinstance(found, KernelModel)
    assert torch.equal(found.weights, final.weights)
    with Image.open(tmp_path / "curves.png") as image:
        before = np.asarray(image)
    assert before.size
    run.record(record(3, accepted=False))
    run.finish(final)
    with Image.open(tmp_path / "curves.png") as image:
        assert not np.array_equal(np.asarray(image), before)


def test_what_comes_after_the_last_epoch_is_added_to_its_seconds(tmp_path: Path) -> None:
    run = run_with(tmp_path, 3)
    before = run.history()
    for seconds in (7.5, 2.25):  # as if the process had been killed after the first
        run.finish(model(), seconds)
        assert run.history() == [*before[:2], {**before[2], "seconds": {**before[2]["seconds"], "closing": seconds}}]
        assert resumed(tmp_path).history() == run.history()


def test_a_finished_run_gives_its_model_again(tmp_path: Path) -> None:
    run, final = run_with(tmp_path, 2), model()
    run.finish(final, 1.5)
    assert not run.finished()  # CONFIG asks for an epoch more
    run.record(record(CONFIG["epochs"]))
    assert not run.finished()
    run.finish(final)
    assert not run.finished()  # as by older code, which did not find the last W in fp32
    run.finish(final, 1.5)
    (tmp_path / "curves.png").unlink()  # as if the process had been killed before it drew them
    again = resumed(tmp_path)
    assert again.finished()
    again.draw_curves(missing=True)
    assert (tmp_path / "curves.png").is_file()
    assert torch.equal(again.final_model().weights, final.weights)
    save(final.network, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not hold the model of this training; remove it"):
        run.final_model()


def test_without_matplotlib_there_are_no_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path, 2)
    monkeypatch.setattr(builtins, "__import__", without("matplotlib"))
    run.finish(model())
    assert (tmp_path / "model.safetensors").is_file()
    assert not (tmp_path / "curves.png").exists()


def test_a_run_without_epochs_ends(tmp_path: Path) -> None:
    new_run(tmp_path).finish(model())
    assert names(tmp_path) == ["config.json", "environment.json", "model.safetensors"]


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_with(tmp_path, 2).finish(model())
    assert resumed(tmp_path).load_state() is not None
    assert capfd.readouterr() == ("", "")


# -- disks ------------------------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from sckn import CKN, LayerConfig, NetworkConfig
from sckn.model import KernelModel
from sckn.training.runs import RunFolder
from sckn.training.supervised import TrainingState

def model(filters):
    return KernelModel(CKN(NetworkConfig(1, (LayerConfig(filters, 3),))), torch.ones(filters, 3), per_pixel=True)

def state(epoch, size):
    return TrainingState({"weights": torch.full((size,), float(epoch))}, {"epoch": epoch})

def told(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        print(error.errno, error.strerror)

run = RunFolder.open(Path(sys.argv[1]), {}, resume=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # writing more is an error, as on a full disk
told(run.save_state, state(0, 10**6))
run.record({"epoch": 0, "accepted": True})
run.save_best(model(2))
run.save_state(state(0, 10))
told(run.record, {"epoch": 1, "accepted": True, "long": "x" * 5000})
told(run.save_best, model(1000))
told(run.save_state, state(1, 10**6))
told(run.finish, model(1000))
"""


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    files = ("metrics.jsonl", "best.safetensors", "last.safetensors", "model.safetensors")
    first, *later = done.stdout.splitlines()
    end = "mend this and go on with --resume"
    reason = "cannot be written (File too large)"
    assert first == f"{errno.EFBIG} {tmp_path}/last.safetensors {reason}; there is no checkpoint yet: {end}"
    assert later == [f"{errno.EFBIG} {tmp_path}/{file} {reason}; the last checkpoint is intact: {end}" for file in files]
    assert names(tmp_path) == ["best.safetensors", "config.json", "environment.json", "last.safetensors", "metrics.jsonl"]
    assert filters_of(tmp_path / "best.safetensors") == 2
    run = RunFolder.open(tmp_path, {}, resume=True)
    found = run.load_state()
    assert found is not None
    assert torch.equal(found.tensors["weights"], torch.zeros(10))
    assert run.history() == [{"epoch": 0, "accepted": True}]


def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path, 1)

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"last\.safetensors cannot be written \(No space left on device\); the last check"
    ) as caught:
        run.save_state(state(1))
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match=r"metrics\.jsonl cannot be written \(No space left on device\); the last checkpoint is"):
        run.record(record(1))
    assert epochs_in(tmp_path) == [0]
    found = run.load_state()
    assert found is not None
    assert found.numbers["epoch"] == 0


def test_a_folder_that_went_away_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    for file in (tmp_path / "run").iterdir():
        file.unlink()
    (tmp_path / "run").rmdir()
    with pytest.raises(
        OSError, match=r"metrics\.jsonl cannot be written \(No such file or directory\); there is no checkpoint"
    ):
        run.record(record(0))


def test_curves_that_do_not_fit_leave_the_model(tmp_path: Path) -> None:
    run = run_with(tmp_path, 2)
    with files_limited_to(4096), pytest.raises(OSError, match=r"curves\.png cannot be written \(File too large\); the last"):
        run.finish(model())
    assert filters_of(tmp_path / "model.safetensors") == 2
    assert "curves.png" not in names(tmp_path)


KILLED = """
import sys
from itertools import count
from pathlib import Path
import torch
from sckn.training.runs import RunFolder
from sckn.training.supervised import TrainingState

run = RunFolder.open(Path(sys.argv[1]), {}, resume=False)
for epoch in count():
    run.record({"epoch": epoch, "accepted": True})
    run.save_state(TrainingState({"weights": torch.full((2_000_000,), float(epoch))}, {"epoch": epoch}))
    print(epoch, flush=True)
"""


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read().splitlines()
    assert process.returncode == -signal.SIGKILL
    saved = int(printed[-1])
    run = RunFolder.open(tmp_path, {}, resume=True)
    found = run.load_state()
    assert found is not None
    epoch = found.numbers["epoch"]
    assert epoch in (saved, saved + 1)
    assert bool((found.tensors["weights"] == epoch).all())
    assert epochs_in(tmp_path) == list(range(epoch + 1))
    assert names(tmp_path) == ["config.json", "environment.json", "last.safetensors", "metrics.jsonl"]


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All that TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_shows_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = new_run(tmp_path, tensorboard=True)
    run.record(record(0))
    run.record(record(1, objective=math.nan, validation_error=None))
    shown = events(tmp_path)  # without the end of the run
    assert shown["objective"] == [(0, 0.5)]
    assert shown["loss"] == [(0, pytest.approx(0.4)), (1, pytest.approx(0.2))]
    assert shown["train_error"] == [(0, 10.0), (1, 9.0)]
    assert shown["validation_error"] == [(0, 20.0)]
    assert shown["learning_rate"] == [(0, pytest.approx(0.1)), (1, pytest.approx(0.1))]
    assert shown["active_fraction"] == [(0, 0.75), (1, 0.75)]
    assert shown["seconds"] == [(0, 1.25), (1, 1.25)]
    assert len(shown) == 7
    run.finish(model())
    assert events(tmp_path) == shown


def test_tensorboard_forgets_epochs_that_come_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = new_run(tmp_path, tensorboard=True)
    for epoch in range(4):
        run.record(record(epoch))
        if epoch < 2:
            run.save_state(state(epoch))
    again = resumed(tmp_path, tensorboard=True)
    assert again.load_state() is not None
    again.record(record(2, objective=7.0))
    assert events(tmp_path)["objective"] == [(0, 0.5), (1, 0.25), (2, 7.0)]
    assert epochs_in(tmp_path) == [0, 1, 2]


def test_without_being_asked_there_is_no_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", without("tensorboard"))
    run_with(tmp_path, 1)
    assert "tensorboard" not in names(tmp_path)


def test_a_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without("tensorboard"))
    with pytest.raises(ValueError, match=r"needs the package tensorboard; install it with pip install 'sckn\[tensorboard\]'$"):
        new_run(tmp_path / "run", tensorboard=True)
    assert names(tmp_path) == []


def test_a_full_disk_is_named_by_tensorboard_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    run = new_run(tmp_path, tensorboard=True)

    def full(self: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensorboard.SummaryWriter, "flush", full)
    with pytest.raises(OSError, match=r"tensorboard cannot be written \(No space left on device\); there is no checkpoint yet"):
        run.record(record(0))
    assert epochs_in(tmp_path) == [0]


# -- a training -------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Stands for whatever ends a process."""


class Interrupted(RunFolder):
    """A run that ends in the midst of an epoch's bookkeeping."""

    def save_state(self, state: TrainingState) -> None:
        if state.numbers["epoch"] == 2:
            raise StoppedError
        super().save_state(state)


def test_a_training_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    images, labels = torch.rand(40, 1, 6, 6), torch.arange(40) % 2
    images[labels == 1, :, :3] += 0.5
    start = CKN(NetworkConfig(1, (LayerConfig(4, 3, subsampling=2),))).state_dict()
    recipe = Recipe(epochs=4, batch_size=8, averaging=0.9, flip=True, shift=1)

    def train(store: TrainingStore) -> KernelModel:
        network = CKN(NetworkConfig(1, (LayerConfig(4, 3, subsampling=2),)))
        network.load_state_dict(start)
        held_out = (images[30:], labels[30:])
        settings: dict[str, Any] = {"regularization": 1 / 30, "recipe": recipe, "validation": held_out, "progress": False}
        return train_supervised(network, images[:30], labels[:30], store=store, **settings).model

    straight = train(new_run(tmp_path / "straight"))
    with pytest.raises(StoppedError):
        train(Interrupted.open(tmp_path / "broken", CONFIG, resume=False))
    assert epochs_in(tmp_path / "broken") == [0, 1, 2]
    again = resumed(tmp_path / "broken")
    mended = train(again)
    again.finish(mended)
    for (name, expected), (_, found) in zip(straight.state_dict().items(), mended.state_dict().items(), strict=True):
        assert torch.equal(found, expected), name
    assert epochs_in(tmp_path / "broken") == [0, 1, 2, 3, 4]

    def figures(name: str) -> list[EpochRecord]:
        found = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in found]

    assert figures("broken") == figures("straight")
    best = [load(tmp_path / name / "best.safetensors").state_dict() for name in ("straight", "broken")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    assert names(tmp_path / "broken") == [
        "best.safetensors",
        "config.json",
        "curves.png",
        "environment.json",
        "last.safetensors",
        "metrics.jsonl",
        "model.safetensors",
    ]
