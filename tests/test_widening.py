"""Widening against what it says: the narrow network's features and inner products are found again in the wide one's."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sckn import CKN, LayerConfig, NetworkConfig
from sckn.inverse_root import InverseRoot
from sckn.kernels import CentredExponential, Exponential, Kernel
from sckn.nystrom import unit_rows
from sckn.patches import extract_patches
from sckn.precision import precision
from sckn.training.widening import embedding, obstacle_to_widening, widen

KERNELS = (Exponential(4.0, learnable=True), CentredExponential(3.0, learnable=True))


def config(filters: list[int], kernel: Kernel = KERNELS[0], inverse_root: InverseRoot = "eigh") -> NetworkConfig:
    layers = (LayerConfig(count, 3, padding=False, kernel=kernel, inverse_root=inverse_root) for count in filters)
    return NetworkConfig(2, tuple(layers))


def pictures(count: int) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randn(count, 2, 12, 12, dtype=torch.float64, generator=draws)


def widened(narrow: CKN, filters: list[int]) -> CKN:
    known = narrow.config.layers[0]
    wide = CKN(config(filters, known.kernel, known.inverse_root)).double()
    widen(wide, narrow)
    return wide.eval()


@pytest.fixture(params=KERNELS, ids=lambda kernel: type(kernel).__name__)
def narrow(request: pytest.FixtureRequest) -> CKN:
    torch.manual_seed(1)
    network = CKN(config([5, 7], request.param)).double().eval()
    with torch.no_grad():
        for layer, alpha in zip(network.kernel_layers, (2.5, 6.0), strict=True):
            assert layer.log_alpha is not None
            layer.log_alpha.fill_(alpha).log_()
    return network


@torch.no_grad()
def test_features_of_the_narrow_layer_are_linear_in_those_of_the_wide_one(narrow: CKN) -> None:
    wide = widened(narrow, [9, 12])
    few, many = narrow.kernel_layers[0], wide.kernel_layers[0]
    M = embedding(few, many)
    assert M.shape == (5, 9)
    torch.testing.assert_close(M @ M.T, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-9)
    images = pictures(3)
    torch.testing.assert_close(torch.einsum("pd,bdhw->bphw", M, many(images)), few(images), rtol=0, atol=1e-9)


@torch.no_grad()
def test_inner_products_with_the_next_layers_filters_stay(narrow: CKN) -> None:
    wide, images = widened(narrow, [9, 12]), pictures(3)
    products = []
    for network in (narrow, wide):
        first, second = network.kernel_layers
        products.append(second.directions()[:7] @ extract_patches(first(images), 3, padding=False))
    torch.testing.assert_close(products[1], products[0], rtol=0, atol=1e-9)
    lengths = [torch.linalg.vector_norm(network.kernel_layers[0](images), dim=1) for network in (narrow, wide)]
    assert bool((lengths[1] > lengths[0] - 1e-12).all())
    assert [layer.kernel for layer in wide.kernel_layers] == [layer.kernel for layer in narrow.kernel_layers]


@torch.no_grad()
def test_what_the_narrow_network_says_the_wide_one_nearly_says(narrow: CKN) -> None:
    """The part of its features' spread that no linear model on the wide one's finds: less with a smaller angle, and much less
    than with new filters that have nothing to do with the known ones."""
    images, missed = pictures(40), []
    few = narrow(images).permute(0, 2, 3, 1).flatten(0, 2)
    for angle in (0.05, 0.2, 100.0):
        wide = CKN(config([9, 12], narrow.config.layers[0].kernel)).double().eval()
        widen(wide, narrow, angle=angle)
        many = wide(images).permute(0, 2, 3, 1).flatten(0, 2)
        many = torch.cat([many, torch.ones(len(many), 1, dtype=many.dtype)], dim=1)
        rest = few - many @ torch.linalg.lstsq(many, few).solution
        missed.append(float(rest.square().sum() / (few - few.mean(0)).square().sum()))
    assert missed[0] < missed[1] < missed[2] / 2


@torch.no_grad()
def test_new_filters_are_turned_copies(narrow: CKN) -> None:
    """One of each before a second one of any; every seed has its own."""
    wide = CKN(config([12, 7], narrow.config.layers[0].kernel)).double()
    first, second = (unit_rows(filters) for filters in (narrow.kernel_layers[0].filters, wide.kernel_layers[0].filters))
    for seed in (0, 1):
        widen(wide, narrow, angle=0.1, seed=seed)
        before, second = second, unit_rows(wide.kernel_layers[0].filters)
        assert not torch.equal(before, second)
        cosines = (second[5:] * first[[0, 1, 2, 3, 4, 0, 1]]).sum(1)
        assert bool((cosines > 0.99).all())
        assert bool((cosines < 0.9999).all())
    with pytest.raises(ValueError, match="angle must be a number above 0, got 0"):
        widen(wide, narrow, angle=0)


@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz", "moving_frame"])
@torch.no_grad()
def test_the_same_width_is_the_same_network(narrow: CKN, inverse_root: InverseRoot) -> None:
    """Up to a rotation of the last features, which a moving frame has of its own."""
    same = CKN(config([5, 7], narrow.config.layers[0].kernel, inverse_root)).double()
    widen(same, narrow)
    maps = [network.eval()(pictures(3)).flatten(2) for network in (narrow, same)]
    kernels = [each.mT @ each for each in maps]
    torch.testing.assert_close(kernels[1], kernels[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("inverse_root", ["eigh", "moving_frame"])
@torch.no_grad()
def test_a_frame_that_has_turned(narrow: CKN, inverse_root: InverseRoot) -> None:
    turning = CKN(config([5, 7], narrow.config.layers[0].kernel, "moving_frame")).double()
    turning.load_state_dict(narrow.state_dict(), strict=False)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    frame = turning.kernel_layers[0].frame
    assert frame is not None
    frame.copy_(narrow.kernel_layers[0].inverse_root() @ rotation)
    wide = CKN(config([9, 12], narrow.config.layers[0].kernel, inverse_root)).double()
    widen(wide, turning)
    products = []
    for network in (turning.eval(), wide.eval()):
        first, second = network.kernel_layers
        products.append(second.directions()[:7] @ extract_patches(first(pictures(3)), 3, padding=False))
    torch.testing.assert_close(products[1], products[0], rtol=0, atol=1e-9)


@torch.no_grad()
def test_in_a_training_in_bf16_filters_keep_the_digits_of_fp32() -> None:
    torch.manual_seed(0)
    narrow = CKN(config([40, 8])).eval()
    wide = CKN(config([80, 8]))
    with precision("medium", torch.device("cpu")):
        widen(wide, narrow)
    M = embedding(narrow.kernel_layers[0], wide.kernel_layers[0])
    assert M.dtype == torch.float32
    torch.testing.assert_close(M @ M.T, torch.eye(40), rtol=0, atol=1e-3)
    embedded = torch.einsum("pcij,cd->pdij", narrow.kernel_layers[1].filters, M)
    torch.testing.assert_close(wide.kernel_layers[1].filters[:8], embedded, rtol=0, atol=1e-4)


def test_what_is_refused() -> None:
    few = config([5, 7])
    assert obstacle_to_widening(few, config([5, 8])) is None
    padded = NetworkConfig(2, tuple(replace(layer, padding=True) for layer in few.layers))
    finer = NetworkConfig(2, (few.layers[0], replace(few.layers[1], epsilon=1e-4)))
    for other, words in (
        (config([5, 6]), "7 filters in layer 2, more than 6"),
        (config([5, 7, 7]), "2 layers, not 3"),
        (config([5, 7], Exponential(3.0, learnable=True)), r"as layer 1 .*alpha=4\.0.*, not .*alpha=3\.0"),
        (padded, "as layer 1 .*padding=False.*, not .*padding=True"),
        (finer, "as layer 2 .*epsilon=0.001.*, not .*epsilon=0.0001"),
        (replace(few, in_channels=1), "2 channels, not 1"),
    ):
        with pytest.raises(ValueError, match=f"the narrow network has {words}.*; give one with the same layers"):
            widen(CKN(other), CKN(few))
