"""KernelLayer against patches encoded one by one, and as a citizen of PyTorch."""

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from closed_form import pooling_weights
from torch import Tensor, nn

from sckn.inverse_root import InverseRoot, inverse_square_root
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Linear, Polynomial
from sckn.layer import KernelLayer, LayerConfig
from sckn.nystrom import psi
from sckn.patches import extract_patches, maps_and_margin, pad_for_patches, patch_norms
from sckn.pooling import gaussian_pool

LEARNED = Exponential(3.0, learnable=True)


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value.double().cpu() - expected.double()).norm() / expected.double().norm())


def patch_by_patch(layer: KernelLayer, maps: Tensor) -> Tensor:
    """The layer as section 2 tells it: every patch through psi, then dense pooling after A rather than before."""
    config = layer.config
    lost = 0 if config.padding else config.patch - 1
    height, width = maps.shape[2] - lost, maps.shape[3] - lost
    rows, columns = (pooling_weights(size, config.subsampling, config.pooling_width).to(maps.dtype) for size in (height, width))
    outputs = []
    for image in maps:
        patches = extract_patches(image[None], config.patch, config.padding)[0].T
        encoded = psi(patches, layer.filters, layer.kernel, epsilon=config.epsilon, norm_offset=config.norm_offset).T.reshape(
            config.filters, height, width
        )
        outputs.append(torch.einsum("ik,jm,pkm->pij", rows, columns, encoded))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "config",
    [
        LayerConfig(6, 3),
        LayerConfig(6, 1, math.sqrt(2), kernel=ArcCosine()),
        LayerConfig(5, 3, 2.0, kernel=CentredExponential(3.0, learnable=True)),
        LayerConfig(6, 3, 2.0, padding=False, kernel=LEARNED),
        LayerConfig(6, 2, 1.5, kernel=Polynomial(3, 0.5), epsilon=0.1),
        LayerConfig(6, 4, 3.0, padding=False, kernel=Linear(), norm_offset=0.1),
        LayerConfig(20, 2, inverse_root="newton_schulz"),
        LayerConfig(6, 5, inverse_root="moving_frame", kernel=LEARNED),
        LayerConfig(6, 3, 2.0, pooling_width=0.5),
        LayerConfig(6, 2, 1.5, padding=False, pooling_width=1.2),
    ],
    ids=repr,
)
def test_equals_every_patch_encoded_by_itself(config: LayerConfig) -> None:
    layer = KernelLayer(2, config).double()
    maps = torch.randn(3, 2, 9, 7, dtype=torch.float64)
    output = layer(maps)
    assert output.shape == (3, config.filters, *config.output_size(9, 7))
    torch.testing.assert_close(output, patch_by_patch(layer, maps), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm_offset", [0.0, 1e-5])
@pytest.mark.parametrize("kernel", [Exponential(), CentredExponential(), ArcCosine(), Polynomial(), Linear()], ids=repr)
def test_black_images_give_exactly_zero_and_finite_gradients(kernel: Kernel, norm_offset: float) -> None:
    layer = KernelLayer(2, LayerConfig(4, 3, kernel=kernel, norm_offset=norm_offset)).double()
    images = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    images[0] = 0
    images[1, :, :4, :4] = 0
    images.requires_grad_()
    output = layer(images)
    assert bool((output[0] == 0).all())
    assert bool((output[1, :, :3, :3] == 0).all())
    assert bool((output[1, :, 5:, 5:] != 0).any())
    for gradient in torch.autograd.grad(output.sum(), (images, layer.filters)):
        assert bool(torch.isfinite(gradient).all())
        assert bool((gradient != 0).any())


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("patch", [1, 2, 3, 4, 5])
def test_only_an_even_patch_needs_a_padded_copy(patch: int, padding: bool) -> None:
    maps = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    given, margin = maps_and_margin(maps, patch, padding)
    assert (given is maps) == (patch % 2 == 1 or not padding)
    weight = torch.randn(4, 3, patch, patch, dtype=torch.float64)
    expected = nn.functional.conv2d(pad_for_patches(maps, patch, padding), weight)
    torch.testing.assert_close(nn.functional.conv2d(given, weight, padding=margin), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [Exponential(), CentredExponential()], ids=repr)
def test_the_backward_pass_keeps_three_maps(kernel: Kernel) -> None:
    """The input, the projections and their scaled exponentials: a layer needs no more, and a GPU no more memory."""
    layer = KernelLayer(6, LayerConfig(6, 3, kernel=kernel))
    maps = torch.randn(2, 6, 50, 50, requires_grad=True)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(maps)
    large = [size for size in kept.values() if size >= maps.nbytes]
    assert large == [maps.nbytes] * 3
    output.sum().backward()


@pytest.mark.parametrize("patch", [1, 2, 3])
def test_norms_can_be_differentiated_twice(patch: int) -> None:
    maps = torch.randn(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: patch_norms(x, patch, True), (maps,))
    assert torch.autograd.gradgradcheck(lambda x: patch_norms(x, patch, True), (maps,))


def test_the_image_can_be_differentiated_twice() -> None:
    """As a penalty on the gradient does; the filters cannot."""
    layer = KernelLayer(2, LayerConfig(3, 3, 1.5)).double()
    layer.filters.requires_grad_(False)
    assert torch.autograd.gradgradcheck(layer, (torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True),))


def test_a_bounded_number_of_pooling_matrices_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices: dict[tuple[object, ...], Tensor] = {}
    monkeypatch.setattr("sckn.pooling._matrices", matrices)
    monkeypatch.setattr("sckn.pooling.MOST_MATRICES", 5)
    for size in (6, 7, 8, 9, 10, 11, 12, 6):
        maps = torch.randn(1, 1, size, size, dtype=torch.float64)
        weights = pooling_weights(size, 2.0)
        for _ in range(2):
            torch.testing.assert_close(gaussian_pool(maps, 2.0), weights @ maps @ weights.T, rtol=1e-12, atol=1e-12)
    assert [key[0] for key in matrices] == [9, 10, 11, 12, 6]
    held = list(matrices.values())
    gaussian_pool(torch.randn(1, 1, 9, 12, dtype=torch.float64), 2.0)
    assert all(one is other for one, other in zip(held, matrices.values(), strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does so itself
def test_torch_compile_takes_the_pooling_matrices_as_they_are() -> None:
    """They are inputs of the one graph; to build them inside would need the CPU at every call."""
    graphs: list[Any] = []

    def look_at(graph: Any, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    layer = KernelLayer(4, LayerConfig(8, 3, 2.0, kernel=LEARNED))
    maps = torch.randn(2, 4, 12, 10)
    expected, root = layer(maps), layer.inverse_root().detach()
    compiled = torch.compile(layer, backend=look_at, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(maps, root), expected)
    assert len(graphs) == 1
    targets = " ".join(str(node.target) for node in graphs[0].graph.nodes)
    assert "conv2d" in targets
    assert "_matrices" in targets
    assert "arange" not in targets


def test_the_scale_of_the_filters_does_not_count() -> None:
    layer = KernelLayer(2, LayerConfig(5, 3)).double()
    images = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    before = layer(images)
    with torch.no_grad():
        layer.filters.mul_(torch.logspace(-3, 3, 5, dtype=torch.float64)[:, None, None, None])
    torch.testing.assert_close(layer(images), before, rtol=1e-11, atol=1e-11)


def test_homogeneous_without_the_offset() -> None:
    layer = KernelLayer(2, LayerConfig(5, 3, 2.0, norm_offset=0.0)).double()
    images = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(250 * images), 250 * layer(images), rtol=1e-12, atol=1e-12)


def test_parameters_are_the_filters_and_a_learned_alpha() -> None:
    assert [name for name, _ in KernelLayer(2, LayerConfig(5, 3)).named_parameters()] == ["filters"]
    learned = KernelLayer(2, LayerConfig(5, 3, kernel=LEARNED))
    assert sorted(name for name, _ in learned.named_parameters()) == ["filters", "log_alpha"]
    assert learned.filters.shape == (5, 2, 3, 3)
    torch.testing.assert_close(learned.filters.detach().flatten(1).norm(dim=1), torch.ones(5))
    with torch.no_grad():
        assert isinstance(learned.kernel, Exponential)
        assert float(learned.kernel.alpha) == pytest.approx(3.0, rel=1e-6)


def test_state_dict_round_trip() -> None:
    config = LayerConfig(5, 3, kernel=LEARNED)
    first, second = KernelLayer(2, config), KernelLayer(2, config)
    with torch.no_grad():
        assert first.log_alpha is not None
        first.log_alpha.add_(0.5)
    images = torch.randn(1, 2, 6, 6)
    assert not torch.equal(first(images), second(images))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(first(images), second(images))


@pytest.mark.parametrize("encode_first", ["never", "no_grad", "inference_mode"])
def test_copies_and_pickles_compute_the_same(encode_first: str) -> None:
    """Also with A in the cache, which is not part of the state."""
    layer = KernelLayer(2, LayerConfig(5, 3, kernel=LEARNED)).eval()
    images = torch.randn(1, 2, 6, 6)
    if encode_first == "no_grad":
        with torch.no_grad():
            layer(images)
    elif encode_first == "inference_mode":
        with torch.inference_mode():
            layer(images)
    expected = layer(images)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(images), expected)
        with torch.no_grad():
            twin.filters[0] = 1.0
            assert not torch.equal(twin(images), expected)  # a copy is a copy
    assert torch.equal(layer(images), expected)


def test_to_float64() -> None:
    layer = KernelLayer(2, LayerConfig(5, 3, 2.0, kernel=LEARNED))
    images = torch.randn(1, 2, 6, 6)
    single = layer(images)
    double = layer.to(torch.float64)(images.double())
    assert double.dtype == torch.float64
    assert relative_error(single.detach(), double.detach()) < 1e-5


class CountedRoots:
    """Stands in for `inverse_square_root` and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: Any) -> Tensor:
        self.calls += 1
        return inverse_square_root(*arguments)


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> CountedRoots:
    counted = CountedRoots()
    monkeypatch.setattr("sckn.layer.inverse_square_root", counted)
    return counted


def test_the_root_is_kept_while_encoding(roots: CountedRoots) -> None:
    layer = KernelLayer(2, LayerConfig(5, 3)).eval()
    images = torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        outputs = [layer(images) for _ in range(3)]
    assert roots.calls == 1
    assert torch.equal(outputs[0], outputs[2])
    with torch.inference_mode():
        layer(images)
    assert roots.calls == 1


@pytest.mark.parametrize("training", [True, False])
def test_the_root_is_not_kept_where_gradients_flow_or_in_training(roots: CountedRoots, training: bool) -> None:
    layer = KernelLayer(2, LayerConfig(5, 3)).train(training)
    images = torch.randn(1, 2, 6, 6)
    with torch.set_grad_enabled(not training):
        layer(images)
        layer(images)
    assert roots.calls == 2


def change_by_optimiser(layer: KernelLayer) -> None:
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    with torch.enable_grad():
        layer(torch.randn(1, 2, 6, 6)).square().sum().backward()
    optimiser.step()


def change_by_loading(layer: KernelLayer) -> None:
    layer.load_state_dict(KernelLayer(2, layer.config).state_dict())


def change_filters_data(layer: KernelLayer) -> None:
    layer.filters.data = torch.randn_like(layer.filters)


def change_filters_data_in_place(layer: KernelLayer) -> None:
    layer.filters.data[0, 0, 0, 0] += 0.5


def change_alpha(layer: KernelLayer) -> None:
    assert layer.log_alpha is not None
    layer.log_alpha.data += 0.5


def change_dtype(layer: KernelLayer) -> None:
    layer.double()


@pytest.mark.parametrize(
    "change",
    [change_by_optimiser, change_by_loading, change_filters_data, change_filters_data_in_place, change_alpha, change_dtype],
)
def test_the_root_follows_every_change_of_the_parameters(change: Any) -> None:
    layer = KernelLayer(2, LayerConfig(5, 3, kernel=LEARNED)).eval()
    images = torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        before = layer.inverse_root()
        layer(images)
        change(layer)
        after = layer.inverse_root()
        images = images.to(layer.filters.dtype)
        kept = layer(images)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, inverse_square_root(layer.gram()), rtol=0, atol=0)
    # with gradients nothing is taken from the cache
    torch.testing.assert_close(kept, layer(images).detach(), rtol=0, atol=0)


def test_gradients_in_eval_mode_are_those_of_training() -> None:
    """Also after A was kept: what was computed without gradients must not enter."""
    layer = KernelLayer(2, LayerConfig(5, 3, kernel=LEARNED))
    images = torch.randn(1, 2, 6, 6)
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(layer(images).square().sum(), parameters)
    layer.eval()
    with torch.no_grad():
        layer(images)
    gradients = torch.autograd.grad(layer(images).square().sum(), parameters)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


def test_autocast_is_close_to_single_precision_and_leaves_the_root_alone() -> None:
    layer = KernelLayer(16, LayerConfig(24, 3, 2.0, kernel=Exponential(4.0)))
    images = torch.randn(4, 16, 10, 10)
    expected, root = layer(images), layer.inverse_root()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, autocast_root = layer(images), layer.inverse_root()
    assert torch.equal(autocast_root, root)
    assert autocast_root.dtype == torch.float32
    # bfloat16 has 8 bits: rounding the patches, the pooled map and A costs about 2^-9 each
    assert 0 < relative_error(output.detach(), expected.detach()) < 1e-2
    expected_gradient, gradient = (torch.autograd.grad(y.square().sum(), layer.filters)[0] for y in (expected, output))
    assert relative_error(gradient, expected_gradient) < 5e-2


def test_a_bfloat16_module_works_and_keeps_its_root_in_single_precision() -> None:
    layer = KernelLayer(16, LayerConfig(24, 3, 2.0, kernel=LEARNED)).to(torch.bfloat16)
    images = torch.randn(4, 16, 10, 10).to(torch.bfloat16)
    output = layer(images)
    assert output.dtype == torch.bfloat16
    assert layer.inverse_root().dtype == torch.float32
    reference = copy.deepcopy(layer).double()  # the same rounded parameters
    assert relative_error(output.detach(), reference(images.double()).detach()) < 1e-2
    output.float().square().sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in layer.parameters())


@pytest.mark.parametrize("method", ["eigh", "newton_schulz", "moving_frame"])
def test_trains_inside_an_ordinary_network(method: InverseRoot) -> None:
    """Which half of the image is brighter, with another kind of layer on either side."""
    images = torch.randn(64, 1, 8, 8)
    labels = (torch.rand(64) > 0.5).long()
    images[labels == 1, :, :, :4] += 1.0
    kernel_layer = KernelLayer(4, LayerConfig(8, 3, 2.0, kernel=LEARNED, inverse_root=method))
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), kernel_layer, nn.Flatten(), nn.Linear(8 * 16, 2))
    start = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert all(not torch.equal(p, start[name]) for name, p in network.named_parameters())


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (3, 8, 8), (2, 3, 8), (2, 3, 8, 8, 8)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)") as refusal:
        KernelLayer(3, LayerConfig(4, 3))(torch.zeros(shape))
    assert str(shape) in str(refusal.value)


def test_a_map_too_small_for_a_patch_is_refused() -> None:
    config = LayerConfig(4, 5, padding=False)
    with pytest.raises(ValueError, match=r"side 5 .* 4 x 9"):
        KernelLayer(3, config)(torch.zeros(1, 3, 4, 9))
    with pytest.raises(ValueError, match=r"side 5 .* 4 x 9"):
        config.output_size(4, 9)


def test_dropout_leaves_the_mean_of_a_linear_kernel_and_adds_its_variance() -> None:
    """With kappa(u) = u and one filter, the output is c <z, dropped x> |x| / (|x| + offset), whose moments are known."""
    part, draws = 0.3, 40_000
    layer = KernelLayer(5, LayerConfig(1, 1, kernel=Linear(), dropout=part)).double()
    x = torch.randn(1, 5, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        plain = layer.eval()(x)
        torch.manual_seed(0)
        outputs = layer.train()(x.expand(draws, 5, 1, 1)).flatten()
    products = (layer.filters.detach().flatten() * x.flatten()).square()
    undropped = float((layer.filters.detach().flatten() * x.flatten()).sum())
    variance = float(plain.square() * products.sum() / undropped**2) * part / (1 - part)
    assert abs(float(outputs.mean() - plain)) < 4 * math.sqrt(variance / draws)
    assert float(outputs.var()) == pytest.approx(variance, rel=0.05)
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), plain)


def test_the_printed_form_names_the_settings() -> None:
    text = repr(KernelLayer(3, LayerConfig(12, 5, math.sqrt(2), padding=False, kernel=Exponential(2.5))))
    for part in ("3, 12", "patch=5", "subsampling=1.414", "padding=False", "Exponential", "alpha=2.5"):
        assert part in text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("filters", 0),
        ("filters", 2.5),
        ("filters", math.inf),
        ("patch", 0),
        ("patch", -3),
        ("subsampling", 0.5),
        ("subsampling", math.nan),
        ("epsilon", -1e-3),
        ("epsilon", math.inf),
        ("norm_offset", -1.0),
        ("pooling_width", 0.0),
        ("pooling_width", math.nan),
        ("kernel", "Exponential"),
        ("inverse_root", "cholesky"),
        ("gradient", "none"),
        ("dropout", 1.0),
        ("dropout", -0.1),
    ],
)
def test_settings_without_a_meaning_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        LayerConfig(**{"filters": 4, "patch": 3, setting: value})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    layer = KernelLayer(3, LayerConfig(16, 3, 2.0, kernel=LEARNED)).double()
    images = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    images[0, :, :6] = 0
    outputs, gradients = {}, {}
    for device in ("cpu", "cuda"):
        layer.to(device)
        outputs[device] = layer(images.to(device))
        parameters = list(layer.parameters())
        gradients[device] = [g.cpu() for g in torch.autograd.grad(outputs[device].square().sum(), parameters)]
    torch.testing.assert_close(outputs["cuda"].cpu(), outputs["cpu"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients["cuda"], gradients["cpu"], rtol=1e-8, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_autocast_is_close_to_single_precision() -> None:
    layer = KernelLayer(16, LayerConfig(24, 3, 2.0)).cuda()
    images = torch.randn(4, 16, 10, 10, device="cuda")
    expected, root = layer(images), layer.inverse_root()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, autocast_root = layer(images), layer.inverse_root()
    assert torch.equal(autocast_root, root)
    assert 0 < relative_error(output.detach(), expected.detach().cpu()) < 1e-2
