"""CKN and its configuration: sizes of the paper's networks, batched inverse roots, checkpoints."""

import copy
import json
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.inverse_root import InverseRoot, inverse_square_root
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Linear, Polynomial
from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig


def paper_network(filters: int, inverse_root: InverseRoot = "eigh") -> NetworkConfig:
    """Nine layers, 3 x 3 and 1 x 1 in turn, pooling after every 3 x 3 layer: section 4."""
    factors = [math.sqrt(2), 1, math.sqrt(2), 1, math.sqrt(2), 1, math.sqrt(2), 1, 3]
    return NetworkConfig(
        3,
        tuple(
            LayerConfig(filters, 3 if index % 2 == 0 else 1, factor, inverse_root=inverse_root)
            for index, factor in enumerate(factors)
        ),
    )


def test_sizes_of_the_paper_network() -> None:
    config = paper_network(4)
    predicted = [NetworkConfig(3, config.layers[:depth]).output_size(32, 32) for depth in range(1, 10)]
    assert predicted == [(size, size) for size in (23, 23, 16, 16, 11, 11, 8, 8, 3)]
    maps, sizes = torch.randn(1, 3, 32, 32), []
    for layer in CKN(config).kernel_layers:
        maps = layer(maps)
        sizes.append(tuple(maps.shape[2:]))
    assert sizes == predicted
    height, width = paper_network(512).output_size(32, 32)
    assert 512 * height * width == 4608


def test_sizes_of_the_super_resolution_network() -> None:
    config = NetworkConfig(1, (LayerConfig(4, 3, padding=False),) * 9)
    assert config.output_size(32, 32) == (14, 14)
    assert CKN(config)(torch.randn(2, 1, 32, 40)).shape == (2, 4, 14, 22)


def test_too_small_an_image_is_refused() -> None:
    config = NetworkConfig(1, (LayerConfig(4, 3, padding=False),) * 9)
    for refused in (lambda: CKN(config)(torch.randn(1, 1, 18, 30)), lambda: config.output_size(18, 30)):
        with pytest.raises(ValueError, match=r"side 3 .* 2 x 14"):
            refused()


def mixed_network() -> NetworkConfig:
    """Three widths, both methods, both gradients, several kernels."""
    return NetworkConfig(
        2,
        (
            LayerConfig(4, 3, 1.5, inverse_root="newton_schulz"),
            LayerConfig(6, 1, inverse_root="newton_schulz", kernel=ArcCosine()),
            LayerConfig(4, 3, inverse_root="eigh", kernel=Polynomial(2, 1.0)),
            LayerConfig(4, 2, 2.0, inverse_root="newton_schulz", epsilon=0.1, kernel=Exponential(2.0, learnable=True)),
            LayerConfig(6, 3, inverse_root="newton_schulz", gradient="paper"),
            LayerConfig(4, 1, inverse_root="eigh", padding=False),
        ),
    )


def test_the_network_is_its_layers_one_after_the_other() -> None:
    """Values and gradients: the network finds several inverse roots at once, a layer its own."""
    network = CKN(mixed_network()).double()
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    maps = images
    for layer in network.kernel_layers:
        maps = layer(maps)
    output = network(images)
    torch.testing.assert_close(output, maps, rtol=1e-10, atol=1e-10)
    assert output.shape[2:] == network.config.output_size(9, 8)
    parameters = list(network.parameters())
    together, one_by_one = (torch.autograd.grad(y.square().sum(), parameters) for y in (output, maps))
    torch.testing.assert_close(together, one_by_one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "kinds",
    [
        (CentredExponential(2.0, learnable=True), CentredExponential(4.0, learnable=True)),
        (CentredExponential(2.0, learnable=True), Exponential(2.0, learnable=True)),
        (CentredExponential(2.0), Exponential(2.0)),
        (CentredExponential(2.0), CentredExponential(2.0)),
    ],
    ids=str,
)
def test_kernel_matrices_found_together_are_those_of_each_layers_kernel(kinds: tuple[Kernel, ...]) -> None:
    network = CKN(NetworkConfig(2, tuple(LayerConfig(5, 3, inverse_root="newton_schulz", kernel=kind) for kind in kinds)))
    network.double()
    for layer, root in zip(network.kernel_layers, network.inverse_roots(), strict=True):
        Z = layer.directions()
        right = layer.kernel(Z @ Z.T) + layer.config.epsilon * torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(root @ right @ root, torch.eye(5, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 4.0, 10.0])
@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz", "moving_frame"])
def test_maps_of_a_deep_centred_network_keep_a_size_that_single_precision_has(inverse_root: InverseRoot, alpha: float) -> None:
    """With patches for filters, nearly as k-means finds them, and beside the same in double: what patches differ in is there to
    the digits of fp32."""
    layer = LayerConfig(16, 3, padding=False, kernel=CentredExponential(alpha), inverse_root=inverse_root)
    network = CKN(NetworkConfig(16, (layer,) * 9)).double().eval()
    images = torch.randn(3, 16, 22, 22, dtype=torch.float64)
    size, maps, single = float(images.norm(dim=1).mean()), images, images.float()
    with torch.no_grad():
        for exact, rounded in zip(network.kernel_layers, copy.deepcopy(network).float().kernel_layers, strict=True):
            patches = F.unfold(maps, 3).transpose(1, 2).reshape(-1, 16, 3, 3)
            exact.filters.copy_(patches[torch.randperm(len(patches))[:16]])
            rounded.filters.copy_(exact.filters)
            maps, single = exact(maps), rounded(single)
            assert 1e-3 * size < float(maps.norm(dim=1).mean()) < 1e11 * size
            differences = maps - maps.mean(dim=(0, 2, 3), keepdim=True)
            assert float((single - maps).norm()) < 1e-3 * float(differences.norm())


def test_without_their_gain_the_maps_of_a_deep_centred_network_would_vanish() -> None:
    """Until the squares of their numbers are too small for fp32, in which nothing is left of any image."""
    kernel = CentredExponential(10.0)
    network = CKN(NetworkConfig(16, (LayerConfig(16, 3, padding=False, kernel=kernel),) * 9)).eval()
    maps = torch.randn(3, 16, 22, 22)
    sizes = []
    with torch.no_grad():
        for layer in network.kernel_layers:
            maps = layer(maps) / kernel.gain()
            sizes.append(float(maps.norm(dim=1).mean()))
    assert 0 < sizes[1] < 1e-2 * sizes[0] < 1e-3
    assert sizes[-1] == 0


class RecordedRoots:
    """Stands in for `inverse_square_root` and notes the shapes it is given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, gram: Tensor, *options: Any) -> Tensor:
        self.shapes.append(tuple(gram.shape))
        return inverse_square_root(gram, *options)


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> RecordedRoots:
    recorded = RecordedRoots()
    monkeypatch.setattr("sckn.network.inverse_square_root", recorded)
    return recorded


def test_roots_of_one_width_are_found_together(roots: RecordedRoots) -> None:
    network = CKN(mixed_network())
    for layer, root in zip(network.kernel_layers, network.inverse_roots(), strict=True):
        torch.testing.assert_close(root, layer.inverse_root(), rtol=1e-4, atol=1e-4)
    # layers 0 and 3 share a batch; 1 and 4 differ in the gradient; 2 and 5 are decomposed, each alone
    assert sorted(roots.shapes) == [(1, 4, 4), (1, 4, 4), (1, 6, 6), (1, 6, 6), (2, 4, 4)]
    roots.shapes.clear()
    CKN(paper_network(4, inverse_root="newton_schulz")).inverse_roots()
    assert roots.shapes == [(9, 4, 4)]


def test_only_changed_layers_are_computed_again_while_encoding(roots: RecordedRoots) -> None:
    network = CKN(mixed_network()).eval()
    images = torch.randn(1, 2, 9, 8)
    with torch.no_grad():
        first = network(images)
        computed = len(roots.shapes)
        assert torch.equal(network(images), first)
        assert len(roots.shapes) == computed
        network.kernel_layers[3].filters[0] += 1.0
        changed = network(images)
    assert roots.shapes[computed:] == [(1, 4, 4)]
    assert not torch.equal(changed, first)
    # nothing is kept where gradients flow, and the result is the same
    torch.testing.assert_close(network(images).detach(), changed, rtol=1e-5, atol=1e-5)
    assert len(roots.shapes) == computed + 1 + computed


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """One entry for each torch.equal from now on."""
    compared, equal = [], torch.equal

    def counted(a: Tensor, b: Tensor) -> bool:
        compared.append(a)
        return equal(a, b)

    monkeypatch.setattr(torch, "equal", counted)
    return compared


@pytest.mark.parametrize("training", [True, False])
def test_a_prepared_network_gives_the_same_maps_without_looking_at_its_parameters(
    training: bool, roots: RecordedRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = CKN(mixed_network()).train(training)
    batches = torch.randn(3, 2, 2, 9, 8)
    with torch.no_grad():
        expected = [network(images) for images in batches]
        encode = network.prepared()
        found_before = len(roots.shapes)
        compared = count_comparisons(monkeypatch)
        maps = [encode(images) for images in batches]
    assert compared == []
    assert len(roots.shapes) == found_before
    for each, wanted in zip(maps, expected, strict=True):
        torch.testing.assert_close(each, wanted, rtol=0, atol=0)


def test_a_network_prepared_again_has_its_new_filters() -> None:
    network = CKN(mixed_network()).eval()
    images = torch.randn(2, 2, 9, 8)
    with torch.no_grad():
        before = network.prepared()(images)
        network.kernel_layers[3].filters[0] += 1.0
        after = network.prepared()(images)
        assert torch.equal(after, network(images))
        network.kernel_layers[0].filters.data[1] += 1.0  # unseen by PyTorch's counters
        assert torch.equal(network.prepared()(images), network(images))
    assert not torch.equal(before, after)


def test_gradients_of_images_pass_a_prepared_network() -> None:
    network = CKN(mixed_network()).eval()
    images = torch.randn(2, 2, 9, 8, requires_grad=True)
    encode = network.prepared()
    for _ in range(2):  # nothing of the first is needed for the second
        (found,) = torch.autograd.grad(encode(images).sum(), images)
        (wanted,) = torch.autograd.grad(network(images).sum(), images)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_training_changes_what_is_encoded_afterwards() -> None:
    network = CKN(mixed_network())
    images = torch.randn(2, 2, 9, 8)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        network.eval()
        with torch.no_grad():
            network(images)
        network.train()
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()
    network.eval()
    with torch.no_grad():
        encoded = network(images)
    torch.testing.assert_close(encoded, network(images).detach(), rtol=1e-5, atol=1e-6)


def test_copies_pickles_and_state_dicts_compute_the_same() -> None:
    network = CKN(mixed_network()).eval()
    images = torch.randn(1, 2, 9, 8)
    with torch.no_grad():
        expected = network(images)  # the caches are full now
        reloaded = CKN(mixed_network()).eval()
        assert not torch.equal(reloaded(images), expected)
        reloaded.load_state_dict(network.state_dict())
        for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), reloaded):
            assert torch.equal(twin(images), expected)


def test_autocast_is_close_to_single_precision() -> None:
    """Nine layers deep, where small errors had time to grow."""
    network = CKN(paper_network(16, inverse_root="newton_schulz"))
    images = torch.randn(2, 3, 32, 32)
    expected = network(images).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(images).detach()
        in_autocast = network.inverse_roots()
    assert all(torch.equal(a, b) for a, b in zip(in_autocast, network.inverse_roots(), strict=True))
    assert 0 < float((output - expected).norm() / expected.norm()) < 3e-2


def test_description_survives_json() -> None:
    for config in (mixed_network(), paper_network(8), NetworkConfig(1, (LayerConfig(2, 2, kernel=Linear()),))):
        assert NetworkConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_settings_left_out_have_their_defaults() -> None:
    config = NetworkConfig.from_dict({"in_channels": 3, "layers": [{"filters": 8, "patch": 3}]})
    assert config == NetworkConfig(3, (LayerConfig(8, 3),))


def test_settings_that_layers_share_may_be_said_once() -> None:
    common = {"filters": 8, "patch": 3, "kernel": {"name": "Linear"}}
    given = {"in_channels": 3, "every_layer": common, "layers": [{}, {"patch": 1}]}
    config = NetworkConfig.from_dict(given)
    assert config == NetworkConfig(3, (LayerConfig(8, 3, kernel=Linear()), LayerConfig(8, 1, kernel=Linear())))
    assert list(given) == ["in_channels", "every_layer", "layers"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"layers": [{"filters": 8, "patch": 3}]}, "in_channels"),
        ({"in_channels": 3}, "layers"),
        ({"in_channels": 3, "layers": []}, "layers"),
        ({"in_channels": 0, "layers": [{"filters": 8, "patch": 3}]}, "in_channels"),
        ({"in_channels": 3, "layers": [{"filters": 8}]}, "patch"),
        ({"in_channels": 3, "layers": [{"filters": 8, "patch": 3, "stride": 2}]}, "stride"),
        ({"in_channels": 3, "every_layer": [8], "layers": [{"filters": 8, "patch": 3}]}, "every_layer"),
        ({"in_channels": 3, "every_layer": {"stride": 2}, "layers": [{"filters": 8, "patch": 3}]}, "stride"),
        ({"in_channels": 3, "colour": True, "layers": [{"filters": 8, "patch": 3}]}, "colour"),
        ({"in_channels": 3, "layers": [{"filters": 8, "patch": 3, "kernel": {"name": "Sigmoid"}}]}, "Sigmoid"),
        ({"in_channels": 3, "layers": [{"filters": 8, "patch": 3, "kernel": "Linear"}]}, "kernel"),
        ({"in_channels": 3, "layers": [{"filters": 8, "patch": 3, "epsilon": -1.0}]}, "epsilon"),
    ],
)
def test_unknown_descriptions_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        NetworkConfig.from_dict(fields)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    network = CKN(mixed_network()).double()
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    expected = network(images).detach()
    torch.testing.assert_close(network.cuda()(images.cuda()).detach().cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_autocast_is_close_to_single_precision() -> None:
    network = CKN(paper_network(64, inverse_root="newton_schulz")).cuda()
    images = torch.randn(4, 3, 32, 32, device="cuda")
    expected = network(images).detach()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = network(images).detach()
    assert 0 < float((output - expected).norm() / expected.norm()) < 3e-2
