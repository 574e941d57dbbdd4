"""Q against its definition: second moments by a loop over patches, the inverse by numpy, all in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_processes import TEAMS, team
from torch import Tensor

from sckn.kernels import ArcCosine
from sckn.layer import KernelLayer, LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.processes import Processes
from sckn.training import preconditioner as module
from sckn.training.preconditioner import patch_second_moments, preconditioner, preconditioners
from sckn.training.sphere import SphereSGD

SMALL = NetworkConfig(
    3,
    (
        LayerConfig(6, 3, subsampling=2),
        LayerConfig(5, 2, kernel=ArcCosine()),
        LayerConfig(4, 3, padding=False),
        LayerConfig(7, 1, subsampling=2),
    ),
)


def network(config: NetworkConfig = SMALL, dtype: torch.dtype = torch.float64) -> CKN:
    """The same random filters each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return CKN(config).to(dtype)


def naive_moments(maps: np.ndarray, patch: int, padding: bool) -> np.ndarray:
    """Mean of x x' over the patches of (B, c, H, W), one at a time; that of a pixel begins (e - 1) // 2 before it."""
    if padding:
        before, after = (patch - 1) // 2, patch // 2
        maps = np.pad(maps, ((0, 0), (0, 0), (before, after), (before, after)))
    batch, channels, height, width = maps.shape
    total, count = np.zeros((channels * patch**2, channels * patch**2)), 0
    for image in range(batch):
        for row in range(height - patch + 1):
            for column in range(width - patch + 1):
                x = maps[image, :, row : row + patch, column : column + patch].reshape(-1)
                total += np.outer(x, x)
                count += 1
    return total / count


def naive_moments_of_layers(given: CKN, images: Tensor) -> list[np.ndarray]:
    moments, maps = [], images
    for layer in given.kernel_layers:
        moments.append(naive_moments(maps.numpy(), layer.config.patch, layer.config.padding))
        maps = layer(maps).detach()
    return moments


@pytest.mark.parametrize("batch_size", [1, 4, 256])
@pytest.mark.parametrize("piece", [1, 2000, 5000, 2**27])  # bytes: a row at a time, some rows, some images, all
def test_moments_are_those_of_the_patches_of_each_layer(piece: int, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    images = torch.randn(7, 3, 9, 8, dtype=torch.float64)
    given = network()
    moments = patch_second_moments(given, images, batch_size=batch_size)
    assert [C.shape for C in moments] == [(27, 27), (24, 24), (45, 45), (4, 4)]
    for C, expected in zip(moments, naive_moments_of_layers(given, images), strict=True):
        np.testing.assert_allclose(C.numpy(), expected, rtol=1e-12, atol=1e-13)


def test_pieces_hold_every_patch_once_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 3000)
    maps = torch.randn(5, 2, 7, 6)
    for patch, padding in ((3, True), (2, True), (1, False), (4, False)):
        pieces = list(module._patch_columns(maps, patch, padding))
        rows, columns = (7, 6) if padding else (8 - patch, 7 - patch)
        assert sum(piece.shape[1] for piece in pieces) == 5 * rows * columns
        # one row of patches is the least there can be
        least = columns * 2 * patch**2 * 4
        assert all(piece.numel() * piece.element_size() <= max(3000, least) for piece in pieces)
        assert len(pieces) < 5 * rows  # and no smaller than they need to be


def test_a_network_in_float32_gives_the_moments_in_float64() -> None:
    images = torch.rand(20, 3, 12, 12)
    exact = naive_moments_of_layers(network(), images.double())
    for C, expected in zip(patch_second_moments(network(dtype=torch.float32), images), exact, strict=True):
        assert C.dtype == torch.float64
        np.testing.assert_allclose(C.numpy(), expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_a_single_layer_and_every_source(tmp_path: Path) -> None:
    layer = KernelLayer(3, LayerConfig(4, 3)).double()
    images = torch.rand(9, 3, 6, 6, dtype=torch.float64)
    np.save(tmp_path / "images.npy", images.numpy())
    expected = naive_moments(images.numpy(), 3, True)
    sources: list[Any] = [images, images.numpy(), tmp_path / "images.npy", list(images.split(4)), iter(images.split(2))]
    for source in sources:
        (C,) = patch_second_moments(layer, source, batch_size=3)
        np.testing.assert_allclose(C.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_network_is_left_alone() -> None:
    given = network()
    given.kernel_layers[1].eval()
    before = [layer.filters.detach().clone() for layer in given.kernel_layers]
    modes = [part.training for part in given.modules()]
    matrices = patch_second_moments(given, torch.rand(3, 3, 9, 8))
    assert [part.training for part in given.modules()] == modes
    assert all(torch.equal(layer.filters, old) for layer, old in zip(given.kernel_layers, before, strict=True))
    assert all(layer.filters.grad is None for layer in given.kernel_layers)
    assert not any(C.requires_grad for C in matrices)


def test_images_that_do_not_fit_are_refused() -> None:
    for images, message in (
        (torch.rand(0, 3, 9, 8), "the data set is empty"),
        (torch.rand(4, 1, 9, 8), r"expected images of shape \(B, 3, H, W\), got \(4, 1, 9, 8\)"),
        (torch.rand(4, 3, 3, 3), "patches of side 3 do not fit into a map of 2 x 2 pixels"),
        (torch.full((4, 3, 9, 8), torch.nan), "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            patch_second_moments(network(), images)


def moments(d: int, rank: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Of directions between 1 and 1e-2 in size, turned."""
    V, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))
    eigenvalues = torch.logspace(0, -2, d, dtype=torch.float64)
    eigenvalues[d if rank is None else rank :] = 0
    return ((V * eigenvalues) @ V.T).to(dtype)


@pytest.mark.parametrize("damping", [1e-6, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("rank", [None, 5])
def test_the_preconditioner_is_the_damped_inverse(rank: int | None, damping: float) -> None:
    d, C = 12, moments(12, rank)
    Q = preconditioner(C, damping)
    assert torch.equal(Q, Q.T)
    assert float(Q.trace()) / d == pytest.approx(1, rel=1e-12)
    assert np.linalg.eigvalsh(Q.numpy()).min() > 0
    expected = np.linalg.inv(C.numpy() + damping * np.trace(C.numpy()) / d * np.eye(d))
    expected *= d / np.trace(expected)
    np.testing.assert_allclose(Q.numpy(), expected, rtol=1e-7, atol=1e-9)
    # Q (C + damping tr(C)/d I) is a multiple of the identity
    product = Q.numpy() @ (C.numpy() + damping * np.trace(C.numpy()) / d * np.eye(d))
    np.testing.assert_allclose(product / product[0, 0], np.eye(d), rtol=0, atol=1e-8)


def test_the_preconditioner_evens_out_the_patches() -> None:
    """In the limit of no damping, Q^(1/2) x has the same second moment in every direction."""
    C = moments(8)
    spread = np.linalg.eigvals((preconditioner(C, 1e-9) @ C).numpy()).real
    np.testing.assert_allclose(spread, spread[0], rtol=1e-6)


def test_the_preconditioner_lies_in_memory_as_a_copy_from_a_file_does() -> None:
    generator = torch.Generator().manual_seed(5)
    patches = torch.randn(27, 100, generator=generator)
    assert preconditioner(patches @ patches.T / 100, 0.1).is_contiguous()


def test_strong_damping_leaves_the_gradient_as_it_is() -> None:
    C = moments(8)
    distances = [float((preconditioner(C, damping) - torch.eye(8)).abs().max()) for damping in (1.0, 1e2, 1e4, 1e8)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.1
    assert distances[-1] < 1e-7


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_the_scale_of_the_patches_does_not_matter(scale: float) -> None:
    C = moments(8)
    torch.testing.assert_close(preconditioner(scale * C, 0.1), preconditioner(C, 0.1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_is_kept_and_the_work_done_in_float64(dtype: torch.dtype) -> None:
    C = moments(10, dtype=dtype)
    before = C.clone()
    Q = preconditioner(C, 1e-3)
    assert Q.dtype == dtype
    assert torch.equal(Q, preconditioner(C.double(), 1e-3).to(dtype))
    assert torch.equal(preconditioner(torch.zeros(4, 4, dtype=dtype), 0.1), torch.eye(4, dtype=dtype))
    assert torch.equal(C, before)


@pytest.mark.parametrize("damping", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_damping_must_be_positive(damping: Any) -> None:
    walked = iter([torch.rand(2, 3, 9, 8)])
    for use in (lambda: preconditioner(moments(4), damping), lambda: preconditioners(network(), walked, damping)):
        with pytest.raises(ValueError, match="damping must be a number above 0"):
            use()
    assert len(list(walked)) == 1  # refused before any work


def test_what_is_no_second_moment_is_refused() -> None:
    crooked = torch.eye(3, dtype=torch.float64)
    crooked[0, 1] = 0.5
    for C, message in (
        (torch.rand(3, 4), r"a matrix \(d, d\) in floating point, got \(3, 4\)"),
        (torch.rand(3), r"a matrix \(d, d\)"),
        (torch.rand(0, 0), r"a matrix \(d, d\)"),
        (torch.eye(3, dtype=torch.long), "floating point"),
        (torch.full((2, 2), torch.nan), "NaN or infinity"),
        (crooked, "not symmetric"),
        (-torch.eye(3), "negative eigenvalue"),
        (torch.diag(torch.tensor([3.0, 1.0, -1.0])), "negative eigenvalue"),
    ):
        with pytest.raises(ValueError, match=message):
            preconditioner(C, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_preconditioners_of_a_network_serve_its_filters(dtype: torch.dtype) -> None:
    given, images = network(dtype=dtype), torch.rand(10, 3, 9, 8)
    found = preconditioners(given, images, 0.3, batch_size=4)
    for layer, Q, C in zip(given.kernel_layers, found, patch_second_moments(given, images, batch_size=4), strict=True):
        assert torch.equal(Q, preconditioner(C, 0.3).to(dtype))
        before = layer.filters.detach().clone()
        layer.filters.grad = torch.randn_like(layer.filters)
        SphereSGD([layer.filters], lr=0.1, preconditioner=Q).step()
        assert not torch.equal(layer.filters, before)


def shared(processes: Processes, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    share, given = images[processes.share], network()
    found = patch_second_moments(given, share, batch_size=2, processes=processes)
    return found, preconditioners(given, share, 0.5, batch_size=2, processes=processes)


@pytest.mark.parametrize("count", [1, 2, 7, 12])
@pytest.mark.parametrize("processes", TEAMS)
def test_processes_that_share_the_images_find_the_matrices_of_one(processes: int, count: int) -> None:
    """Also where the shares are unequal, and where a process has no image."""
    images = torch.rand(count, 3, 9, 8, dtype=torch.float64)
    outcomes = team(processes).run(shared, images)
    expected = patch_second_moments(network(), images) + preconditioners(network(), images, 0.5)
    for found in outcomes:
        for own, first, alone in zip(found[0] + found[1], outcomes[0][0] + outcomes[0][1], expected, strict=True):
            assert torch.equal(own, first)
            torch.testing.assert_close(own, alone, rtol=1e-10, atol=1e-11)


def test_no_images_at_all_are_refused_by_all_processes() -> None:
    for outcome in team(2).outcomes(shared, torch.rand(0, 3, 9, 8)):
        with pytest.raises(ValueError, match="the data set is empty"):
            raise outcome


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    """In float32 and under TF32, which must not reach the products."""
    images = torch.rand(40, 3, 32, 32)
    wide = NetworkConfig(3, (LayerConfig(64, 3), LayerConfig(16, 3)))
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        first, _ = patch_second_moments(network(wide, torch.float32).cuda(), images)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    exact, second = patch_second_moments(network(wide), images)
    torch.testing.assert_close(first.cpu(), exact, rtol=1e-5, atol=1e-6)
    on_cuda = patch_second_moments(network(wide).cuda(), images)[1]
    torch.testing.assert_close(on_cuda.cpu(), second, rtol=1e-9, atol=1e-10)
    Q = preconditioner(second, 0.1)
    torch.testing.assert_close(preconditioner(on_cuda, 0.1).cpu(), Q, rtol=1e-7, atol=1e-8)
