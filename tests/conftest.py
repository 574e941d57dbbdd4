"""What tests share: a random state of their own, so that no test depends on which ran before it, and the digits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from serving import server  # noqa: F401  (a fixture, which is started once for all tests)
from sklearn.datasets import load_digits


@pytest.fixture(autouse=True)
def own_random_state() -> Iterator[None]:
    """Modules draw their first weights from torch's global generator: each test finds it at seed 0 and leaves it untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 1, 8, 8) in [0, 1] and labels, shuffled: the file has them by writer."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    return images[order].reshape(-1, 1, 8, 8) / 16, labels[order]
