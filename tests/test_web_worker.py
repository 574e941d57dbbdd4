"""Processes that work, are killed, die, and are replaced."""

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sckn.web import worker as module
from sckn.web.limits import RefusalError
from sckn.web.pool import Pool
from sckn.web.worker import Worker, WorkerError, WorkerLostError

# -- tasks, which the process finds by their names ----------------------------------------------------------------------


def number_of_process() -> int:
    return os.getpid()


def count(report: Callable[[int, int], None], to: int) -> str:
    for number in range(1, to + 1):
        report(number, to)
    return "counted"


def wait_for(duration: float) -> None:
    time.sleep(duration)


def refuse() -> None:
    raise RefusalError(415, "not an image")


def fail() -> None:
    raise ZeroDivisionError("by zero")


def die() -> None:
    os._exit(9)


def run(worker: Worker, task: Callable[..., Any], report: Callable[[int, int], None] | None = None, **arguments: Any) -> Any:
    return worker.run(task, arguments, report, threading.Event())


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(threads=1)
    yield worker
    worker.close()


def test_tasks_are_done_in_another_process_one_after_the_other(worker: Worker) -> None:
    first, second = run(worker, number_of_process), run(worker, number_of_process)
    assert first == second != os.getpid()
    told: list[tuple[int, int]] = []
    assert run(worker, count, lambda *each: told.append(each), to=3) == "counted"
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_what_goes_wrong_is_told(worker: Worker) -> None:
    with pytest.raises(RefusalError, match="not an image") as caught:
        run(worker, refuse)
    assert caught.value.status == 415
    with pytest.raises(WorkerError, match="ZeroDivisionError: by zero"):
        run(worker, fail)
    assert run(worker, number_of_process) > 0


def test_a_process_that_dies_is_replaced(worker: Worker) -> None:
    before = run(worker, number_of_process)
    with pytest.raises(WorkerLostError):
        run(worker, die)
    assert run(worker, number_of_process) != before


def test_a_process_can_be_killed_in_the_midst_of_a_task(worker: Worker) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.3, worker.kill, [stop])
    timer.start()
    start = time.monotonic()
    with pytest.raises(WorkerLostError):
        worker.run(wait_for, {"duration": 60}, None, stop)
    assert time.monotonic() - start < 30
    timer.join()


def test_a_task_that_was_stopped_before_it_began_is_not_done(worker: Worker) -> None:
    stop = threading.Event()
    worker.kill(stop)
    with pytest.raises(WorkerLostError):
        worker.run(wait_for, {"duration": 60}, None, stop)


def test_a_pool_keeps_to_the_time_and_to_the_order_and_stops_what_is_cancelled() -> None:
    async def use() -> list[str]:
        pool, order = Pool(1, 1), []

        async def work(name: str, duration: float, seconds: float = 60) -> None:
            await pool.run(wait_for, seconds=seconds, started=lambda: order.append(name), duration=duration)
            order.append(f"{name} done")

        with pytest.raises(TimeoutError):
            await work("too long", 60, seconds=0.3)
        cancelled, waiting, last = (
            asyncio.create_task(work(*each)) for each in (("cancelled", 60), ("waiting", 60), ("last", 0))
        )
        while "cancelled" not in order:
            await asyncio.sleep(0.01)
        waiting.cancel()
        cancelled.cancel()
        await last
        assert cancelled.done()
        pool.close()
        return order

    start = time.monotonic()
    assert asyncio.run(use()) == ["too long", "cancelled", "last", "last done"]
    assert time.monotonic() - start < 50


def test_where_names_are_too_long_for_sockets_processes_start_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._context().get_start_method() == "forkserver"
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 80)
    assert module._context().get_start_method() == "spawn"
