"""Which samples are active, which come back, and who holds them."""

import math

import numpy as np
import pytest
import torch

from sckn.processes import Processes
from sckn.training.active_set import ActiveSet

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_inactive(count: int, inactive: list[int]) -> ActiveSet:
    active = ActiveSet(count, CPU)
    active.flags[inactive] = False
    return active


def test_at_first_all_are_active() -> None:
    active = ActiveSet(7, CPU)
    assert active.flags.tolist() == [True] * 7
    assert active.fraction() == 1
    assert sorted(active.shuffled(generator()).tolist()) == list(range(7))


def test_an_epoch_visits_the_active_samples_in_random_order() -> None:
    active = with_inactive(100, list(range(0, 100, 3)))
    expected = [number for number in range(100) if number % 3]
    first, again, other = (active.shuffled(generator(seed)).tolist() for seed in (1, 1, 2))
    assert sorted(first) == sorted(other) == expected
    assert first == again
    assert first != other
    assert first != expected
    assert active.fraction() == len(expected) / 100


def test_every_order_is_equally_likely() -> None:
    active, state = with_inactive(5, [1, 3]), generator()
    orders = [tuple(active.shuffled(state).tolist()) for _ in range(6000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 20.5  # chi squared, 5 degrees of freedom, 1 in 1000


@pytest.mark.parametrize("part", [0.0, 0.1, 0.35, 1.0])
@pytest.mark.parametrize("inactive", [0, 1, 10, 57])
def test_a_part_of_the_inactive_comes_back(part: float, inactive: int) -> None:
    left_out = list(range(5, 5 + inactive))
    active = with_inactive(100, left_out)
    before = active.flags.clone()
    active.reactivate(part, generator())
    came_back = torch.nonzero(active.flags & ~before).flatten().tolist()
    assert len(came_back) == math.ceil(part * inactive)
    assert set(came_back) <= set(left_out)
    assert bool(active.flags[before].all())  # none leaves


def test_the_seed_decides_who_comes_back() -> None:
    found = []
    for seed in (1, 1, 2):
        active = with_inactive(200, list(range(0, 200, 2)))
        active.reactivate(0.1, generator(seed))
        found.append(active.flags)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_each_of_the_inactive_has_the_same_chance() -> None:
    times, state = torch.zeros(20), generator()
    for _ in range(2000):
        active = with_inactive(20, list(range(10)))
        active.reactivate(0.1, state)
        times += active.flags
    assert times[10:].tolist() == [2000] * 10
    assert float(((times[:10] - 200) ** 2 / 200).sum()) < 27.9  # chi squared, 9 degrees of freedom, 1 in 1000


def test_the_part_of_each_process_is_its_share() -> None:
    """Sample i of n is number i // count in process i % count, as `Processes.share` deals them."""
    samples = torch.tensor([9, 0, 4, 7, 3, 10])
    images = np.arange(11) * 100
    for count in (1, 2, 3):
        seen = []
        for rank in range(count):
            processes = Processes(rank, count)
            share = images[processes.share]
            own = ActiveSet(len(share), CPU, processes).own(samples)
            seen += share[own.numpy()].tolist()
        assert sorted(seen) == [0, 300, 400, 700, 900, 1000]
