"""Patches: the operator E, norms that never build the patches, and uniform samples from a stream."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_processes import TEAMS, team

from sckn.patches import channels_last, extract_patches, pad_for_patches, patch_norms, patch_squares, sample_patches
from sckn.processes import Processes

SIDES = [1, 2, 3, 4, 5]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def naive_patches(maps: torch.Tensor, patch: int, padding: bool) -> np.ndarray:
    """(B, c e^2, H' W'), one number at a time; the patch of a pixel begins (e - 1) // 2 before it where there is padding."""
    images = maps.numpy()
    batch, channels, height, width = images.shape
    back = (patch - 1) // 2 if padding else 0
    rows, columns = (height, width) if padding else (height - patch + 1, width - patch + 1)
    patches = np.zeros((batch, channels, patch, patch, rows, columns), dtype=images.dtype)
    for row in range(rows):
        for column in range(columns):
            for i in range(patch):
                for j in range(patch):
                    y, x = row - back + i, column - back + j
                    if 0 <= y < height and 0 <= x < width:
                        patches[:, :, i, j, row, column] = images[:, :, y, x]
    return patches.reshape(batch, channels * patch * patch, rows * columns)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("patch", SIDES)
def test_patches_are_read_in_the_order_of_convolution_weights(patch: int, padding: bool) -> None:
    maps = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    patches = extract_patches(maps, patch, padding)
    np.testing.assert_array_equal(patches.numpy(), naive_patches(maps, patch, padding))
    filters = torch.randn(4, 3, patch, patch, dtype=torch.float64)
    by_convolution = torch.nn.functional.conv2d(pad_for_patches(maps, patch, padding), filters).flatten(2)
    torch.testing.assert_close(filters.flatten(1) @ patches, by_convolution, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("patch", SIDES)
def test_backward_is_the_adjoint(patch: int, padding: bool) -> None:
    maps = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    patches = extract_patches(maps, patch, padding)
    other, probe = torch.randn_like(patches), torch.randn_like(maps)
    (pulled_back,) = torch.autograd.grad(patches, maps, other)
    forward = float((extract_patches(probe, patch, padding) * other).sum())
    assert forward == pytest.approx(float((probe * pulled_back).sum()), rel=1e-12)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("patch", SIDES)
def test_norms_are_those_of_the_patches(patch: int, padding: bool) -> None:
    maps = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    expected = np.linalg.norm(naive_patches(maps, patch, padding), axis=1)
    norms = patch_norms(maps, patch, padding)
    assert norms.shape[1] == 1
    np.testing.assert_allclose(norms.flatten(1).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_squares_of_maps_larger_than_the_cache_are_those_of_numpy(
    kind: torch.dtype, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 x 5 x 4 x 3 numbers: by pixel rows, by one image, all at once; with their gradient, twice each number."""
    maps = torch.randn(2, 5, 4, 3).to(kind).contiguous(memory_format=order).requires_grad_()
    numbers, weights = maps.detach().double().numpy(), torch.randn(2, 1, 4, 3).double()
    for most in (1, 20, 40, 60, 10**6):
        monkeypatch.setattr("sckn.cache.IN_CACHE", most)
        squares = patch_squares(maps, 1, False)
        assert squares.dtype == torch.promote_types(kind, torch.float32)
        (gradient,) = torch.autograd.grad(squares, maps, weights.to(squares.dtype))
        np.testing.assert_allclose(squares.detach().double(), (numbers**2).sum(1, keepdims=True), rtol=1e-6)
        assert gradient.dtype == kind
        exact = torch.from_numpy(2 * numbers) * weights
        torch.testing.assert_close(gradient.double(), exact, rtol=2**-8 if kind == torch.bfloat16 else 1e-12, atol=0)


@pytest.mark.parametrize("patch", SIDES)
def test_gradient_of_the_norms(patch: int) -> None:
    """x / |x| summed over the patches that hold a pixel, nothing from a patch that is zero."""
    maps = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    maps[:, :, :6, :6] = 0
    maps.requires_grad_()
    (gradient,) = torch.autograd.grad(patch_norms(maps, patch, True).sum(), maps)
    patches = extract_patches(maps, patch, True)
    norms = patches.detach().norm(dim=1, keepdim=True)
    assert bool((norms == 0).any())
    directions = torch.where(norms > 0, patches.detach() / norms.clamp_min(1e-300), 0)
    (expected,) = torch.autograd.grad(patches, maps, directions)  # the adjoint of E, tested above
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_norms_of_half_precision_maps_are_single_precision() -> None:
    maps = torch.randn(1, 64, 5, 5).to(torch.bfloat16)
    norms = patch_norms(maps, 3, True)
    assert norms.dtype == torch.float32
    torch.testing.assert_close(norms, patch_norms(maps.float(), 3, True))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_convolutions_keep_the_order_of_maps_in_channels_last(channels: int, count: int) -> None:
    """Also of a single channel, where PyTorch takes contiguous maps for the other order and works in that."""
    maps = torch.randn(count, channels, 6, 8)[..., ::2]
    ordered = channels_last(maps)
    assert torch.equal(ordered, maps)
    for image in (ordered, channels_last(ordered)):
        output = torch.nn.functional.conv2d(image, torch.randn(5, channels, 3, 3))
        assert output.stride(1) == 1


def test_a_patch_larger_than_the_map_is_refused_without_padding() -> None:
    with pytest.raises(ValueError, match=r"side 5 .* 4 x 6 .*padding=True"):
        extract_patches(torch.zeros(1, 1, 4, 6), 5, padding=False)


def test_the_sample_depends_on_the_seed_alone() -> None:
    batches = [torch.randn(3, 2, 6, 6), torch.randn(2, 2, 6, 6)]
    first, again, other = (sample_patches(batches, 3, True, 20, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("patch", [1, 2, 3])
def test_a_large_request_returns_every_patch_once_at_unit_norm(patch: int, padding: bool) -> None:
    batches = [torch.randn(2, 2, 5, 4, dtype=torch.float64), torch.randn(1, 2, 3, 7, dtype=torch.float64)]  # mixed sizes
    sample = sample_patches(batches, patch, padding, 1000, seeded(0)).numpy()
    every = np.concatenate(
        [naive_patches(maps, patch, padding).transpose(0, 2, 1).reshape(-1, 2 * patch**2) for maps in batches]
    )
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    # the order of a sample is of no interest: both are sorted by their first number, which is different in each patch
    # unless it lies in the padding
    order, expected_order = np.lexsort(sample.T), np.lexsort(every.T)
    np.testing.assert_allclose(sample[order], every[expected_order], rtol=1e-12, atol=1e-15)


def test_samples_are_uniform_over_images_and_positions() -> None:
    """Positions can be read back from the values. The batches differ in size, and still each patch is as likely."""
    maps = torch.arange(1, 1 + 7 * 3 * 4, dtype=torch.float64).reshape(7, 1, 3, 4)
    # a unit patch of one channel would be 1 everywhere; a second channel of ones keeps the ratio, which tells the position
    maps = torch.cat([maps, torch.ones_like(maps)], dim=1)
    picked = np.zeros(7 * 12, dtype=int)
    generator = seeded(3)
    draws, count = 1000, 10
    for _ in range(draws):
        sample = sample_patches([maps[:1], maps[1:5], maps[5:]], 1, True, count, generator)
        positions = (sample[:, 0] / sample[:, 1]).round().long().numpy() - 1
        assert len(np.unique(positions)) == count  # without replacement
        picked[positions] += 1
    assert picked.sum() == draws * count
    # Without replacement the counts vary less than multinomial ones, by (1 - 10/84); the statistic is scaled to match.
    statistic, _ = chisquare(picked)
    scaled = statistic / (1 - count / len(picked))
    degrees = len(picked) - 1
    # within four standard deviations of its mean: neither uneven nor suspiciously even
    assert abs(scaled - degrees) < 4 * np.sqrt(2 * degrees)


def test_zero_patches_are_left_out() -> None:
    maps = torch.zeros(2, 1, 8, 8)
    maps[0, 0, 2, 3] = 5.0
    sample = sample_patches([torch.zeros(1, 1, 8, 8), maps], 3, True, 100, seeded(0))
    assert sample.shape == (9, 9)  # the nine patches that hold the one pixel
    torch.testing.assert_close(sample.norm(dim=1), torch.ones(9))


def test_faint_patches_are_left_out() -> None:
    """A patch of 1e-5 of the root mean square norm is noise, however long it becomes at unit norm; one of 1e-2 is not."""
    maps = torch.ones(2, 2, 4, 4)
    maps[0, :, 1, 2] = torch.tensor([1e-5, -1e-5])
    maps[1, :, 3, 0] = torch.tensor([-1e-2, 1e-2])
    sample = sample_patches([maps], 1, True, 100, seeded(0))
    assert len(sample) == 31
    assert bool((sample[:, 1] > 0).all())
    assert int((sample[:, 0] < 0).sum()) == 1


def test_nothing_but_zeros_gives_an_empty_sample() -> None:
    assert sample_patches([torch.zeros(2, 3, 5, 5)], 3, True, 10, seeded(0)).shape == (0, 27)


def test_images_come_from_a_stream_read_once() -> None:
    images = [torch.randn(2, 3, 6, 6) for _ in range(4)]
    read: list[int] = []

    def stream() -> Iterator[torch.Tensor]:
        for index, batch in enumerate(images):
            read.append(index)
            yield batch

    assert torch.equal(sample_patches(stream(), 3, False, 15, seeded(0)), sample_patches(images, 3, False, 15, seeded(0)))
    assert read == [0, 1, 2, 3]


def test_no_images_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no images"):
        sample_patches([], 3, True, 10, seeded(0))


def test_nan_in_the_images_is_refused() -> None:
    """Taken for zero, as every comparison with NaN is false, the patches around it would vanish silently."""
    spoiled = torch.randn(2, 1, 6, 6)
    spoiled[0, 0, 3, 3] = torch.nan
    assert int(patch_norms(spoiled, 3, True).isnan().sum()) == 9
    with pytest.raises(ValueError, match="NaN"):
        sample_patches([torch.randn(2, 1, 6, 6), spoiled], 3, True, 10, seeded(0))


def shared_sample(processes: Processes, batches: list[torch.Tensor], count: int) -> torch.Tensor:
    shares = [maps[processes.share] for maps in batches]
    return sample_patches(shares, 3, True, count, seeded(7), processes)


@pytest.mark.parametrize("count", [20, 120, 1000])  # fewer than one batch holds, fewer than there are, more
@pytest.mark.parametrize("processes", TEAMS)
def test_processes_that_share_the_maps_take_the_sample_of_one(processes: int, count: int) -> None:
    """To the last bit. Batches of different sizes: equal shares, unequal ones, and one map for all processes."""
    batches = [torch.randn(6, 2, 5, 4), torch.randn(4, 2, 3, 3), torch.randn(1, 2, 6, 5)]
    alone = sample_patches(batches, 3, True, count, seeded(7))
    assert len(alone) == min(count, 6 * 20 + 4 * 9 + 30)
    for shared in team(processes).run(shared_sample, batches, count):
        assert torch.equal(shared, alone)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("processes", TEAMS)
def test_what_is_faint_is_decided_over_all_processes(processes: int, rank: int) -> None:
    """One process has nothing but faint maps, none of them faint among its own."""
    maps = torch.randn(2 * processes, 2, 4, 4)
    maps[rank::processes] *= 1e-5
    for shared in team(processes).run(shared_sample, [maps], 1000):
        assert len(shared) == 2 * (processes - 1) * 16
        assert torch.equal(shared, sample_patches([maps], 3, True, 1000, seeded(7)))


@pytest.mark.parametrize("processes", TEAMS)
def test_zeros_nan_and_nothing_are_seen_alike_by_all_processes(processes: int) -> None:
    for shared in team(processes).run(shared_sample, [torch.zeros(4, 3, 5, 5)], 10):
        assert shared.shape == (0, 27)
    spoiled = torch.randn(4, 3, 5, 5)
    spoiled[1, 0, 3, 3] = torch.nan
    for batches, message in (([spoiled], "NaN"), ([], "no images")):
        for outcome in team(processes).outcomes(shared_sample, batches, 10):
            with pytest.raises(ValueError, match=message):
                raise outcome


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_takes_the_same_sample() -> None:
    batches = [torch.randn(4, 3, 9, 8), torch.randn(3, 3, 7, 7)]
    on_cpu = sample_patches(batches, 3, True, 50, seeded(0))
    on_cuda = sample_patches([batch.cuda() for batch in batches], 3, True, 50, seeded(0)).cpu().numpy()
    order, cuda_order = np.lexsort(on_cpu.numpy().round(4).T), np.lexsort(on_cuda.round(4).T)
    np.testing.assert_allclose(on_cuda[cuda_order], on_cpu.numpy()[order], rtol=1e-5, atol=1e-6)
