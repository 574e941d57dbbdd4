"""Processes that share work: what they exchange, with real ones. Other tests find their processes here, too: `team`."""

import atexit
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sckn.processes import ALONE, Processes, joined_processes, own_device

# Seconds: nothing here takes long, so that what does has come to a standstill.
EXCHANGE, ANSWER = 60, 180


class Team:
    """Processes on this machine, joined, that do what they are told, all the same thing at the same time."""

    def __init__(self, count: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.lines: list[Connection] = []
        self.members = []
        context = _context()
        for rank in range(count):
            line, end = context.Pipe()
            member = context.Process(target=_member, args=(rank, count, self.folder.name, end), daemon=True)
            member.start()
            end.close()
            self.lines.append(line)
            self.members.append(member)

    def outcomes(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What task(processes, *arguments) gave in each process, in the order of their ranks; an exception where it failed."""
        for line in self.lines:
            line.send_bytes(pickle.dumps((task, arguments)))
        deadline, outcomes = time.monotonic() + ANSWER, []
        for rank, line in enumerate(self.lines):
            try:
                if not line.poll(max(0, deadline - time.monotonic())):
                    raise TimeoutError
                outcomes.append(pickle.loads(line.recv_bytes()))
            except (TimeoutError, EOFError) as error:
                self.end()
                pytest.fail(f"process {rank} of {len(self.lines)} has not answered: {error!r}")
        if any(isinstance(outcome, RuntimeError | ConnectionError) for outcome in outcomes):
            self.end()  # after a failed exchange the connections are of no more use; the next test gets a new team
        return outcomes

    def run(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """As `outcomes`, where none may fail."""
        outcomes = self.outcomes(task, *arguments)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def end(self) -> None:
        for line in self.lines:
            line.close()  # which a member at leisure takes for its dismissal
        for member in self.members:
            member.join(5)
            member.terminate()
            member.join()
        self.folder.cleanup()
        team.cache_clear()


def _context() -> Any:
    """How processes are started: where that is safe, as copies of one that has imported PyTorch and holds nothing else."""
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(["sckn", "pytest"])
    return context


def _member(rank: int, count: int, folder: str, line: Connection) -> None:
    torch.set_num_threads(1)
    # they meet in a file, which unlike a port nobody else can take
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count, timeout=timedelta(seconds=EXCHANGE)
    )
    while True:
        try:
            task, arguments = pickle.loads(line.recv_bytes())
        except EOFError:
            return
        try:
            outcome = task(Processes(rank, count), *arguments)
        except Exception as error:
            outcome = error
        line.send_bytes(pickle.dumps(outcome))


@cache
def team(count: int) -> Team:
    """One team of each size for all tests: to start it takes seconds."""
    made = Team(count)
    atexit.register(made.end)
    return made


TEAMS = [2, 3]


def test_alone_there_is_nothing_to_do() -> None:
    part = torch.randn(3, 2, requires_grad=True)
    assert ALONE.sum(part) is part
    assert ALONE.same(part) is part
    assert ALONE.interleaved(part) is part
    assert torch.equal(ALONE.gathered(part), part[None])
    assert ALONE.first
    assert list(range(5))[ALONE.share] == [0, 1, 2, 3, 4]
    ALONE.wait()


def test_every_sample_has_one_process() -> None:
    for count in (1, 2, 3, 7):
        for total in (0, 1, 2, 5, 6, 20):
            shares = [list(range(total))[Processes(rank, count).share] for rank in range(count)]
            assert sorted(itertools.chain(*shares)) == list(range(total))
            assert all(sample % count == rank for rank, share in enumerate(shares) for sample in share)
            assert Processes(0, count).share_sizes(total) == [len(share) for share in shares]
    assert [Processes(rank, 3).first for rank in range(3)] == [True, False, False]


@pytest.mark.parametrize(("rank", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_that_does_not_exist_is_refused(rank: int, count: int) -> None:
    with pytest.raises(ValueError, match=rf"process {rank} of {count} does not exist"):
        Processes(rank, count)


def parts(count: int) -> list[Tensor]:
    return [torch.randn(5, 4, generator=torch.Generator().manual_seed(rank)) for rank in range(count)]


def exchange(processes: Processes) -> tuple[Tensor, ...]:
    """Of a part that requires a gradient, and of one that only the first process does not hold in the order of memory."""
    part = parts(processes.count)[processes.rank]
    before = part.clone()
    part.requires_grad_()
    across = part.T if processes.first else part.T.contiguous()
    found = processes.sum(part), processes.sum(across), processes.same(part), processes.same(across), processes.gathered(part)
    assert torch.equal(part, before)
    assert not any(tensor.requires_grad for tensor in found)
    return found


@pytest.mark.parametrize("count", TEAMS)
def test_sums_and_copies_of_all_parts(count: int) -> None:
    given = [part.numpy() for part in parts(count)]
    found = team(count).run(exchange)
    for total, across, first, first_across, together in found:
        np.testing.assert_allclose(total.numpy(), np.sum(given, axis=0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(across.numpy(), np.sum(given, axis=0).T, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(first.numpy(), given[0])
        np.testing.assert_array_equal(first_across.numpy(), given[0].T)
        np.testing.assert_array_equal(together.numpy(), np.stack(given))
    for total, across, *_ in found[1:]:  # to the last bit
        assert torch.equal(total, found[0][0])
        assert torch.equal(across, found[0][1])


def of_nothing(processes: Processes) -> list[tuple[int, ...]]:
    empty = torch.empty(0, 3)
    found = processes.sum(empty), processes.same(empty), processes.gathered(empty), processes.interleaved(empty)
    return [tuple(tensor.shape) for tensor in found]


@pytest.mark.parametrize("count", TEAMS)
def test_what_is_empty_stays_so(count: int) -> None:
    assert team(count).run(of_nothing) == [[(0, 3), (0, 3), (count, 0, 3), (0, 3)]] * count


def put_together(processes: Processes, rows: Tensor) -> Tensor:
    return processes.interleaved(rows[processes.share])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (4,), (1, 2, 3)])
@pytest.mark.parametrize("count", TEAMS)
def test_shares_put_together_are_the_whole(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Also where the shares are unequal, and where a process has none."""
    for total in (0, 1, 2, 3, 4, 5, 9):
        rows = (100 * torch.rand(total, *shape)).to(dtype)
        for whole in team(count).run(put_together, rows):
            assert whole.dtype == dtype
            assert torch.equal(whole, rows)


def of_shapes(processes: Processes, shapes: list[tuple[int, ...]]) -> Tensor:
    return processes.interleaved(torch.zeros(shapes[processes.rank]))


@pytest.mark.parametrize(
    ("shapes", "message"), [([(2, 4), (3, 4)], r"hold \[2, 3\] rows"), ([(2, 4), (2, 5)], "rows of different shapes")]
)
def test_what_cannot_be_put_together_is_refused_by_all(shapes: list[tuple[int, ...]], message: str) -> None:
    outcomes = team(2).outcomes(of_shapes, shapes)
    for outcome in outcomes:
        with pytest.raises(ValueError, match=message):
            raise outcome
    assert [len(whole) for whole in team(2).run(of_shapes, [(3, 4), (2, 4)])] == [5, 5]  # and they go on together


def late(processes: Processes) -> tuple[float, float]:
    if processes.first:
        time.sleep(0.5)
    arrived = time.time()
    processes.wait()
    return arrived, time.time()


@pytest.mark.parametrize("count", TEAMS)
def test_nobody_goes_on_before_all_are_there(count: int) -> None:
    times = team(count).run(late)
    assert min(left for _, left in times) >= max(arrived for arrived, _ in times)


# Says what it found in one line; with an argument, the first process waits so many seconds for the other.
JOINED = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import sckn.processes
from sckn.processes import joined_processes

patience = float(sys.argv[1]) if len(sys.argv) > 1 else None
if patience:
    sckn.processes.PATIENCE = timedelta(seconds=patience)
here = Path(__file__).parent
(here / os.environ["RANK"]).touch()
while not all((here / rank).exists() for rank in "01"):  # to start may take one longer than the other
    time.sleep(0.05)
with joined_processes(torch.device("cpu")) as processes:
    if patience and not processes.first:
        time.sleep(5 * patience)
    total = processes.sum(torch.tensor([1.0 + processes.rank]))
    processes.wait()
    sys.stdout.write(f"process {processes.rank} of {processes.count}: {float(total)}\\n")
"""


def torchrun(count: int, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=ANSWER, check=False)


def test_processes_that_torchrun_started_are_joined(tmp_path: Path) -> None:
    script = tmp_path / "joined.py"
    script.write_text(JOINED)
    done = torchrun(2, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["process 0 of 2: 3.0", "process 1 of 2: 3.0"]


@pytest.mark.slow
def test_a_lost_process_is_not_waited_for_without_end(tmp_path: Path) -> None:
    script = tmp_path / "joined.py"
    script.write_text(JOINED)
    done = torchrun(2, script, "4")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "4000ms" in done.stderr, done.stderr


@pytest.mark.parametrize("said", [None, "1"])
def test_without_torchrun_a_process_is_alone(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if said:
        monkeypatch.setenv("WORLD_SIZE", said)
    with joined_processes(torch.device("cpu")) as processes:
        assert processes == ALONE
        assert not dist.is_initialized()


def test_a_build_without_distributed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with (
        pytest.raises(RuntimeError, match=r"4 processes, but this PyTorch was built without torch\.distributed"),
        joined_processes(torch.device("cpu")),
    ):
        pass


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert own_device(torch.device("cuda")) == torch.device("cuda", 2)
    assert own_device(torch.device("cuda:0")) == torch.device("cuda", 0)
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"process 2 of this machine has no GPU of its own: there are 2"):
        own_device(torch.device("cuda"))
    monkeypatch.delenv("WORLD_SIZE")
    assert own_device(torch.device("cuda")) == torch.device("cuda")
