"""Trainings that something ends: real processes, killed at any moment, stopped, or without room on the disk.

Whatever it was, `--resume` goes on to the model, figures and files of a run that nothing ended, to the last bit.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors import safe_open
from test_files import without_privileges
from test_runs import folder_for_all
from train_tiny import striped

from sckn import cli
from sckn.training import experiment as experiments

PROGRAM = Path(__file__).with_name("train_tiny.py")
PATIENCE = 300  # seconds, for a process that would otherwise hang here

# Everything that has a state: momentum, averages, a preconditioner, alphas, frames, the active set.
TOML = """
name = "tiny"
dataset = "cifar10"
patches = PATCHES
iterations = 20
lambda_exponents = [4, 8]

[network]
in_channels = 3

[[network.layers]]
filters = 8
patch = 3
subsampling = 2.0
inverse_root = "moving_frame"
kernel = { name = "Exponential", alpha = 4.0, learnable = true }

[[network.layers]]
filters = 8
patch = 1
inverse_root = "newton_schulz"

[recipe]
epochs = EPOCHS
batch_size = 32
learning_rate = 0.03
averaging = 0.9
preconditioner = 0.1
flip = true
shift = 1
solver_tolerance = 1e-2
"""


def experiment(epochs: int, patches: int = 500) -> str:
    return TOML.replace("EPOCHS", str(epochs)).replace("PATCHES", str(patches))


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Job:
    """An experiment in a folder of its own, with its run and its results."""

    folder: Path
    epochs: int
    patches: int = 500
    curves: bool = False

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @contextmanager
    def started(self, *options: str, limit: int | None = None, **environment: str) -> Iterator["subprocess.Popen[str]"]:
        """The program at work; `limit` is for the size of a file."""
        self.folder.mkdir(exist_ok=True)
        toml = self.folder / "tiny.toml"
        toml.write_text(experiment(self.epochs, self.patches))
        folders = ["--data", str(self.folder / "none"), "--run", str(self.run), "--results", str(self.results)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        if not self.curves:
            environment["TINY_WITHOUT_CURVES"] = "1"

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs in its background
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with subprocess.Popen(
            [sys.executable, str(PROGRAM), "train", str(toml), *folders, *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def finish(self, *options: str, limit: int | None = None, **environment: str) -> Outcome:
        """As it ends by itself."""
        with self.started(*options, limit=limit, **environment) as process:
            return ended(process)

    def epochs_of(self, training: str) -> int:
        """How many epochs of a training are recorded so far, the one before the first included."""
        path = self.run / "seed-0" / training / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, process: "subprocess.Popen[str]", training: str, epochs: int) -> None:
        """Until the training is so far."""
        until(process, lambda: self.epochs_of(training) >= epochs)


def ended(process: "subprocess.Popen[str]") -> Outcome:
    out, err = process.communicate(timeout=PATIENCE)
    return Outcome(process.returncode, out, err)


def until(process: "subprocess.Popen[str]", reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, f"it ended with {process.returncode}: {stream(process.stderr).read()}"
        assert time.monotonic() < deadline, "it does not come so far"
        time.sleep(0.005)


def stream(pipe: "IO[str] | None") -> "IO[str]":
    assert pipe is not None
    return pipe


def contents(folder: Path) -> dict[str, Any]:
    """All that a run has written, by path, but for times: what two runs alike have alike."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
                found[name] = {"metadata": file.metadata(), **{key: bits(tensor) for key, tensor in tensors.items()}}
        elif path.name == "metrics.jsonl":
            found[name] = [without_time(json.loads(line)) for line in path.read_text().splitlines()]
            assert [record["epoch"] for record in found[name]] == list(range(len(found[name])))
        elif path.name == "environment.json" or path.suffix in (".png", ".html"):
            found[name] = None
        else:
            found[name] = without_time(json.loads(path.read_text()))
    return found


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes()


# What is not the same when a run is made again, perhaps with sources where a comment has changed.
PASSING = ("seconds", "command", "code_version")


def without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_time(item) for key, item in value.items() if key not in PASSING}
    return [without_time(item) for item in value] if isinstance(value, list) else value


def assert_same(found: Job, expected: Job) -> None:
    for one, other in ((found.run, expected.run), (found.results, expected.results)):
        left, right = contents(one), contents(other)
        assert sorted(left) == sorted(right)
        different = [name for name in left if left[name] != right[name]]
        assert not different


def sentence(outcome: Outcome) -> str:
    """The only line on standard error, which is one of ours."""
    assert re.fullmatch(r"sckn: [^\n]+\n", outcome.err), outcome.err
    return outcome.err.removeprefix("sckn: ").rstrip("\n")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A short run that nothing ended before its time."""
    job = Job(tmp_path_factory.mktemp("straight"), epochs=4)
    outcome = job.finish()
    assert (outcome.code, outcome.err) == (0, "")
    assert sorted(contents(job.results)) == ["tiny.json"]
    names = ["best.safetensors", "config.json", "environment.json", "last.safetensors", "metrics.jsonl", "model.safetensors"]
    for training in ("lambda-2^4", "lambda-2^8"):
        assert sorted(contents(job.run / "seed-0" / training)) == names
        assert job.epochs_of(training) == 5
    assert job.epochs_of("final") > 1
    return job


# -- killed -----------------------------------------------------------------------------------------------------------


def test_a_run_killed_twice_ends_as_if_it_had_not_been(tmp_path: Path, straight: Job) -> None:
    """Once in an epoch, once in the midst of saving."""
    job = Job(tmp_path, epochs=4)
    with job.started() as process:
        job.wait_for(process, "lambda-2^4", 3)
        process.kill()
        assert ended(process).code == -signal.SIGKILL
    killed = job.finish("--resume", TINY_KILL=f"40:{job.run}")
    assert (killed.code, killed.err) == (-signal.SIGKILL, "")
    assert job.epochs_of("final") == 0
    outcome = job.finish("--resume")
    assert (outcome.code, outcome.err) == (0, "")
    assert_same(job, straight)


@pytest.fixture(scope="module")
def marathon(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, float]:
    """A longer run, and the seconds that it computed from its first word on."""
    job = Job(tmp_path_factory.mktemp("marathon"), epochs=20, patches=50_000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with job.started() as process:
        stream(process.stdout).readline()
        first = computed(process)
        outcome = ended(process)
    assert (outcome.code, outcome.err) == (0, "")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return job, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - first


def computed(process: "subprocess.Popen[str]") -> float:
    """Seconds that a process has computed, unlike those of a clock the same on a busy machine."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the time that another process computed is known on Linux")
def test_runs_killed_at_any_moment_end_as_if_they_had_not_been(tmp_path: Path, marathon: tuple[Job, float]) -> None:
    """20 times; a run that comes to its end before is compared, and another one begun."""
    expected, seconds = marathon
    chance, number = random.Random(0), 0
    progress: list[tuple[int, ...]] = []  # at each kill: epochs of each training
    while len(progress) < 20:
        number += 1
        job, options = replace(expected, folder=tmp_path / str(number)), []
        while True:
            # once in what comes after the trainings, the report, is enough
            kill = len(progress) < 20 and not (job.run / "seed-0" / "final" / "model.safetensors").exists()
            with job.started(*options) as process:
                assert stream(process.stdout).readline().startswith("tiny: reading")
                moment = computed(process) + chance.uniform(0, seconds / 3)
                while kill and process.poll() is None and computed(process) < moment:
                    time.sleep(0.002)
                if kill:
                    process.kill()
                outcome = ended(process)
            assert outcome.err == ""
            if outcome.code == 0:
                break
            assert outcome.code == -signal.SIGKILL
            options = ["--resume"]
            progress.append(tuple(job.epochs_of(name) for name in ("lambda-2^4", "lambda-2^8", "final")))
        assert_same(job, expected)
    assert len(set(progress)) >= 8, progress  # in many epochs of all trainings


@pytest.mark.slow
def test_a_run_killed_at_any_file_it_writes_ends_as_if_it_had_not_been(tmp_path: Path, straight: Job) -> None:
    """Before a temporary file is made, filled, brought to the disk, renamed, ..., the curves included."""
    job, chance, options, kills = Job(tmp_path / "job", straight.epochs, curves=True), random.Random(1), [], 0
    while True:
        number = chance.randrange(1, 50) if kills < 20 else 0
        outcome = job.finish(*options, TINY_KILL=f"{number}:{job.folder}")
        assert outcome.err == ""
        if outcome.code == 0:
            break
        assert outcome.code == -signal.SIGKILL
        kills, options = kills + 1, ["--resume"]
    assert kills >= 10
    for training in ("lambda-2^4", "lambda-2^8", "final"):
        (job.run / "seed-0" / training / "curves.png").unlink()  # the other run has none
    assert_same(job, straight)


@pytest.mark.slow
def test_a_run_killed_at_its_last_files_ends_as_if_it_had_not_been(tmp_path: Path, straight: Job) -> None:
    """Model, report and result: before the first byte, and before the file has its name."""
    job = Job(tmp_path / "job", straight.epochs)
    shutil.copytree(straight.folder, job.folder)
    (job.run / "seed-0" / "final" / "model.safetensors").unlink()  # or the training is taken as it is
    for path in ("run/seed-0/final/.model.safetensors", "run/.report.json", "results/.tiny.json"):
        for number in (2, 5):
            killed = job.finish("--resume", TINY_KILL=f"{number}:{job.folder}/{path}")
            assert (killed.code, killed.err) == (-signal.SIGKILL, "")
            (left,) = (file for file in job.folder.rglob(".*") if file.name.startswith(Path(path).name))
            assert (left.stat().st_size > 0) == (number == 5)
    outcome = job.finish("--resume")
    assert (outcome.code, outcome.err) == (0, "")
    assert_same(job, straight)


# -- stopped ----------------------------------------------------------------------------------------------------------


def stop_and_resume(job: Job, expected: Job, number: signal.Signals, code: int, word: str) -> None:
    with job.started() as process:
        job.wait_for(process, "lambda-2^8", 2)
        process.send_signal(number)
        outcome = ended(process)
    assert outcome.code == code
    assert sentence(outcome) == f"{word}; what was finished is in {job.run}, go on with --resume"
    assert job.epochs_of("final") == 0
    again = job.finish("--resume")
    assert (again.code, again.err) == (0, "")
    assert_same(job, expected)


@pytest.mark.slow
def test_sigterm_stops_in_order(tmp_path: Path, straight: Job) -> None:
    stop_and_resume(Job(tmp_path, epochs=4), straight, signal.SIGTERM, 143, "stopped")


@pytest.mark.slow
def test_an_interrupt_stops_in_order(tmp_path: Path, straight: Job) -> None:
    stop_and_resume(Job(tmp_path, epochs=4), straight, signal.SIGINT, 130, "interrupted")


# -- no room ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_stops_a_run_that_can_go_on(tmp_path: Path, straight: Job) -> None:
    """Small files fit, the state does not any more."""
    job = Job(tmp_path, epochs=4)
    with job.started() as process:
        job.wait_for(process, "lambda-2^8", 2)
        process.kill()
        ended(process)
    place = job.run / "seed-0" / "lambda-2^8"
    last = (place / "last.safetensors").read_bytes()
    outcome = job.finish("--resume", limit=len(last) - 1000)
    assert outcome.code == 1
    assert sentence(outcome) == (
        f"{place}/last.safetensors cannot be written (File too large); the last checkpoint is intact: "
        "mend this and go on with --resume"
    )
    assert (place / "last.safetensors").read_bytes() == last
    again = job.finish("--resume")
    assert (again.code, again.err) == (0, "")
    assert_same(job, straight)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A file system of its own at this path."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.slow
def test_a_small_disk_stops_a_run_that_can_go_on_once_there_is_room(tmp_path: Path, straight: Job) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, "80k"):
        job = Job(folder, epochs=4)
        outcome = job.finish()
        assert outcome.code == 1
        assert re.search(r"cannot be written \(No space left on device\); .* go on with --resume$", sentence(outcome))
        assert not [path for path in folder.rglob(".*") if path.is_file()]
        subprocess.run(["mount", "-o", "remount,size=10m", str(folder)], check=True)
        again = job.finish("--resume")
        assert (again.code, again.err) == (0, "")
        assert_same(job, straight)


# -- what cannot begin ------------------------------------------------------------------------------------------------


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence of a command that fails, in this process."""
    monkeypatch.setattr(sys, "argv", ["sckn", "train", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    return sentence(Outcome(1, "", capsys.readouterr().err))


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(experiment(epochs=1))
    return path


def test_a_missing_data_folder_leaves_nothing(
    tmp_path: Path, toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--data", str(tmp_path / "none"), "--run", str(tmp_path / "run"), "--results", str(tmp_path / "results")]
    assert "none does not exist: expected data_batch_1.bin" in refusal(monkeypatch, capsys, str(toml), *folders)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_a_broken_experiment_leaves_nothing(
    tmp_path: Path, toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toml.write_text(toml.read_text() + "epochs = [")
    folders = ["--data", "none", "--run", str(tmp_path / "run"), "--results", str(tmp_path / "results")]
    assert "tiny.toml is not valid TOML" in refusal(monkeypatch, capsys, str(toml), *folders)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ("file", "file is not a folder; choose another one for the run"),
        ("file/below", "below is not a folder; choose another one for the run"),
        ("/proc/run", r"the folder /proc/run cannot be used (No such file or directory); choose another one"),
    ],
)
def test_a_run_that_is_no_folder_leaves_nothing(
    tmp_path: Path, toml: Path, run: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also root cannot make one in /proc."""
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    (tmp_path / "file").write_text("mine")
    folders = ["--data", "none", "--run", str(tmp_path / run), "--results", str(tmp_path / "results")]
    assert refusal(monkeypatch, capsys, str(toml), *folders).endswith(complaint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tiny.toml"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    with folder_for_all() as folder:
        toml = folder / "tiny.toml"
        toml.write_text(experiment(epochs=1))
        folder.chmod(0o555)
        folders = ["--data", "none", "--run", str(folder / "run"), "--results", str(folder / "results")]
        with without_privileges():
            complaint = refusal(monkeypatch, capsys, str(toml), *folders)
        folder.chmod(0o755)
        assert complaint == f"the folder {folder}/run cannot be used (Permission denied); choose another one"
        assert [path.name for path in folder.iterdir()] == ["tiny.toml"]
