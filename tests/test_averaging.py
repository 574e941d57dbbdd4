"""Running means of the iterates in closed form."""

import numpy as np
import pytest
import torch

from sckn.kernels import Exponential
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.training.averaging import IterateAverage


def small_network(learnable: bool = True) -> CKN:
    kernel = Exponential(4.0, learnable=learnable)
    return CKN(NetworkConfig(1, (LayerConfig(4, 3, kernel=kernel), LayerConfig(3, 2, subsampling=2)))).double()


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_the_mean_is_a_weighted_sum_of_all_iterates(decay: float) -> None:
    """decay^t x_0 + (1 - decay) sum_s decay^(t - s) x_s."""
    iterates = np.random.default_rng(0).normal(size=(8, 3, 2))
    parameter = torch.nn.Parameter(torch.tensor(iterates[0]))
    average = IterateAverage([parameter], decay)
    for t in range(1, 8):
        parameter.data.copy_(torch.tensor(iterates[t]))
        average.update()
        weights = np.array([decay**t, *((1 - decay) * decay ** (t - s) for s in range(1, t + 1))])
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(average.means[0].numpy(), np.tensordot(weights, iterates[: t + 1], axes=1), rtol=1e-12)
    np.testing.assert_array_equal(parameter.detach().numpy(), iterates[-1])


def test_a_restart_forgets_what_was_before() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    average = IterateAverage([parameter], 0.9)
    place = average.means[0].data_ptr()
    parameter.data.fill_(5)
    average.restart()
    assert average.means[0].tolist() == [5, 5, 5]
    assert average.means[0].data_ptr() == place  # where a recorded step finds it
    parameter.data.fill_(15)
    average.update()
    assert average.means[0].tolist() == pytest.approx([6, 6, 6])


def test_each_parameter_has_its_own_mean() -> None:
    """Found by identity: equal values are not enough."""
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    average = IterateAverage([first, second], 0.5)
    second.data.fill_(3)
    average.update()
    assert average.mean_of(first).tolist() == [1, 1]
    assert average.mean_of(second).tolist() == [2, 2]


def test_averaged_filters_have_unit_norm_and_the_network_is_left_alone() -> None:
    network, other = small_network(), small_network()
    average = IterateAverage(list(reversed(list(network.parameters()))), 0.75)  # in any order
    start = [parameter.detach().clone() for parameter in network.parameters()]
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), other.parameters(), strict=True):
            parameter.copy_(value if value.dim() else value + 1)
    average.update()
    averaged = average.averaged(network)
    expected = [0.75 * old + 0.25 * new.detach() for old, new in zip(start, network.parameters(), strict=True)]
    for found, mean in zip(averaged.parameters(), expected, strict=True):
        if mean.dim():
            mean = mean / mean.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            torch.testing.assert_close(found.detach().flatten(1).norm(dim=1), torch.ones(len(mean), dtype=torch.float64))
        torch.testing.assert_close(found.detach(), mean, rtol=1e-12, atol=1e-12)
    alpha = averaged.kernel_layers[0].log_alpha
    assert alpha is not None
    assert float(alpha.detach()) == pytest.approx(np.log(4) + 0.25)
    for parameter, value in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, value if value.dim() else value + 1)
    images = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    assert not torch.allclose(averaged(images), network(images))


def test_a_network_that_was_evaluated_is_averaged_all_the_same() -> None:
    """Its remembered root belongs to its own filters, not to those of the average."""
    network = small_network()
    average = IterateAverage(network.parameters(), 0.5)
    with torch.no_grad():
        for layer in network.kernel_layers:
            layer.filters.copy_(torch.randn_like(layer.filters))
        average.update()
        images = torch.rand(2, 1, 6, 6, dtype=torch.float64)
        network.eval()(images)
        averaged = average.averaged(network)
        fresh = small_network().eval()
        fresh.load_state_dict(averaged.state_dict())
        torch.testing.assert_close(averaged(images), fresh(images), rtol=1e-12, atol=1e-12)
