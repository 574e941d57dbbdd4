"""Flips and shifts against a loop over pixels."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from sckn.training.augmentation import draw_moves, moved_images


def moved_pixel_by_pixel(images: Tensor, moves: Tensor) -> Tensor:
    """Each pixel goes where it belongs, if that is inside the image."""
    count, _, height, width = images.shape
    result = torch.zeros_like(images)
    for number in range(count):
        mirrored, down, right = moves[number].tolist()
        for row in range(height):
            for column in range(width):
                to_row, to_column = row + down, (width - 1 - column if mirrored else column) + right
                if 0 <= to_row < height and 0 <= to_column < width:
                    result[number, :, to_row, to_column] = images[number, :, row, column]
    return result


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(count: int, flip: bool, shift: int, seed: int = 0) -> Tensor:
    moves = draw_moves(count, flip, shift, generator(seed))
    assert moves is not None
    return moves


@pytest.mark.parametrize(("flip", "shift"), [(True, 0), (False, 2), (True, 1), (True, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_pixel_goes_where_it_belongs(flip: bool, shift: int, dtype: torch.dtype) -> None:
    """Also where an image can be moved out of itself."""
    images, moves = torch.randn(40, 2, 5, 7, dtype=dtype), drawn(40, flip, shift)
    moved = moved_images(images, moves, shift)
    assert moved.dtype == dtype
    assert moved.is_contiguous()
    torch.testing.assert_close(moved, moved_pixel_by_pixel(images, moves), rtol=0, atol=0)


def test_the_moves_that_stand_for_something() -> None:
    image = torch.arange(1.0, 7).view(1, 1, 2, 3)  # 1 2 3 / 4 5 6
    expected = {
        (0, 0, 0): [[1, 2, 3], [4, 5, 6]],
        (1, 0, 0): [[3, 2, 1], [6, 5, 4]],
        (0, 1, 0): [[0, 0, 0], [1, 2, 3]],
        (0, 0, -1): [[2, 3, 0], [5, 6, 0]],
        (1, 0, 1): [[0, 3, 2], [0, 6, 5]],  # mirrored first, then moved to the right
    }
    for move, pixels in expected.items():
        moved = moved_images(image, torch.tensor([move]), shift=1)
        assert moved[0, 0].tolist() == pixels, move


def test_nothing_moves() -> None:
    state = generator()
    before = state.get_state()
    assert draw_moves(10, False, 0, state) is None
    assert torch.equal(state.get_state(), before)
    images = torch.rand(2, 1, 3, 3)
    assert moved_images(images, None, 0) is images


def test_only_what_is_asked_for_is_drawn() -> None:
    flips, shifts = drawn(1000, True, 0), drawn(1000, False, 3)
    assert flips.shape == shifts.shape == (1000, 3)
    assert set(flips[:, 0].tolist()) == {0, 1}
    assert not flips[:, 1:].any()
    assert not shifts[:, 0].any()
    assert set(shifts[:, 1].tolist()) == set(shifts[:, 2].tolist()) == set(range(-3, 4))


def test_all_moves_are_equally_likely() -> None:
    """2 x 5 x 5 kinds of moves, each expected 400 times with a standard deviation of 19.8."""
    counts = Counter(map(tuple, drawn(20_000, True, 2).tolist()))
    assert len(counts) == 50
    chi_squared = sum((count - 400) ** 2 / 400 for count in counts.values())
    assert chi_squared < 85.4  # one in a thousand draws with 49 degrees of freedom is above


def test_the_seed_decides() -> None:
    assert torch.equal(drawn(50, True, 2, seed=1), drawn(50, True, 2, seed=1))
    assert not torch.equal(drawn(50, True, 2, seed=1), drawn(50, True, 2, seed=2))


def test_an_image_moves_the_same_in_any_batch() -> None:
    images, moves = torch.rand(20, 1, 6, 6), drawn(20, True, 2)
    whole = moved_images(images, moves, 2)
    order = torch.randperm(20)
    for batch in order.split(7):
        assert torch.equal(moved_images(images[batch], moves[batch], 2), whole[batch])
