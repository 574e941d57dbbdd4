"""The fused kernel map gives the numbers of the plain one, and is used only where it applies."""

import pytest
import torch
from torch import Tensor

from sckn import fused
from sckn.kernels import Exponential
from sckn.layer import KernelLayer, LayerConfig
from sckn.precision import precision


def channels_last(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).contiguous(memory_format=torch.channels_last)


def test_it_does_not_apply_on_a_cpu() -> None:
    u, scale = channels_last(2, 8, 4, 4), torch.rand(2, 1, 4, 4)
    assert not fused.applies(u, scale)


@pytest.mark.gpu
def test_it_applies_to_channels_last_maps_with_a_scale_for_each_pixel() -> None:
    u, scale = channels_last(2, 8, 4, 4).cuda(), torch.rand(2, 1, 4, 4).cuda()
    assert fused.applies(u, scale)
    assert not fused.applies(u.contiguous(), scale)
    assert not fused.applies(u, scale[:, :, :1, :1])
    assert not fused.applies(u.double(), scale.double())


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 32, 100, 128, 512, 4096])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_value_and_gradients_are_those_of_the_formula(channels: int, dtype: torch.dtype, tolerance: float) -> None:
    """In float64 with autograd; a pixel without length gives 0 and no gradient."""
    u = channels_last(3, channels, 5, 7, dtype=dtype).cuda().requires_grad_()
    scale, shift = torch.rand(3, 1, 5, 7).cuda(), torch.randn(3, 1, 5, 7).cuda()
    scale[0, 0, 0, 0], shift[0, 0, 0, 0] = 0, -torch.inf
    scale.requires_grad_()
    shift.requires_grad_()
    weights = channels_last(3, channels, 5, 7).cuda()
    found = fused.exponential_of_line(u, scale, shift)
    gradients = torch.autograd.grad(found, (u, scale, shift), weights)
    exact = [tensor.detach().double().requires_grad_() for tensor in (u, scale, shift)]
    expected = torch.exp(exact[1] * exact[0] + exact[2])
    expected_gradients = torch.autograd.grad(expected, exact, weights.double())
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert float((found.detach().double() - expected.detach()).norm() / expected.detach().norm()) < 1e-5
    assert float(found[0, :, 0, 0].detach().abs().max()) == 0
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        assert float((gradient.double() - right).norm() / right.norm()) < tolerance


@pytest.mark.gpu
def test_a_layer_gives_the_same_in_either_order_of_memory() -> None:
    layer = KernelLayer(6, LayerConfig(20, 3, subsampling=1.5, kernel=Exponential(3.0, learnable=True))).cuda()
    images = torch.randn(4, 6, 11, 10).cuda()
    images[0, :, :4, :4] = 0  # patches without length
    outputs, gradients = [], []
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        given = given.detach().requires_grad_()
        with precision("highest", images.device):  # the convolutions would round as TF32, each order its own way
            out = layer(given)
            loss = (out * torch.linspace(-1, 1, out.numel()).cuda().view(out.shape)).sum()
            outputs.append(out.detach())
            gradients.append(torch.autograd.grad(loss, [given, *layer.parameters()]))
    torch.testing.assert_close(outputs[1].contiguous(), outputs[0].contiguous(), rtol=1e-4, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-4
