"""Jobs: photographs of visitors from their upload to the deletion of the result.

A job is known by an id that cannot be guessed, which only its visitor has, and all its files are in a folder of its own. It
vanishes when it is deleted, when nobody has asked about it for a while, when its result was kept long enough, and when the
server stops.
"""

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from sckn.web.limits import Limits, RefusalError
from sckn.web.pool import Pool
from sckn.web.tasks import upscale
from sckn.web.worker import WorkerError, WorkerLostError

__all__ = ["Job", "Jobs", "State"]

State = Literal["waiting", "running", "done", "failed"]
SWEEP_SECONDS = 0.5
# Seconds after which those who watch are told something, so that it is noticed if they are gone.
HEARTBEAT_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A photograph that is made larger, or will be, or was."""

    folder: Path
    name: str
    scale: int
    model: str
    suffix: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    state: State = "waiting"
    size: tuple[int, int] = (0, 0)
    tiles_done: int = 0
    tiles: int = 0
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    watchers: int = 0
    last_asked: float = field(default_factory=monotonic)
    ended: float | None = None
    work: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def upload(self) -> Path:
        return self.folder / "upload"

    @property
    def result(self) -> Path:
        return self.folder / f"result{self.suffix}"

    @property
    def result_name(self) -> str:
        """Under which a visitor gets the result."""
        return f"{Path(self.name).stem}-x{self.scale}{self.suffix}"

    def change(self, **values: Any) -> None:
        """Set attributes and wake those who watch."""
        for name, value in values.items():
            setattr(self, name, value)
        self.changed.set()
        self.changed = asyncio.Event()


class Jobs:
    """All jobs of the server."""

    def __init__(self, pool: Pool, limits: Limits, device: str, folder: Path) -> None:
        self._pool, self._limits, self._device, self._folder = pool, limits, device, folder
        self._jobs: dict[str, Job] = {}  # in the order of their coming
        self._closed = False

    def count(self, *states: State) -> int:
        """How many jobs are in one of these states."""
        return sum(job.state in states for job in self._jobs.values())

    def refuse_if_full(self) -> None:
        """A RefusalError, if there is no room for one more job."""
        if self._closed:
            raise RefusalError(503, "the server is being stopped; try again later")
        if self.count("waiting", "done", "failed") >= self._limits.queue:
            raise RefusalError(503, f"{self._limits.queue} photos are waiting here already; try again in a while")

    def admit(self, name: str, *, scale: int, model: str, suffix: str) -> Job:
        """A new job with an empty folder; it is to be started or removed."""
        self.refuse_if_full()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        job = Job(folder, name, scale=scale, model=model, suffix=suffix)
        self._jobs[job.id] = job
        return job

    def start(self, job: Job, size: tuple[int, int]) -> None:
        """Put it into the line; `size` is that of the result, width and height."""
        job.size, job.last_asked = size, monotonic()
        job.work = asyncio.create_task(self._work(job))

    def find(self, key: str) -> Job:
        """The job with an id, which is thereby asked about."""
        job = self._jobs.get(key)
        if job is None or job.work is None:
            raise RefusalError(404, "there is no such job; it was deleted, or nobody asked about it in time: start again")
        job.last_asked = monotonic()
        return job

    def ahead_of(self, job: Job) -> int:
        """How many jobs come before one that waits."""
        ahead = 0
        for other in self._jobs.values():
            if other is job:
                break
            ahead += other.state == "waiting"
        return ahead + self.count("running") if job.state == "waiting" else 0

    async def watch(self, job: Job) -> AsyncIterator[Job]:
        """The job whenever it has changed, and now and then if not, until it has come to its end or was removed."""
        job.watchers += 1
        try:
            while job.id in self._jobs:
                changed = job.changed
                yield job
                if job.ended is not None:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await changed.wait()
        finally:
            job.watchers -= 1
            job.last_asked = monotonic()

    async def remove(self, job: Job) -> None:
        """Stop the work, and delete all files."""
        self._jobs.pop(job.id, None)
        if job.work is not None:
            job.work.cancel()
            await asyncio.wait([job.work])  # else it might write into the folder once more
        job.change()
        self._tell_those_who_wait()
        await asyncio.to_thread(shutil.rmtree, job.folder, ignore_errors=True)

    async def sweep(self) -> None:
        """Remove jobs when their time is over, without end."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = monotonic()
            for job in list(self._jobs.values()):
                abandoned = job.ended is None and not job.watchers and now - job.last_asked > self._limits.patience
                if job.work is not None and (abandoned or (job.ended is not None and now - job.ended > self._limits.keep)):
                    await self.remove(job)

    async def close(self) -> None:
        """Remove all jobs; those who watch are told, and nothing more is admitted."""
        self._closed = True
        for job in list(self._jobs.values()):
            await self.remove(job)

    async def _work(self, job: Job) -> None:
        def started() -> None:
            job.change(state="running")
            self._tell_those_who_wait()

        try:
            notes = await self._pool.run(
                upscale,
                seconds=self._limits.seconds,
                started=started,
                report=lambda done, total: job.change(tiles_done=done, tiles=total),
                path=str(job.upload),
                target=str(job.result),
                model=job.model,
                scale=job.scale,
                memory_gib=self._limits.memory,
                device=self._device,
            )
            job.change(state="done", notes=notes, ended=monotonic())
        except TimeoutError:
            self._fail(job, f"the work took more than {self._limits.seconds:g} seconds; choose fast, or a smaller photo")
        except RefusalError as refusal:
            self._fail(job, refusal.sentence)
        except WorkerLostError:
            self._fail(job, "the work broke off, perhaps for lack of memory; choose a smaller photo or scale")
        except WorkerError as error:
            log.error("%s", error)
            self._fail(job, "something went wrong in the server, which its keeper can read in its log")
        job.upload.unlink(missing_ok=True)

    def _fail(self, job: Job, problem: str) -> None:
        job.change(state="failed", problem=problem, ended=monotonic())

    def _tell_those_who_wait(self) -> None:
        for job in self._jobs.values():
            if job.state == "waiting":
                job.change()
