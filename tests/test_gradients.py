"""The gradient three times over: autograd, central differences, and the closed form of Proposition 1, in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from closed_form import ClosedFormLayer
from torch import Tensor

from sckn.inverse_root import Gradient, InverseRoot
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Polynomial
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import unit_rows
from sckn.patches import patch_norms

LEARNED = Exponential(3.0, learnable=True)
CENTRED = CentredExponential(3.0, learnable=True)
three_kernels = pytest.mark.parametrize("kernel", [LEARNED, CENTRED, ArcCosine()], ids=["exponential", "centred", "arc-cosine"])
both_methods = pytest.mark.parametrize("method", ["eigh", "newton_schulz"])
equal_filters = pytest.mark.parametrize("duplicated", [False, True], ids=["random filters", "two equal filters"])


def make_network(kernel: Kernel, method: InverseRoot, duplicated: bool, gradient: Gradient = "exact") -> CKN:
    """3 x 3, 1 x 1, 3 x 3; pooling sqrt 2, none, 3. The filters are of any length: only their direction counts."""
    layers = tuple(
        LayerConfig(filters, patch, subsampling, kernel=kernel, inverse_root=method, gradient=gradient)
        for filters, patch, subsampling in ((3, 3, math.sqrt(2)), (4, 1, 1.0), (2, 3, 3.0))
    )
    network = CKN(NetworkConfig(2, layers)).double()
    with torch.no_grad():
        for layer in network.kernel_layers:
            layer.filters.mul_(0.5 + torch.rand(len(layer.filters), 1, 1, 1, dtype=torch.float64))
            if duplicated:
                layer.filters[1] = layer.filters[0]
    return network


def image_with_zero_patches(network: CKN) -> Tensor:
    """So large a black corner that every layer meets patches that are exactly zero."""
    images = torch.randn(1, 2, 12, 13, dtype=torch.float64)
    images[:, :, :9, :9] = 0
    with torch.no_grad():
        maps = images
        for layer in network.kernel_layers:
            assert bool((patch_norms(maps, layer.config.patch, True) == 0).any())
            maps = layer(maps)
    return images


def central_differences(loss: Callable[[], Tensor], variable: Tensor, h: float = 1e-6) -> Tensor:
    """dloss/dvariable, one number at a time; `loss` reads the variable, which is changed in place and restored."""
    gradient = torch.zeros_like(variable)
    with torch.no_grad():
        numbers = variable.view(-1)
        for i in range(len(numbers)):
            value = float(numbers[i])
            numbers[i] = value + h
            above = loss()
            numbers[i] = value - h
            below = loss()
            numbers[i] = value
            gradient.view(-1)[i] = (above - below) / (2 * h)
    return gradient


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


@three_kernels
@both_methods
@equal_filters
def test_autograd_agrees_with_central_differences(kernel: Kernel, method: InverseRoot, duplicated: bool) -> None:
    network = make_network(kernel, method, duplicated)
    images = image_with_zero_patches(network)
    weights = torch.randn_like(network(images))

    (network(images) * weights).sum().backward()
    maps = images
    for depth, layer in enumerate(network.kernel_layers):
        assert len(list(layer.parameters())) == (2 if kernel in (LEARNED, CENTRED) else 1)

        def loss(first: int = depth, start: Tensor = maps) -> Tensor:
            """From this layer on: the maps below do not depend on its parameters."""
            current = start
            for above in network.kernel_layers[first:]:
                current = above(current)
            return (current * weights).sum()

        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None
            assert relative_error(parameter.grad, central_differences(loss, parameter)) < 1e-6, f"{name} of layer {depth}"
        maps = layer(maps).detach()


@three_kernels
def test_gradient_for_the_image_agrees_with_central_differences(kernel: Kernel) -> None:
    """Without zero patches, where the norm has a corner."""
    network = make_network(kernel, "eigh", duplicated=False)
    images = torch.randn(1, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(network(images))
    (gradient,) = torch.autograd.grad((network(images) * weights).sum(), images)
    expected = central_differences(lambda: (network(images) * weights).sum(), images.detach())
    assert relative_error(gradient, expected) < 1e-6


def closed_form_layers(network: CKN) -> list[ClosedFormLayer]:
    return [
        ClosedFormLayer(
            Z=unit_rows(layer.filters).T,
            kernel=layer.kernel,
            patch=layer.config.patch,
            subsampling=layer.config.subsampling,
            padding=layer.config.padding,
            epsilon=layer.config.epsilon,
            norm_offset=layer.config.norm_offset,
            gradient=layer.config.gradient,
        )
        for layer in network.kernel_layers
    ]


def assert_closed_form_agrees(network: CKN, images: Tensor) -> None:
    """Forward, g of each layer on the tangent space of the sphere, and h all the way down to the image."""
    images = images.clone().requires_grad_()
    output = network(images)
    weights = torch.randn_like(output)
    (output * weights).sum().backward()

    with torch.no_grad():
        layers = closed_form_layers(network)
        maps = [images[0]]
        for layer in layers:
            maps.append(layer.forward(maps[-1]))
        assert relative_error(output[0], maps[-1]) < 1e-10

        U = weights[0]
        for j in reversed(range(len(layers))):
            g, U = layers[j].backward(maps[j], U)
            Z, filters = layers[j].Z, network.kernel_layers[j].filters
            tangent = g - Z * (Z * g).sum(dim=0)  # a filter is used as filter / |filter|: nothing pulls along it
            expected = (tangent / filters.flatten(1).norm(dim=1)).T.reshape(filters.shape)
            assert filters.grad is not None
            assert relative_error(filters.grad, expected) < 1e-10, f"filters of layer {j}"
        assert images.grad is not None
        assert relative_error(images.grad[0], U) < 1e-10


@pytest.mark.parametrize("gradient", ["exact", "paper"])
@pytest.mark.parametrize(
    "kernel", [LEARNED, CENTRED, ArcCosine(), Polynomial(2, 0.5)], ids=["exponential", "centred", "arc-cosine", "polynomial"]
)
@both_methods
@equal_filters
def test_autograd_agrees_with_proposition_1(kernel: Kernel, method: InverseRoot, duplicated: bool, gradient: Gradient) -> None:
    network = make_network(kernel, method, duplicated, gradient)
    assert_closed_form_agrees(network, image_with_zero_patches(network))


@pytest.mark.parametrize("patch", [2, 3, 5])
@pytest.mark.parametrize("norm_offset", [0.0, 0.1])
def test_proposition_1_without_padding_and_with_other_offsets(patch: int, norm_offset: float) -> None:
    """An offset of 0.1 makes the second slip of the printed h, S^-2, impossible to miss."""
    layers = (
        LayerConfig(5, patch, 1.5, padding=False, norm_offset=norm_offset),
        LayerConfig(4, 2, 2.0, padding=True, norm_offset=norm_offset, epsilon=0.05),
    )
    assert_closed_form_agrees(CKN(NetworkConfig(2, layers)).double(), torch.randn(1, 2, 9, 11, dtype=torch.float64))


def test_the_paper_option_is_not_the_gradient() -> None:
    """It changes the backward pass alone, and by far more than rounding, most of all in the 1 x 1 layer."""
    network = make_network(Exponential(1.0), "eigh", duplicated=False)
    paper = make_network(Exponential(1.0), "eigh", duplicated=False, gradient="paper")
    paper.load_state_dict(network.state_dict())
    images = torch.randn(1, 2, 12, 13, dtype=torch.float64)
    outputs = [net(images) for net in (network, paper)]
    assert torch.equal(*outputs)
    weights = torch.randn_like(outputs[0])
    exact_gradient, paper_gradient = (
        torch.autograd.grad((output * weights).sum(), net.kernel_layers[1].filters)[0]
        for output, net in zip(outputs, (network, paper), strict=True)
    )
    assert relative_error(paper_gradient, exact_gradient) > 0.05
