"""Learning without labels: the filters are k-means centroids of each layer's own input, whatever the source of the images."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_processes import TEAMS, team
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from sckn.data.batches import ImageSource
from sckn.kmeans import spherical_kmeans
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import projection_residuals
from sckn.patches import extract_patches, sample_patches
from sckn.processes import Processes
from sckn.training.unsupervised import encode, fit_unsupervised

SMALL = NetworkConfig(3, (LayerConfig(6, 3, subsampling=2), LayerConfig(8, 2), LayerConfig(5, 1, subsampling=2)))
ONE_LAYER = NetworkConfig(3, (LayerConfig(6, 3),))


def network(config: NetworkConfig = SMALL, dtype: torch.dtype = torch.float32) -> CKN:
    """The same random filters each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return CKN(config).to(dtype)


def pictures(count: int, size: int = 12, channels: int = 3) -> Tensor:
    """Smooth images: noise seen through a window of 3 x 3 pixels."""
    return torch.nn.functional.avg_pool2d(torch.rand(count, channels, size + 2, size + 2), 3, stride=1)


def filters(fitted: CKN) -> list[Tensor]:
    return [layer.filters.detach() for layer in fitted.kernel_layers]


def fit(source: ImageSource, config: NetworkConfig = SMALL, **settings: Any) -> CKN:
    return fit_unsupervised(network(config), source, **{"patches": 400, "iterations": 5, "batch_size": 8, **settings})


def same(first: CKN, second: CKN) -> bool:
    return all(torch.equal(a, b) for a, b in zip(filters(first), filters(second), strict=True))


def test_the_seed_decides() -> None:
    images = pictures(20)
    first, again, other = fit(images, seed=1), fit(images, seed=1), fit(images, seed=2)
    assert same(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(filters(first), filters(other), strict=True))


def test_the_start_does_not_matter() -> None:
    """Nothing of the filters before is left."""
    images = pictures(20)
    before = fit_unsupervised(network(), images, patches=400, iterations=5, batch_size=8)
    torch.manual_seed(99)
    assert same(before, fit_unsupervised(CKN(SMALL), images, patches=400, iterations=5, batch_size=8))


def test_the_global_random_state_is_neither_used_nor_changed() -> None:
    images = pictures(20)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = fit(images)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(first, fit(images))


def test_the_network_is_returned_and_all_filters_have_unit_norm() -> None:
    given = network()
    fitted = fit_unsupervised(given, pictures(20), patches=400, batch_size=8)
    assert fitted is given
    for found, layer in zip(filters(fitted), SMALL.layers, strict=True):
        assert len(found) == layer.filters
        torch.testing.assert_close(found.flatten(1).norm(dim=1), torch.ones(layer.filters), rtol=1e-6, atol=0)


def test_filters_are_the_centroids_of_each_layers_own_input() -> None:
    """By hand: the maps of the layers before, a sample of their patches, k-means; one generator for all of it."""
    images = pictures(21)
    fitted = fit(images, seed=3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        batches = list(images.split(8))
        for layer, found in zip(fitted.kernel_layers, filters(fitted), strict=True):
            sample = sample_patches(batches, layer.config.patch, layer.config.padding, 400, generator)
            centroids = spherical_kmeans(sample, layer.config.filters, iterations=5, generator=generator).centroids
            torch.testing.assert_close(found.flatten(1), centroids, rtol=0, atol=0)
            batches = [layer(batch) for batch in batches]


def test_with_all_patches_each_filter_is_the_direction_of_its_cluster() -> None:
    """Converged on every patch there is, each filter is the normalised sum of the unit patches nearest to it."""
    images = pictures(6, size=8).double()
    fitted = fit_unsupervised(network(dtype=torch.float64), images, patches=10**4, iterations=1000, batch_size=4)
    maps = images
    for layer in fitted.kernel_layers:
        patches = extract_patches(maps, layer.config.patch, layer.config.padding).detach().numpy()
        rows = np.concatenate([image.T for image in patches])  # (n, c e^2)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        assert lengths.min() > 1e-2 * lengths.max()  # none is left out as nearly zero
        rows = rows / lengths
        found = layer.filters.detach().flatten(1).numpy()
        nearest = (rows @ found.T).argmax(axis=1)
        for index, centroid in enumerate(found):
            total = rows[nearest == index].sum(axis=0)
            np.testing.assert_allclose(centroid, total / np.linalg.norm(total), rtol=0, atol=1e-12)
        maps = layer(maps).detach()


SOURCES: dict[str, Callable[[Tensor, Path], Any]] = {
    "array": lambda images, folder: images.numpy(),
    "path": lambda images, folder: saved(images, folder),
    "list of batches": lambda images, folder: list(images.split(8)),
    "loader": lambda images, folder: DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=8),
    "data set": lambda images, folder: TensorDataset(images, torch.arange(len(images))),
}


def saved(images: Tensor, folder: Path, name: str = "images.npy") -> Path:
    np.save(folder / name, images.numpy())
    return folder / name


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_filters(source: str, tmp_path: Path) -> None:
    images = pictures(21)
    assert same(fit(SOURCES[source](images, tmp_path)), fit(images))


def test_bytes_and_their_parts_of_255_give_the_same_filters() -> None:
    images = (255 * pictures(12)).byte()
    assert same(fit(images), fit(images.float() / 255))


def test_a_generator_is_enough_for_one_layer() -> None:
    images = pictures(21)
    assert same(fit((batch for batch in images.split(8)), ONE_LAYER), fit(images, ONE_LAYER))


def test_a_generator_is_refused_for_several_layers() -> None:
    given = network()
    before = [found.clone() for found in filters(given)]
    walked = []

    def batches() -> Iterator[Tensor]:
        walked.append(True)
        yield pictures(8)

    for source in (batches(), iter([pictures(8)]), map(torch.clone, [pictures(8)])):
        with pytest.raises(ValueError, match=r"only once, but each of the 3 layers needs a pass; give a list"):
            fit_unsupervised(given, source, patches=100)
    assert not walked
    assert all(torch.equal(old, new) for old, new in zip(before, filters(given), strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    images = pictures(20)
    images[17, 1, 2, 3] = bad
    given = network()
    before = [found.clone() for found in filters(given)]
    for use in (fit_unsupervised, encode):
        with pytest.raises(ValueError, match="NaN or infinity"):
            use(given, images, batch_size=8)
    assert all(torch.equal(old, new) for old, new in zip(before, filters(given), strict=True))


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_are_refused(channels: int) -> None:
    """Both say the same: which images the network expects and which it got."""
    images = pictures(20, channels=channels)
    for use in (fit_unsupervised, encode):
        with pytest.raises(ValueError, match=rf"expected images of shape \(B, 3, H, W\), got \(8, {channels}, 12, 12\)"):
            use(network(), images, batch_size=8)


@pytest.mark.parametrize("source", [torch.rand(0, 3, 12, 12), []])
def test_an_empty_set_is_refused(source: ImageSource) -> None:
    for use in (fit_unsupervised, encode):
        with pytest.raises(ValueError, match="the data set is empty"):
            use(network(), source)


def test_too_few_patches_are_refused() -> None:
    """One image of 5 x 5 pixels has 25 patches."""
    config = NetworkConfig(3, (LayerConfig(26, 3),))
    with pytest.raises(ValueError, match=r"26 filters need at least 26 patches other than zero, got 25; give more images"):
        fit(pictures(1, size=5), config)


def test_black_images_are_refused() -> None:
    """They have no patch with a direction."""
    with pytest.raises(ValueError, match=r"6 filters need at least 6 patches other than zero, got 0"):
        fit(torch.zeros(10, 3, 12, 12), ONE_LAYER)


def test_images_smaller_than_a_patch_are_refused() -> None:
    config = NetworkConfig(3, (LayerConfig(6, 5, padding=False),))
    with pytest.raises(ValueError, match=r"patches of side 5 do not fit into a map of 4 x 4 pixels"):
        fit(pictures(4, size=4), config)


def test_fewer_patches_than_filters_are_raised_to_as_many() -> None:
    fitted = fit(pictures(20), ONE_LAYER, patches=2)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sample = sample_patches(pictures(20).split(8), 3, True, 6, generator)
    cosines = filters(fitted)[0].flatten(1) @ sample.T
    torch.testing.assert_close(cosines.amax(dim=1), torch.ones(6), rtol=0, atol=1e-6)  # each filter is a patch


@pytest.mark.parametrize("training", [True, False])
def test_modes_and_gradients_are_left_alone(training: bool) -> None:
    given = network().train(training)
    given.kernel_layers[1].train(not training)
    given.kernel_layers[2].filters.requires_grad_(False)
    modes = [module.training for module in given.modules()]
    fit_unsupervised(given, pictures(20), patches=400, batch_size=8)
    encode(given, pictures(5))
    with pytest.raises(ValueError, match="NaN"):
        fit_unsupervised(given, torch.full((4, 3, 12, 12), torch.nan))
    with pytest.raises(ValueError, match="NaN"):
        encode(given, torch.full((4, 3, 12, 12), torch.nan))
    assert [module.training for module in given.modules()] == modes
    assert [layer.filters.requires_grad for layer in given.kernel_layers] == [True, True, False]
    assert all(isinstance(layer.filters, torch.nn.Parameter) for layer in given.kernel_layers)
    assert all(layer.filters.grad is None for layer in given.kernel_layers)
    assert torch.is_grad_enabled()
    assert given(pictures(2)).requires_grad


def test_the_images_are_left_alone() -> None:
    images = pictures(20)
    before = images.clone()
    encode(fit(images), images)
    assert torch.equal(images, before)


def test_a_fitted_network_forgets_the_roots_of_its_old_filters() -> None:
    images = pictures(20)
    given = network().eval()
    encode(given, images)
    fit_unsupervised(given, images, patches=400, iterations=5, batch_size=8)
    assert torch.equal(encode(given, images), encode(fit(images), images))


def test_the_projection_loses_less_than_with_random_filters() -> None:
    """At every layer, for patches of images it has not seen."""
    fitted, maps = fit(pictures(40), patches=2000, iterations=20), pictures(10)
    for layer in fitted.kernel_layers:
        patches = extract_patches(maps, layer.config.patch, layer.config.padding).transpose(1, 2).flatten(0, 1)
        learned, random = (
            projection_residuals(patches.double(), Z.double(), layer.config.kernel, epsilon=1e-3).mean()
            for Z in (layer.filters.detach(), torch.randn_like(layer.filters))
        )
        assert float(learned) < 0.3 * float(random)
        maps = layer(maps).detach()


def test_a_network_in_float64() -> None:
    """Computes in float64 whatever the images are, and encodes to float64."""
    images = pictures(20)
    fitted = fit_unsupervised(network(dtype=torch.float64), images, patches=400, iterations=3, batch_size=8)
    assert all(found.dtype == torch.float64 for found in filters(fitted))
    for found in filters(fitted):
        torch.testing.assert_close(
            found.flatten(1).norm(dim=1), torch.ones(len(found), dtype=torch.float64), rtol=1e-14, atol=0
        )
    features = encode(fitted, images)
    assert features.dtype == torch.float64
    torch.testing.assert_close(features, fitted(images.double()).flatten(1).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
def test_encode_gives_the_networks_output(batch_size: int) -> None:
    images = pictures(20).double()
    fitted = network(dtype=torch.float64)
    features = encode(fitted, images, batch_size=batch_size)
    assert features.shape == (20, 5 * 3 * 3)
    assert not features.requires_grad
    torch.testing.assert_close(features, fitted(images).flatten(1).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("source", SOURCES)
def test_encode_takes_every_source_in_order(source: str, tmp_path: Path) -> None:
    images, fitted = pictures(21), network()
    expected = encode(fitted, images, batch_size=8)
    assert torch.equal(encode(fitted, SOURCES[source](images, tmp_path), batch_size=8), expected)
    assert torch.equal(encode(fitted, iter(images.split(8)), batch_size=8), expected)


def test_no_bar_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    images = pictures(20)
    encode(fit(images, progress=True), images, progress=True)
    assert capfd.readouterr() == ("", "")


# Encodes a stream and prints the peak memory, in kilobytes, after 200 and after 2000 images of 12 kB (maps of 16 kB).
STREAM = """
import resource
from pathlib import Path
import torch
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.training.unsupervised import encoded_batches

torch.manual_seed(0)
network = CKN(NetworkConfig(3, (LayerConfig(16, 3, subsampling=2),)))

def peak():
    # on Linux ru_maxrss begins at the peak of the process that started this one, which may hide all that follows
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def stream(images):
    for _ in range(images // 20):
        yield torch.rand(20, 3, 32, 32)

for count in (200, 2000):
    seen = 0
    for features in encoded_batches(network, stream(count), batch_size=20):
        assert features.shape == (20, 16 * 16 * 16)
        seen += len(features)
    print(seen, peak())
"""


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    """1800 images more are 22 MB, and their maps 29 MB: neither is kept."""
    done = subprocess.run(
        [sys.executable, "-c", STREAM], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    (few, before), (many, after) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (200, 2000)
    kilobyte = 1024 if sys.platform == "darwin" else 1
    assert (after - before) / kilobyte < 8 * 1024


TWO_LAYERS = NetworkConfig(3, (LayerConfig(6, 3, subsampling=2), LayerConfig(8, 2, padding=False)))
# what a process makes of its share of the images, in a folder that all see
SHARES: dict[str, Callable[[Tensor, Path, int], Any]] = {
    "tensor": lambda images, folder, rank: images,
    "array": lambda images, folder, rank: images.numpy(),
    "path": lambda images, folder, rank: saved(images, folder, f"{rank}.npy"),
    "data set": lambda images, folder, rank: TensorDataset(images, torch.arange(len(images))),
    "list of batches": lambda images, folder, rank: list(images.split(4)),
    "loader": lambda images, folder, rank: DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=4),
}


def shared_fit(
    processes: Processes, images: Tensor, source: str, folder: Path, config: NetworkConfig, settings: dict[str, Any]
) -> list[Tensor]:
    share = SHARES[source](images[processes.share], folder, processes.rank)
    fitted = network(config, torch.float64)
    return filters(fit_unsupervised(fitted, share, patches=400, iterations=5, processes=processes, **settings))


def check_shared(processes: int, images: Tensor, source: str, folder: Path, **settings: Any) -> None:
    """Several processes find what one finds, up to rounding, and all of them the same to the last bit."""
    settings = {"batch_size": 4 * processes, **settings}
    found = team(processes).run(shared_fit, images, source, folder, TWO_LAYERS, settings)
    alone = fit_unsupervised(network(TWO_LAYERS, torch.float64), images, patches=400, iterations=5, **settings)
    assert not any(torch.equal(a, b) for a, b in zip(filters(alone), filters(network(TWO_LAYERS, torch.float64)), strict=True))
    for shared in found:
        for own, other, expected in zip(shared, found[0], filters(alone), strict=True):
            assert torch.equal(own, other)
            torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("count", [1, 2, 5, 12, 21, 25])
@pytest.mark.parametrize("processes", TEAMS)
def test_processes_that_share_the_images_find_the_filters_of_one(processes: int, count: int, tmp_path: Path) -> None:
    """Full batches and others, unequal shares, processes without an image in the last batch or at all."""
    check_shared(processes, pictures(count), "tensor", tmp_path)
    check_shared(processes, pictures(count), "tensor", tmp_path, batch_size=processes, seed=2)


@pytest.mark.parametrize("source", SHARES)
@pytest.mark.parametrize("processes", TEAMS)
def test_every_source_can_be_shared(processes: int, source: str, tmp_path: Path) -> None:
    """21 images: in the last batch of 8, or of 12, the shares are unequal; of 25 one process alone has the last."""
    for count in (21, 25):
        check_shared(processes, pictures(count), source, tmp_path)


def shared_layer(processes: Processes, images: Tensor) -> Tensor:
    """From a generator, which is enough for one layer, and whose first batch is larger than its share of batch_size."""
    share = images[processes.share]
    layer = network(ONE_LAYER, torch.float64).kernel_layers[0]
    batches = (batch for batch in (share[:6], share[6:]))
    return fit_unsupervised(layer, batches, patches=400, batch_size=8, processes=processes).filters.detach()


def test_a_layer_and_a_generator_can_be_shared() -> None:
    images = pictures(17)
    layer = network(ONE_LAYER, torch.float64).kernel_layers[0]
    expected = fit_unsupervised(layer, [images[:12], images[12:]], patches=400, batch_size=8).filters.detach()
    for found in team(2).run(shared_layer, images):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def fit_parts(processes: Processes, given: list[Any], settings: dict[str, Any]) -> list[Tensor]:
    return filters(fit(given[processes.rank], processes=processes, **settings))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((10, 8), r"cannot walk in step through \[10, 8\] images: of 2, process r is to give those numbered r, r \+ 2"),
        ((8, 9), r"cannot walk in step through \[8, 9\] images"),
        ((0, 4), r"cannot walk in step through \[0, 4\] images"),
        ((0, 0), "the data set is empty"),
    ],
)
def test_images_that_are_not_the_shares_are_refused_by_all_processes(lengths: tuple[int, int], message: str) -> None:
    for outcome in team(2).outcomes(fit_parts, [pictures(length) for length in lengths], {}):
        with pytest.raises(ValueError, match=message):
            raise outcome


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (([3, 4], [4, 3]), r"in step through \[3, 4\] images"),
        (([4, 2, 2], [4, 4]), r"in step through \[6, 8\] images"),
        (([4, 0], [3, 1]), r"hold \[0, 1\] rows"),
    ],
)
def test_batches_that_are_not_in_step_are_refused_by_all_processes(sizes: tuple[list[int], list[int]], message: str) -> None:
    given = [[pictures(size) for size in own] for own in sizes]
    for outcome in team(2).outcomes(fit_parts, given, {}):
        with pytest.raises(ValueError, match=message):
            raise outcome


def test_images_of_different_sizes_in_one_batch_are_refused_by_all_processes() -> None:
    for other in (pictures(8, size=10), pictures(8, channels=1)):
        for outcome in team(2).outcomes(fit_parts, [pictures(8), other], {}):
            with pytest.raises(ValueError, match="the processes hold images of different shapes in one batch"):
                raise outcome


def test_what_stops_one_process_stops_all() -> None:
    spoiled = pictures(20)
    spoiled[17, 1, 2, 3] = torch.nan
    first, second = team(2).outcomes(fit_parts, [pictures(20), spoiled], {})
    with pytest.raises(RuntimeError, match="process 1 could not read its images"):
        raise first
    with pytest.raises(ValueError, match="NaN or infinity"):
        raise second


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    for outcome in team(3).outcomes(fit_parts, [pictures(8)] * 3, {"batch_size": 8}):
        with pytest.raises(ValueError, match="batch_size must be a multiple of the number of processes, 3, got 8"):
            raise outcome


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_same_bits_twice_and_agrees_with_the_cpu() -> None:
    images = pictures(30)
    first, again = (
        fit_unsupervised(network(dtype=torch.float64).cuda(), images, patches=800, iterations=5, batch_size=8) for _ in range(2)
    )
    assert same(first, again)
    on_cpu = fit_unsupervised(network(dtype=torch.float64), images, patches=800, iterations=5, batch_size=8)
    for on_cuda, expected in zip(filters(first), filters(on_cpu), strict=True):
        torch.testing.assert_close(on_cuda.cpu(), expected, rtol=1e-9, atol=1e-9)
