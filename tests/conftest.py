"""What every test shares: a random state of its own, so that no test depends on which ran before it."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def own_random_state() -> Iterator[None]:
    """Modules draw their first weights from torch's global generator: each test finds it at seed 0 and leaves it untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
