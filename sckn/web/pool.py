"""Several workers and a line in front of them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sckn.web.worker import Report, Worker

__all__ = ["Pool"]


class Pool:
    """Tasks are done in the order in which they come, as many at a time as there are workers.

    Cancelling an asyncio task that waits for `run` stops the work.
    """

    def __init__(self, workers: int, threads: int) -> None:
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._waiting = ThreadPoolExecutor(workers, thread_name_prefix="sckn-worker")  # threads that wait for processes
        for _ in range(workers):
            self._idle.put_nowait(Worker(threads))

    async def run(
        self,
        task: Callable[..., Any],
        *,
        seconds: float,
        started: Callable[[], None] | None = None,
        report: Report | None = None,
        **arguments: Any,
    ) -> Any:
        """What `task(**arguments)` gives; a TimeoutError if that takes more than `seconds`, not counting the wait before it."""
        worker = await self._idle.get()
        try:
            if started is not None:
                started()
            return await self._run(worker, task, arguments, report, seconds)
        finally:
            self._idle.put_nowait(worker)

    async def _run(
        self, worker: Worker, task: Callable[..., Any], arguments: dict[str, Any], report: Report | None, seconds: float
    ) -> Any:
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def report_in_loop(done: int, total: int) -> None:
            if report is not None:
                loop.call_soon_threadsafe(report, done, total)

        run = loop.run_in_executor(self._waiting, worker.run, task, arguments, None if report is None else report_in_loop, stop)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(run)
        except (TimeoutError, asyncio.CancelledError):
            worker.kill(stop)
            with suppress(Exception):
                await run  # it fails as soon as the process is gone
            raise

    def close(self) -> None:
        """When nothing runs any more: end the processes."""
        while not self._idle.empty():
            self._idle.get_nowait().close()
        self._waiting.shutdown()
