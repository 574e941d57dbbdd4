"""The command line under torchrun: two processes do the work of one, and if one of them ends, so does the job.

A process waits for another for ten minutes: a test that takes less shows that nobody waited in vain.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_interruption import PROGRAM as TINY
from test_interruption import Job, Outcome, assert_same, contents, ended, experiment

from sckn.processes import Processes

GONE = r"sckn: another process of this job ended or cannot be reached \([^\n]+\); start the job again with --resume\n"


@contextmanager
def torchrun(
    job: Job, *options: str, program: tuple[str, ...] = (str(TINY),), look: float = 0.1, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """An experiment in two processes; torchrun looks after them every so many seconds."""
    job.folder.mkdir(exist_ok=True)
    toml = job.folder / "tiny.toml"
    toml.write_text(experiment(job.epochs))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--monitor-interval={look}"]
    start += [f"--log-dir={job.folder.parent}"]  # torchrun leaves an empty folder behind
    start += ["-m", "--", "sckn"] if program == ("sckn",) else ["--", *program]
    folders = ["--data", str(job.folder / "none"), "--run", str(job.run), "--results", str(job.results)]
    with subprocess.Popen(
        [*start, "train", str(toml), *folders, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TINY_WITHOUT_CURVES": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # so that it ends those it has started


def finished(job: Job, *options: str, **settings: Any) -> Outcome:
    with torchrun(job, *options, **settings) as process:
        return ended(process)


def figures(job: Job, training: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.run / "seed-0" / training / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Outcome]:
    """An experiment that two processes have finished."""
    job = Job(tmp_path_factory.mktemp("together"), epochs=3)
    outcome = finished(job)
    assert outcome.code == 0, outcome.err
    return job, outcome


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path, together: tuple[Job, Outcome]) -> None:
    shared, outcome = together
    alone = Job(tmp_path / "alone", epochs=3)
    expected = alone.finish()
    assert expected.code == 0
    # what is printed and written there is once, whatever the number of processes
    said = outcome.out.replace(str(shared.folder), str(alone.folder)).splitlines()
    assert len(said) == len(expected.out.splitlines())
    assert [line for line in said if line.startswith(("tiny", "seed"))] == [
        line for line in expected.out.splitlines() if line.startswith(("tiny", "seed"))
    ]
    assert sorted(contents(shared.run)) == sorted(contents(alone.run))
    assert sorted(path.name for path in shared.folder.iterdir()) == ["results", "run", "tiny.toml"]
    # the same course, up to rounding
    for training in ("lambda-2^4", "lambda-2^8", "final"):
        courses = [figures(job, training) for job in (alone, shared)]
        assert [len(course) for course in courses] == [len(courses[0])] * 2
        for one, other in zip(*courses, strict=True):
            for name in ("objective", "loss"):
                assert other[name] == pytest.approx(one[name], rel=1e-3), (training, one["epoch"], name)
            assert other["accepted"] == one["accepted"]
            assert other["active_fraction"] == pytest.approx(one["active_fraction"], abs=0.05)
    # and the same choice
    reports = [json.loads((job.run / "report.json").read_text())[0] for job in (alone, shared)]
    for name in ("lambda_exponent", "epochs", "validation_errors", "test_error"):
        assert reports[1][name] == reports[0][name], name


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_ends_the_job_which_can_go_on(tmp_path: Path, rank: int, together: tuple[Job, Outcome]) -> None:
    """In the second lambda. Torchrun looks seldom, so that the survivor notices by itself."""
    job = Job(tmp_path / "job", epochs=3)
    outcome = finished(job, look=20, TINY_LEAVE=f"{rank}:5")
    assert outcome.code == 1  # that of torchrun
    assert len(re.findall(GONE, outcome.err)) == 1, outcome.err
    assert outcome.err.count("sckn: ") == 1
    assert 'train_tiny.py", line' not in outcome.err  # no traceback of ours: torchrun shows one of its own
    assert job.epochs_of("lambda-2^4") == 4
    assert job.epochs_of("lambda-2^8") == 2
    assert job.epochs_of("final") == 0
    for _ in range(2):  # the second time nothing is left to train
        again = finished(job, "--resume")
        assert again.code == 0, again.err
        assert_same(job, together[0])


@pytest.mark.slow
def test_torchrun_told_to_end_ends_all_in_order(tmp_path: Path, together: tuple[Job, Outcome]) -> None:
    job = Job(tmp_path / "job", epochs=3)
    with torchrun(job) as process:
        job.wait_for(process, "lambda-2^8", 2)
        process.send_signal(signal.SIGTERM)
        outcome = ended(process)
    assert outcome.code != 0
    sentences = re.findall(r"^sckn: .*\n", outcome.err, re.MULTILINE)
    stopped = f"sckn: stopped; what was finished is in {job.run}, go on with --resume\n"
    assert stopped in sentences
    assert all(sentence == stopped or re.fullmatch(GONE, sentence) for sentence in sentences)
    assert job.epochs_of("final") == 0
    again = finished(job, "--resume")
    assert again.code == 0, again.err
    assert_same(job, together[0])


@pytest.mark.slow
def test_a_folder_that_the_first_process_cannot_use_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", epochs=1)
    job.folder.mkdir()
    job.run.write_text("a file")
    outcome = finished(job, look=20)
    assert outcome.code == 1
    assert outcome.err.count(f"sckn: {job.run} is not a folder; choose another one for the run\n") == 1
    assert len(re.findall(GONE, outcome.err)) == 1
    assert job.run.read_text() == "a file"
    assert not job.results.exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_data_that_one_process_does_not_find_ends_the_job(tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path / "job", epochs=1)
    outcome = finished(job, look=20, TINY_BLIND=str(rank))
    assert outcome.code == 1
    assert outcome.err.count("sckn: there is no data here\n") == 1
    assert len(re.findall(GONE, outcome.err)) == 1
    assert not job.results.exists()


@pytest.mark.slow
def test_the_command_in_the_help_works(tmp_path: Path) -> None:
    """`torchrun ... -m -- sckn train ...`: the arguments reach sckn, which finds no data."""
    job = Job(tmp_path / "job", epochs=1)
    outcome = finished(job, program=("sckn",), look=20)
    assert outcome.code == 1
    assert outcome.out == f"tiny: reading {job.folder}/none, preparing the images, then 1 run(s) ...\n"
    assert outcome.err.count(f"sckn: {job.folder}/none does not exist: expected data_batch_1.bin") == 2
    assert [path.name for path in job.folder.iterdir()] == ["tiny.toml"]


# -- the sentence -----------------------------------------------------------------------------------------------------

CALLS = {
    "all_reduce": lambda processes: processes.sum(torch.ones(2)),
    "broadcast": lambda processes: processes.same(torch.ones(2)),
    "broadcast_object_list": lambda processes: processes.broadcast("object"),
    "all_gather": lambda processes: processes.gathered(torch.ones(2)),
    "barrier": lambda processes: processes.wait(),
}
CLOSED = (
    "[/__w/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7603. "
    "This is typically caused by a remote worker crashing."
)


def fail(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(dist, name, failing)


@pytest.mark.parametrize("name", CALLS)
def test_every_exchange_tells_that_another_process_is_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, name, RuntimeError(CLOSED))
    with pytest.raises(ConnectionError) as caught:
        CALLS[name](Processes(0, 2))
    assert caught.value.errno == errno.ECONNABORTED
    assert caught.value.strerror == (
        "another process of this job ended or cannot be reached (Connection closed by peer [127.0.0.1]:7603); "
        "start the job again with --resume"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26021: Connection reset by peer. This is"),
        RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete"),
        RuntimeError("[/gloo/transport/tcp/pair.cc:68] writev [10.0.0.1]:23: Broken pipe"),
        RuntimeError("Application timeout caused pair closure"),
        dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited\nncclRemoteError: failed"),
        dist.DistNetworkError("The client socket has failed to connect to [host]:29500"),
    ],
    ids=lambda error: str(error)[-30:],
)
def test_each_way_to_be_gone_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "all_reduce", error)
    with pytest.raises(ConnectionError, match=r"another process of this job ended or cannot be reached \(.+\); ") as caught:
        Processes(1, 2).sum(torch.ones(2))
    assert "\n" not in str(caught.value)
    assert "/gloo/" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 16 vs 8. A connection"),
        RuntimeError("Invalid scalar type"),
        ValueError("Connection closed by peer"),
    ],
    ids=str,
)
def test_mistakes_stay_what_they_are(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "all_reduce", error)
    with pytest.raises(type(error)) as caught:
        Processes(1, 2).sum(torch.ones(2))
    assert caught.value is error
