"""Seconds of each phase."""

import time

import pytest
import torch

from sckn.clock import Clock


def test_each_phase_has_its_seconds() -> None:
    clock = Clock(torch.device("cpu"))
    time.sleep(0.05)
    clock.lap("first")
    clock.lap("second")
    assert list(clock.seconds) == ["first", "second"]
    assert 0.05 <= clock.seconds["first"] < 5
    assert 0 <= clock.seconds["second"] < 5


def test_a_lap_ends_where_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5, 12.0, 12.00004])
    monkeypatch.setattr("sckn.clock.perf_counter", lambda: next(times))
    clock = Clock(torch.device("cpu"))
    for phase in ("filters", "weights", "validation"):
        clock.lap(phase)
    assert clock.seconds == {"filters": 0.5, "weights": 1.5, "validation": 0.0}


@pytest.mark.gpu
def test_the_work_of_a_gpu_counts() -> None:
    matrix = torch.rand(8192, 8192, device="cuda")
    clock = Clock(matrix.device)
    for _ in range(20):
        matrix = matrix @ matrix / 8192
    clock.lap("products")
    assert torch.cuda.current_stream().query()  # all of it is done
    assert clock.seconds["products"] > 20 * 2 * 8192**3 / 2e15  # no GPU of today is that fast
