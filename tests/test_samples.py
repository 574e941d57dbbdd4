"""Images and targets as users give them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sckn.training.samples import Samples

FLOAT32 = torch.empty(0)
FLOAT64 = torch.empty(0, dtype=torch.float64)


def images(count: int = 4) -> Tensor:
    return torch.rand(count, 1, 3, 3)


def checked(pictures: Any, targets: Any, classification: bool = True, like: Tensor = FLOAT32, **settings: Any) -> Samples:
    return Samples.checked(pictures, targets, like=like, classification=classification, **settings)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.int16])
def test_class_numbers_become_one_against_all(kind: type) -> None:
    labels = np.array([2, 0, 1, 2], dtype=kind)
    expected = [[-1, -1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    for given in (labels, torch.from_numpy(labels)):
        samples = checked(images(), given)
        assert samples.targets.tolist() == expected
        assert samples.targets.dtype == torch.float32
        assert not samples.per_pixel
        assert samples.total() == 4
    assert checked(images(), labels, classes=4).targets.shape == (4, 4)


def test_one_class_is_still_a_choice_of_two() -> None:
    assert checked(images(2), np.array([0, 0])).targets.tolist() == [[1, -1], [1, -1]]


@pytest.mark.parametrize("targets", [[[1.0], [-1], [-1], [1]], [[1, -1], [-1, 1], [1, 1], [-1, -1]]])
def test_targets_of_1_and_minus_1_stay(targets: list[list[float]]) -> None:
    assert checked(images(), np.array(targets)).targets.tolist() == targets


@pytest.mark.parametrize(
    ("shape", "expected", "per_pixel"),
    [((4,), (4, 1), False), ((4, 3), (4, 3), False), ((4, 2, 5, 6), (4, 2, 5, 6), True)],
)
def test_numbers_for_regression(shape: tuple[int, ...], expected: tuple[int, ...], per_pixel: bool) -> None:
    targets = np.random.default_rng(0).normal(size=shape)
    samples = checked(images(), targets, classification=False, like=FLOAT64)
    assert samples.targets.shape == expected
    assert samples.per_pixel == per_pixel
    np.testing.assert_array_equal(samples.targets.numpy(), targets.reshape(expected))


@pytest.mark.parametrize(("count", "expected"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_the_first_of_them(count: int | None, expected: int) -> None:
    samples = checked(images(), np.arange(4.0), classification=False)
    assert torch.equal(samples.first(count).images, samples.images[:expected])
    assert samples.first(count).targets.tolist() == [[number] for number in range(expected)]


def test_whole_numbers_for_regression_are_numbers() -> None:
    assert checked(images(), np.array([3, -7, 0, 12]), classification=False).targets.tolist() == [[3], [-7], [0], [12]]


def test_classes_of_pixels() -> None:
    targets = torch.where(torch.rand(4, 2, 3, 3) > 0.5, 1, -1)
    samples = checked(images(), targets)
    assert samples.per_pixel
    assert torch.equal(samples.targets, targets.float())


def test_bytes_are_scaled() -> None:
    pixels = np.arange(2 * 9, dtype=np.uint8).reshape(2, 1, 3, 3) * 14
    for given in (pixels, torch.from_numpy(pixels)):
        samples = checked(given, np.array([0, 1]))
        assert samples.images.dtype == torch.float32
        np.testing.assert_allclose(samples.images.numpy(), pixels / 255, rtol=1e-6)


@pytest.mark.parametrize("like", [FLOAT32, FLOAT64])
def test_everything_has_the_type_of_the_network(like: Tensor) -> None:
    for given in (np.random.rand(2, 1, 3, 3), torch.rand(2, 1, 3, 3), torch.rand(2, 1, 3, 3).half()):  # noqa: NPY002
        samples = checked(given, np.array([0, 1]), like=like)
        assert samples.images.dtype == samples.targets.dtype == like.dtype


def changed(values: Tensor, value: float) -> Tensor:
    values = values.clone()
    values.view(-1)[-1] = value
    return values


SIGNS = torch.tensor([[1.0], [-1], [1], [-1]])
LABELS = torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("pictures", "targets", "settings", "message"),
    [
        (changed(images(), torch.nan), LABELS, {}, "the images hold NaN or infinity"),
        (changed(images(), torch.inf), LABELS, {}, "the images hold NaN or infinity"),
        (images(), changed(SIGNS, torch.nan), {"classification": False}, "the targets hold NaN or infinity"),
        (images(), changed(SIGNS, -torch.inf), {}, "the targets hold NaN or infinity"),
        (images()[:3], LABELS, {}, "there are 3 images, but targets for 4"),
        (images()[:, 0], LABELS, {}, r"expected images of shape \(n, c, H, W\), got \(4, 3, 3\)"),
        (images().long(), LABELS, {}, "expected images in floating point or in bytes"),
        (images(), LABELS - 1, {}, "class numbers must be whole numbers from 0 on"),
        (images(), LABELS.float(), {}, "class numbers must be whole numbers from 0 on"),
        (images(), LABELS, {"classes": 2}, "there are images of 3 classes, but the model learns only 2"),
        (images(), LABELS[:, None], {}, r"class numbers \(n,\), or 1 and -1"),
        (images(), changed(SIGNS, 0.0), {}, r"class numbers \(n,\), or 1 and -1"),
        (images(), torch.rand(4, 2, 3), {"classification": False}, r"expected targets \(n,\), .*, got \(4, 2, 3\)"),
        (images(), torch.rand(4, 2), {"classification": False, "classes": 1}, "targets have 2 outputs, .* the model learns 1"),
        (images(), SIGNS, {"classes": 10}, "targets have 1 outputs, but the model learns 10"),
    ],
)
def test_what_is_wrong_is_named(pictures: Tensor, targets: Tensor, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(pictures, targets, **settings)
    with pytest.raises(ValueError, match=message):
        checked(pictures.numpy(), targets.numpy(), **settings)


def test_no_sample_is_no_error_here() -> None:
    """A process may have none."""
    samples = checked(images(0), torch.empty(0, dtype=torch.long), classes=3)
    assert samples.total() == 0
    assert samples.targets.shape == (0, 3)
