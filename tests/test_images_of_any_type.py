"""Every door treats the same images alike: bytes mean [0, 1], integers, NaN and wrong channels are refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from sckn import (
    CKN,
    CKNTransformer,
    KernelLayer,
    LayerConfig,
    NetworkConfig,
    encode,
    exact_kernel_matrix,
    fit_unsupervised,
    kernel_matrix,
    local_whitening,
)
from sckn.kmeans import spherical_kmeans

CONFIG = NetworkConfig(1, (LayerConfig(4, 3, subsampling=2),))


def network() -> CKN:
    torch.manual_seed(0)
    return CKN(CONFIG)


DOORS: dict[str, Callable[[Tensor], Any]] = {
    "encode": lambda images: encode(network(), images),
    "kernel_matrix": lambda images: kernel_matrix(network(), images),
    "exact_kernel_matrix": lambda images: exact_kernel_matrix(network(), images),
    "fit_unsupervised": lambda images: fit_unsupervised(network(), images, patches=50).layers[0].filters,
    "CKNTransformer": lambda images: torch.from_numpy(CKNTransformer(network()).fit_transform(images)),
}


@pytest.mark.parametrize("door", DOORS)
def test_bytes_mean_zero_to_one(door: str) -> None:
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(DOORS[door](images), DOORS[door](images.float() / 255))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(door: str, value: float) -> None:
    images = torch.rand(6, 1, 8, 8)
    images[2, 0, 3, 3] = value
    with pytest.raises(ValueError, match=r"(?i)nan|infinity"):
        DOORS[door](images)


@pytest.mark.parametrize("door", DOORS)
def test_wrong_channels_are_refused(door: str) -> None:
    with pytest.raises(ValueError, match=r"channels|\(B, 1, H, W\)"):
        DOORS[door](torch.rand(6, 3, 8, 8))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_layer_refuses_integers(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="floating point"):
        KernelLayer(1, LayerConfig(2, 3))(torch.ones(1, 1, 4, 4, dtype=dtype))


@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz"])
def test_a_zero_filter_is_valid_and_a_nan_is_named(inverse_root: Any) -> None:
    layer = KernelLayer(1, LayerConfig(3, 3, inverse_root=inverse_root))
    layer.filters.data[1] = 0
    output = layer(torch.rand(2, 1, 6, 6))
    output.sum().backward()
    assert output.isfinite().all()
    assert layer.filters.grad is not None
    assert layer.filters.grad.isfinite().all()
    layer.filters.data[1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        layer(torch.rand(2, 1, 6, 6))


def test_a_single_layer_learns_without_labels() -> None:
    images = torch.rand(10, 1, 8, 8)
    layer = fit_unsupervised(KernelLayer(1, CONFIG.layers[0]), images, patches=200, seed=3)
    whole = fit_unsupervised(network(), images, patches=200, seed=3)
    assert torch.equal(layer.filters, whole.layers[0].filters)  # pyright: ignore[reportArgumentType]


class Stream(IterableDataset[Tensor]):
    """Batches, with a length."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(2 * 3 * 16.0).view(2, 3, 1, 4, 4))

    def __len__(self) -> int:
        return 2


def test_an_iterable_data_set_with_a_length_is_walked_through() -> None:
    assert encode(network(), Stream()).shape == (6, 4 * 2 * 2)


def test_learning_inside_autocast() -> None:
    images = torch.rand(20, 1, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learned = fit_unsupervised(network(), images, patches=200)
        vectors = torch.nn.functional.normalize(torch.randn(50, 3), dim=1)
        inside = spherical_kmeans(vectors, 5, generator=torch.Generator().manual_seed(0)).centroids
    outside = spherical_kmeans(vectors, 5, generator=torch.Generator().manual_seed(0)).centroids
    assert learned.layers[0].filters.isfinite().all()  # pyright: ignore
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("settings", [{"patches": 0}, {"patches": 1e4}, {"iterations": 0}, {"batch_size": 0}, {"seed": None}])
def test_settings_of_learning_are_checked(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        fit_unsupervised(network(), torch.rand(5, 1, 8, 8), **settings)


def test_whitening_names_nan() -> None:
    images = torch.rand(2, 3, 8, 8)
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        local_whitening(images)
