"""How precisely convolutions are computed, and that matrices and norms do not suffer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sckn.inverse_root import InverseRoot
from sckn.kernels import Exponential
from sckn.layer import KernelLayer, LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.patches import patch_norms
from sckn.precision import Precision, precision

CPU = torch.device("cpu")


def switches() -> list[Any]:
    return [
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # pyright: ignore[reportAttributeAccessIssue]
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
    ]


@pytest.mark.parametrize(("name", "dtype"), [("highest", torch.float32), ("high", torch.float32), ("medium", torch.bfloat16)])
def test_convolutions_and_products_have_this_type(name: Precision, dtype: torch.dtype) -> None:
    maps, filters = torch.rand(1, 2, 5, 5), torch.rand(3, 2, 3, 3)
    with precision(name, CPU):
        assert F.conv2d(maps, filters).dtype == dtype
        assert (filters.flatten(1) @ filters.flatten(1).T).dtype == dtype
    assert F.conv2d(maps, filters).dtype == torch.float32


@pytest.mark.parametrize(("name", "expected"), [("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")])
def test_the_switches_of_a_gpu_are_set(name: Precision, expected: str) -> None:
    with precision(name, CPU):
        assert switches()[:2] == [expected, expected]
        assert switches()[2] == (name == "medium")
        assert not torch.is_autocast_cache_enabled() or name != "medium"


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
@pytest.mark.parametrize("before", ["ieee", "tf32"])
def test_afterwards_all_is_as_before(name: Precision, before: str) -> None:
    def fails() -> None:
        with precision(name, CPU), precision("medium" if name == "highest" else "highest", CPU):
            raise RuntimeError("something else")

    found = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = before
        expected = switches()
        assert expected[0] == before
        with precision(name, CPU):
            pass
        assert switches() == expected
        with pytest.raises(RuntimeError, match="something else"):
            fails()
        assert switches() == expected
    finally:
        torch.backends.cuda.matmul.fp32_precision = found


def test_highest_inside_medium_is_highest() -> None:
    with precision("medium", CPU):
        with precision("highest", CPU):
            assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype == torch.float32
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz"])
def test_at_medium_precision_matrices_and_norms_keep_fp32(inverse_root: InverseRoot) -> None:
    """A layer's output has the error of a product in bf16; its p x p matrix and the norms of patches not one bit of it."""
    layer = KernelLayer(3, LayerConfig(24, 3, subsampling=2, inverse_root=inverse_root))
    images = torch.rand(4, 3, 12, 12)
    with torch.no_grad():
        root, norms = layer.inverse_root(), patch_norms(images, 3, True)
        with precision("medium", CPU):
            output = layer(images)
            assert torch.equal(layer.inverse_root(), root)
            assert torch.equal(patch_norms(images, 3, True), norms)
        exact = layer.double()(images.double())
    K = layer.gram().detach()
    residual = root.double() @ K @ root.double() - torch.eye(24, dtype=torch.float64)
    assert float(residual.norm()) < 1e-3  # bf16 in any of its products would leave 1e-1 or more at this condition
    error = float((output.double() - exact).norm() / exact.norm())
    assert output.dtype == torch.float32
    assert 1e-4 < error < 1e-2


@pytest.mark.parametrize("type_of_images", [torch.float32, torch.bfloat16])
def test_at_medium_precision_layers_of_single_pixels_keep_fp32(type_of_images: torch.dtype) -> None:
    """Also after a layer of another kind, which gives what autocast makes of it."""
    layer = KernelLayer(16, LayerConfig(24, 1, subsampling=2, kernel=Exponential(16.0)))
    images = torch.rand(4, 16, 12, 12).to(type_of_images)
    with torch.no_grad():
        expected = layer(images.float())
        with precision("medium", CPU):
            assert torch.equal(layer(images), expected)


def test_at_medium_precision_what_nearly_cancels_is_not_rounded() -> None:
    """Smooth images and a small alpha: the kernel values of a patch are nearly the same for all filters, and A, of condition
    10^3, gives features from their differences."""
    layer = KernelLayer(3, LayerConfig(64, 3, subsampling=4, kernel=Exponential(0.5)))
    images = 1 + 0.1 * torch.rand(8, 3, 12, 12)
    with torch.no_grad():
        expected = layer(images)
        with precision("medium", CPU):
            output = layer(images)
    centred = expected - expected.mean(dim=(0, 2, 3), keepdim=True)
    assert float((output - expected).norm() / centred.norm()) < 0.1  # with its second product in bf16: above 0.5


def test_the_output_of_a_network_has_the_type_of_its_images() -> None:
    layers = (LayerConfig(8, 3, subsampling=2), LayerConfig(6, 2))
    with precision("medium", CPU):
        assert CKN(NetworkConfig(3, layers))(torch.rand(2, 3, 8, 8)).dtype == torch.float32


def test_the_gradient_of_the_root_keeps_fp32_too() -> None:
    """With the backward pass outside autocast, as PyTorch advises and a training step does it."""
    layer = KernelLayer(3, LayerConfig(24, 3))
    weights = torch.rand(24, 24)

    def gradient(name: Precision) -> torch.Tensor:
        with precision(name, CPU):
            total = (layer.inverse_root() * weights).sum()
            with torch.autocast("cpu", enabled=False):
                (found,) = torch.autograd.grad(total, layer.filters)
        return found

    assert torch.equal(gradient("medium"), gradient("highest"))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "least", "most"), [("highest", 0, 1e-5), ("high", 1e-6, 2e-3), ("medium", 1e-4, 1e-2)])
def test_errors_on_a_gpu(name: Precision, least: float, most: float) -> None:
    layer = KernelLayer(16, LayerConfig(32, 3, subsampling=2, inverse_root="newton_schulz")).cuda()
    images = torch.rand(8, 16, 16, 16, device="cuda")
    with torch.no_grad():
        with precision(name, images.device):
            output = layer(images)
        exact = layer.double()(images.double())
    error = float((output.double() - exact).norm() / exact.norm())
    assert least <= error < most
