"""Many visitors at once: no photograph is lost, memory stays bounded, and the health check is answered throughout."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from serving import Running, encoded, photograph
from tiny_upscaler import tiny_upscaler

MIB = 2**20


@dataclass
class Watch:
    """What was seen while there was work."""

    seconds: list[float] = field(default_factory=list)
    memory: list[dict[int, int]] = field(default_factory=list)


@contextmanager
def watching(server: Running) -> Iterator[Watch]:
    """Ask for health and look at the memory all the while."""
    seen, over = Watch(), threading.Event()

    def look() -> None:
        while not over.is_set():
            start = time.monotonic()
            assert server.get("/api/health").json["status"] == "ok"
            seen.seconds.append(time.monotonic() - start)
            seen.memory.append(server.processes())
            over.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
            looking.result()


def visit(server: Running, seeds: range, size: int) -> list[int]:
    """A client with several photographs, all uploaded before the first is fetched; gives how far each result is off."""
    jobs = {seed: server.start(encoded(photograph(size, size, seed), "JPEG", quality=90), quality="fast") for seed in seeds}
    differences = []
    while jobs:
        for seed, job in list(jobs.items()):
            status = server.get(f"/api/jobs/{job}").json
            assert status["state"] in ("waiting", "running", "done"), status
            if status["state"] == "done":
                differences.append(fetched(server, seed, job, size))
                del jobs[seed]
        time.sleep(0.2)
    return differences


def fetched(server: Running, seed: int, job: str, size: int) -> int:
    result = server.result(job)
    assert result.size == (2 * size, 2 * size)
    assert server.ask("DELETE", f"/api/jobs/{job}").status == 204
    # each has its own photograph: others differ by far more
    middle = np.asarray(result.resize((size // 8, size // 8))).astype(int)
    expected = np.asarray(photograph(size, size, seed).resize((size // 8, size // 8))).astype(int)
    return int(np.abs(middle - expected).mean())


@pytest.mark.parametrize(
    ("photos", "clients", "size"), [(12, 4, 256), pytest.param(50, 8, 512, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_many_at_once(server: Running, photos: int, clients: int, size: int) -> None:
    with server.job(encoded(photograph(size, size)), quality="fast") as job:
        server.wait(job)  # the worker has begun, and has its model
    before = server.processes()
    start = time.monotonic()
    with watching(server) as seen, ThreadPoolExecutor(clients) as pool:
        visits = [pool.submit(visit, server, range(first, photos, clients), size) for first in range(clients)]
        differences = [each for done in visits for each in done.result()]
    seconds = time.monotonic() - start
    assert len(differences) == photos
    assert max(differences) < 8
    assert server.get("/api/health").json == {"status": "ok", "waiting": 0, "running": 0}
    assert server.files() == []
    assert max(seen.seconds) < 5
    own = max(each[server.process.pid] for each in seen.memory) - before[server.process.pid]
    most = max(sum(each.values()) for each in seen.memory) - sum(before.values())
    figures = f"{photos} photos in {seconds:.1f} s, health in at most {max(seen.seconds):.2f} s, "
    figures += f"server + {own / MIB:.0f} MiB, all processes + {most / MIB:.0f} MiB over {sum(before.values()) / MIB:.0f}"
    assert own < 100 * MIB, figures
    assert most < 400 * MIB, figures
    assert len(seen.memory[-1]) == len(before)  # no more processes than before


def test_photographs_differ() -> None:
    """What the test above relies on."""
    upscaler = tiny_upscaler(2, 0.0)
    one, other = (np.asarray(upscaler.upscale(photograph(64, 64, seed), progress=False)).astype(int) for seed in (0, 1))
    assert np.abs(one - other).mean() > 20


def test_threads_of_workers_sleep_while_they_wait(server: Running) -> None:
    """Where several visitors share the cores, spinning would cost each of them ten times the time."""
    workers = [process for process in server.processes() if process != server.process.pid]
    assert workers
    for process in workers:
        assert b"OMP_WAIT_POLICY=PASSIVE" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
