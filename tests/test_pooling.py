"""Gaussian pooling against the sums of method.md written as loops."""

import math

import pytest
import torch
from closed_form import pooling_weights

from sckn.pooling import gaussian_pool, pooled_size, pooling_matrix

WIDTHS = [0.5, 1 / math.sqrt(2), 1.2]
FACTORS = [1.0, math.sqrt(2), 1.5, 2.0, 3.0, 2 * math.sqrt(2), 6.0]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("size", [4, 8, 11, 23, 32])
def test_weights_along_one_axis(size: int, factor: float) -> None:
    torch.testing.assert_close(pooling_matrix(size, factor), pooling_weights(size, factor), rtol=1e-13, atol=1e-15)
    for width in WIDTHS:
        expected = pooling_weights(size, factor, width)
        torch.testing.assert_close(pooling_matrix(size, factor, width), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_mirrored_map_gives_the_mirrored_result(factor: float) -> None:
    """A pixel exactly 3 sigma away must count, or not, on both sides alike: at sqrt 2 there are such pixels."""
    for size in range(2, 65):
        matrix = pooling_matrix(size, factor)
        torch.testing.assert_close(matrix, matrix.flip(0, 1), rtol=1e-12, atol=1e-14)


def test_a_small_map_keeps_one_pixel() -> None:
    assert pooled_size(2, 6.0) == 1
    torch.testing.assert_close(pooling_matrix(2, 6.0), torch.full((1, 2), 0.5, dtype=torch.float64))


def test_sizes_of_the_paper() -> None:
    sizes = [32]
    for factor in [math.sqrt(2)] * 4 + [3.0]:
        sizes.append(pooled_size(sizes[-1], factor))
    assert sizes == [32, 23, 16, 11, 8, 3]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor", FACTORS)
def test_pooling_is_a_double_sum_on_rectangular_maps(factor: float, width: float) -> None:
    maps = torch.randn(2, 3, 9, 14, dtype=torch.float64)
    rows, columns = pooling_weights(9, factor, width), pooling_weights(14, factor, width)
    pooled = gaussian_pool(maps, factor, width)
    assert pooled.shape == (2, 3, len(rows), len(columns))
    for i in range(len(rows)):
        for j in range(len(columns)):
            expected = torch.zeros(2, 3, dtype=torch.float64)
            for k in range(9):
                for m in range(14):
                    expected += rows[i, k] * columns[j, m] * maps[:, :, k, m]
            torch.testing.assert_close(pooled[:, :, i, j], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_constant_map_stays_constant(factor: float) -> None:
    maps = torch.full((1, 2, 13, 10), 0.7, dtype=torch.float64)
    pooled = gaussian_pool(maps, factor)
    torch.testing.assert_close(pooled, torch.full_like(pooled, 0.7), rtol=1e-13, atol=0)


@pytest.mark.parametrize("factor", FACTORS)
def test_backward_is_the_adjoint(factor: float) -> None:
    maps = torch.randn(2, 3, 9, 14, dtype=torch.float64, requires_grad=True)
    pooled = gaussian_pool(maps, factor)
    other = torch.randn_like(pooled)
    (pulled_back,) = torch.autograd.grad(pooled, maps, other)
    probe = torch.randn_like(maps)  # <P probe, other> = <probe, P* other>
    forward = float((gaussian_pool(probe, factor) * other).sum())
    assert forward == pytest.approx(float((probe * pulled_back).sum()), rel=1e-12)


def test_the_matrix_follows_the_dtype() -> None:
    maps = torch.randn(1, 1, 8, 8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert gaussian_pool(maps.to(dtype), 2.0).dtype == dtype


def test_a_first_use_in_inference_mode_does_not_spoil_training() -> None:
    size, factor = 17, 1.7231  # a pair no other test uses: the matrix is built here and cached
    with torch.inference_mode():
        gaussian_pool(torch.randn(1, 1, size, size), factor)
    maps = torch.randn(1, 1, size, size, requires_grad=True)
    gaussian_pool(maps, factor).sum().backward()
    assert maps.grad is not None
    # every output pixel is a weighted mean, so the gradient of their sum adds up to their number
    assert float(maps.grad.sum()) == pytest.approx(pooled_size(size, factor) ** 2, rel=1e-5)


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, math.nan, math.inf])
def test_factors_below_1_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="subsampling factor"):
        pooling_matrix(8, factor)


@pytest.mark.parametrize("factor", [1.5, 2.0, 6.0])
def test_a_window_without_a_pixel_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="too narrow"):
        pooling_matrix(12, factor, width=0.99 / (6 * factor))
    assert pooling_matrix(12, factor, width=1.01 / (6 * factor)).isfinite().all()


@pytest.mark.parametrize("factor", [1.0, 2**0.5, 3.0])
def test_the_order_of_memory_changes_nothing(factor: float) -> None:
    maps = torch.randn(3, 5, 12, 9, dtype=torch.float64)
    turned = maps.contiguous(memory_format=torch.channels_last)
    weights = torch.randn_like(gaussian_pool(maps, factor))
    results = []
    for given in (maps.requires_grad_(), turned.requires_grad_()):
        pooled = gaussian_pool(given, factor)
        results.append((pooled, *torch.autograd.grad(pooled, given, weights)))
    for plain, channels_last in zip(*results, strict=True):
        torch.testing.assert_close(channels_last, plain, rtol=0, atol=1e-14, check_stride=False)
    assert results[1][0].is_contiguous(memory_format=torch.channels_last)
