"""The moving frame: any B with B B' = K^-1, found from the last one, against closed forms and central differences."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sckn import checkpoint
from sckn.inverse_root import inverse_square_root
from sckn.kernels import ArcCosine, Exponential
from sckn.layer import KernelLayer, LayerConfig
from sckn.moving_frame import moving_frame
from sckn.network import CKN, NetworkConfig

LEARNED = Exponential(3.0, learnable=True)


def rotation(size: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0]


def matrix_with(eigenvalues: Tensor) -> Tensor:
    Q = rotation(len(eigenvalues))
    matrix = Q @ torch.diag(eigenvalues) @ Q.T
    return (matrix + matrix.T) / 2


def matrix_of_condition(size: int, condition: float) -> Tensor:
    return matrix_with(10 * condition ** -torch.linspace(0, 1, size, dtype=torch.float64))


def power(matrix: Tensor, exponent: float) -> Tensor:
    """Of a symmetric matrix, by numpy."""
    eigenvalues, V = np.linalg.eigh((matrix + matrix.T).numpy() / 2)
    return torch.from_numpy(V * eigenvalues**exponent @ V.T)


def frame_near(gram: Tensor, distance: float) -> Tensor:
    """A rotated root of the inverse, then spoiled: |B'KB - I| is the distance wanted."""
    size = len(gram)
    off = torch.randn(size, size, dtype=torch.float64)
    off = (off + off.T) / torch.linalg.matrix_norm(off + off.T, ord=2)
    return power(gram, -0.5) @ rotation(size) @ power(torch.eye(size, dtype=torch.float64) + distance * off, 0.5)


def misfit(gram: Tensor, frame: Tensor) -> float:
    """|B'KB - I|, in the spectral norm."""
    deviation = frame.mT @ gram @ frame - torch.eye(gram.shape[-1], dtype=gram.dtype)
    return float(torch.linalg.matrix_norm(deviation.detach(), ord=2).max())


def relative_error(value: Tensor, expected: Tensor) -> float:
    value, expected = value.detach().double(), expected.detach().double()
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.01, 0.3, 0.6])
@pytest.mark.parametrize("condition", [2, 1e2, 1e4])
def test_it_is_a_root_of_the_inverse_and_the_polar_one(condition: float, distance: float) -> None:
    gram = matrix_of_condition(12, condition)
    frame = frame_near(gram, distance)
    B = moving_frame(gram, frame)
    assert misfit(gram, B) < 1e-10
    assert relative_error(B @ B.T, torch.linalg.inv(gram)) < 1e-10
    assert relative_error(B, frame @ power(frame.T @ gram @ frame, -0.5)) < 1e-10
    assert relative_error(B, power(gram, -0.5)) > 0.1  # a rotation of the symmetric one


@pytest.mark.parametrize("condition", [1.5, 1e2, 1e4])
def test_from_the_identity_it_is_the_symmetric_root(condition: float) -> None:
    """Whether the identity is near, as for a matrix of condition 1.5 about 1, or not."""
    gram = matrix_of_condition(12, condition) / 8
    B = moving_frame(gram, torch.eye(12, dtype=torch.float64))
    assert relative_error(B, power(gram, -0.5)) < 1e-10


def symmetric_differences(function: Callable[[Tensor], Tensor], gram: Tensor, h: float) -> Tensor:
    gradient = torch.zeros_like(gram)
    for i in range(len(gram)):
        for j in range(i + 1):
            step = torch.zeros_like(gram)
            step[i, j] += h / 2
            step[j, i] += h / 2
            gradient[i, j] = gradient[j, i] = (function(gram + step) - function(gram - step)) / (2 * h)
    return gradient


@pytest.mark.parametrize("distance", [0.0, 0.01, 0.4])
@pytest.mark.parametrize(
    "eigenvalues",
    [[1.0, 1.0, 1.0, 1.0], [2.0, 0.5, 0.5, 0.5], [5.0, 1.0, 0.3, 0.05]],
    ids=["identity", "triple", "distinct"],
)
def test_gradient_agrees_with_central_differences(eigenvalues: list[float], distance: float) -> None:
    """Of frame (frame' K frame)^(-1/2) for the frame as it is, computed here by numpy."""
    gram = matrix_with(torch.tensor(eigenvalues, dtype=torch.float64))
    frame, G = frame_near(gram, distance), torch.randn_like(gram)
    leaf = gram.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(moving_frame(leaf, frame), leaf, G)
    expected = symmetric_differences(lambda K: (frame @ power(frame.T @ K @ frame, -0.5) * G).sum(), gram, h=1e-5)
    torch.testing.assert_close((gradient + gradient.T) / 2, expected, rtol=1e-7, atol=1e-7)


def test_gradient_at_the_identity() -> None:
    """There Delta B = -Delta K / 2."""
    gram, G = torch.eye(5, dtype=torch.float64).requires_grad_(), torch.randn(5, 5, dtype=torch.float64)
    B = moving_frame(gram, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(B.detach(), torch.eye(5, dtype=torch.float64), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(B, gram, G)
    torch.testing.assert_close(gradient, -(G + G.T) / 4, rtol=1e-14, atol=1e-14)


def test_it_can_be_differentiated_twice() -> None:
    gram = matrix_of_condition(3, 10)
    frame = frame_near(gram, 0.2)

    def symmetrised(K: Tensor) -> Tensor:
        return moving_frame((K + K.T) / 2, frame)

    assert torch.autograd.gradcheck(symmetrised, (gram.clone().requires_grad_(),))
    assert torch.autograd.gradgradcheck(symmetrised, (gram.clone().requires_grad_(),))


def test_single_precision() -> None:
    """The products of B'KB lose the digits that the condition costs, 1e3 here, and no more."""
    gram = matrix_of_condition(64, 1e3)
    frame, G = frame_near(gram, 0.1), torch.randn_like(gram)
    results = []
    for dtype in (torch.float64, torch.float32):
        leaf = gram.to(dtype).requires_grad_()
        B = moving_frame(leaf, frame.to(dtype))
        assert B.dtype == dtype
        results.append((B.detach(), *torch.autograd.grad(B, leaf, G.to(dtype))))
    for single, double in zip(results[1], results[0], strict=True):
        assert relative_error(single, double) < 1e-3


def test_a_frame_that_does_not_fit_starts_afresh_and_its_neighbours_stay() -> None:
    grams = torch.stack([matrix_of_condition(6, 50) for _ in range(4)])
    near = torch.stack([frame_near(gram, 0.05) for gram in grams])
    frames = near.clone()
    frames[1] = 3 * near[1]
    frames[2] = torch.nan
    B = moving_frame(grams.reshape(2, 2, 6, 6), frames.reshape(2, 2, 6, 6)).reshape(4, 6, 6)
    for index in (1, 2):
        assert relative_error(B[index], power(grams[index], -0.5)) < 1e-10
    for index in (0, 3):
        assert relative_error(B[index], moving_frame(grams[index], near[index])) < 1e-12
        assert relative_error(B[index], near[index]) < 0.1


def test_what_has_no_root_is_refused() -> None:
    singular = matrix_with(torch.tensor([3.0, 1.0, 0.2, 0.0, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="singular"):
        moving_frame(singular, torch.eye(5, dtype=torch.float64))
    with pytest.raises(ValueError, match="NaN"):
        moving_frame(torch.full((3, 3), torch.nan), torch.eye(3))
    with pytest.raises(ValueError, match="last frame"):
        inverse_square_root(torch.eye(3), "moving_frame")


class Products(TorchDispatchMode):
    """Notes the precision that is set for every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.precisions: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.precisions.append(torch.backends.cuda.matmul.fp32_precision)
        return func(*args, **(kwargs or {}))


def test_neither_pass_uses_tf32_or_autocast() -> None:
    gram = matrix_of_condition(16, 1e2).float().requires_grad_()
    frame, G = frame_near(gram.detach().double(), 0.05).float(), torch.randn(16, 16)
    expected = moving_frame(gram, frame)
    (expected_gradient,) = torch.autograd.grad(expected, gram, G)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        with torch.autocast("cpu", dtype=torch.bfloat16), Products() as forward:
            B = moving_frame(gram, frame)
        with torch.autocast("cpu", dtype=torch.bfloat16), Products() as backward:
            (gradient,) = torch.autograd.grad(B, gram, G)
    finally:
        matmul.fp32_precision = before
    assert len(forward.precisions) > 5
    assert len(backward.precisions) > 5
    assert "tf32" not in forward.precisions + backward.precisions
    torch.testing.assert_close((B, gradient), (expected, expected_gradient), rtol=0, atol=0)


def layer_pair(config: LayerConfig, channels: int = 2) -> tuple[KernelLayer, KernelLayer]:
    """A layer by the symmetric root, and the same by a moving frame that has turned since its beginning."""
    symmetric = KernelLayer(channels, LayerConfig(**{**vars(config), "inverse_root": "eigh"})).double()
    moving = KernelLayer(channels, LayerConfig(**{**vars(config), "inverse_root": "moving_frame"})).double()
    moving.load_state_dict({**symmetric.state_dict(), "frame": frame_near(symmetric.gram().detach(), 0.1)})
    return symmetric, moving


def inner_products(maps: Tensor) -> Tensor:
    """Between all pixels of all images."""
    vectors = maps.movedim(1, -1).flatten(0, -2)
    return vectors @ vectors.T


@pytest.mark.parametrize(
    "config",
    [LayerConfig(6, 3), LayerConfig(6, 1, 1.5, kernel=ArcCosine()), LayerConfig(8, 2, 2.0, padding=False, kernel=LEARNED)],
    ids=repr,
)
def test_the_kernel_of_a_layer_is_that_of_the_symmetric_root(config: LayerConfig) -> None:
    symmetric, moving = layer_pair(config)
    images = torch.randn(2, 2, 6, 7, dtype=torch.float64)
    expected, output = symmetric(images).detach(), moving(images).detach()
    assert relative_error(output, expected) > 0.1
    torch.testing.assert_close(inner_products(output), inner_products(expected), rtol=1e-10, atol=1e-10)
    # the rotation between the two is A^-1 B, and is applied transposed
    with torch.no_grad():
        turn = torch.linalg.solve(symmetric.inverse_root(), moving.inverse_root())
    torch.testing.assert_close(turn @ turn.T, torch.eye(len(turn), dtype=torch.float64), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(output, torch.einsum("qp,bqhw->bphw", turn, expected), rtol=1e-9, atol=1e-10)


def test_gradients_of_a_layer_agree_with_central_differences() -> None:
    """In eval mode, where the frame stays what it is."""
    _, layer = layer_pair(LayerConfig(4, 3, 1.5, kernel=LEARNED))
    layer.eval()
    images = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    weights = torch.randn_like(layer(images))

    def loss() -> Tensor:
        return (layer(images) * weights).sum()

    parameters = list(layer.parameters())
    assert len(parameters) == 2
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss(), parameters), strict=True):
        expected = torch.zeros_like(parameter)
        with torch.no_grad():
            numbers = parameter.view(-1)
            for i in range(len(numbers)):
                value = float(numbers[i])
                numbers[i] = value + 1e-6
                above = loss()
                numbers[i] = value - 1e-6
                below = loss()
                numbers[i] = value
                expected.view(-1)[i] = (above - below) / 2e-6
        assert relative_error(gradient, expected) < 1e-6


def moving_layer(filters: int = 6, channels: int = 2, **settings: Any) -> KernelLayer:
    return KernelLayer(channels, LayerConfig(filters, 3, inverse_root="moving_frame", **settings))


def frame_of(layer: KernelLayer) -> Tensor:
    assert layer.frame is not None
    return layer.frame


def turned(module: nn.Module) -> None:
    """Gives each layer a frame that has turned a long way since the beginning, when it was symmetric."""
    for layer in module.modules():
        if isinstance(layer, KernelLayer) and layer.frame is not None:
            layer.frame.copy_(frame_near(layer.gram().detach().cpu().double(), 0.02))


@pytest.mark.parametrize(("dtype", "small"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_it_follows_many_small_steps_without_a_jump(dtype: torch.dtype, small: float) -> None:
    layer = moving_layer(24, 3, kernel=Exponential(1.0)).to(dtype)
    turned(layer)
    with torch.no_grad():
        for _ in range(300):
            last = frame_of(layer).clone()
            layer.filters.add_(0.01 * torch.randn_like(layer.filters))
            layer.inverse_root()
            assert misfit(layer.gram(), frame_of(layer)) < small
            assert relative_error(frame_of(layer), last) < 0.1
    # a fresh start would have left it near the symmetric root
    assert relative_error(frame_of(layer), inverse_square_root(layer.gram().detach())) > 1


def test_replaced_filters_start_afresh() -> None:
    layer = moving_layer(24, 2, kernel=Exponential(1.0)).double()
    turned(layer)
    with torch.no_grad():
        assert relative_error(layer.inverse_root(), inverse_square_root(layer.gram())) > 1
        layer.filters.copy_(torch.randn_like(layer.filters))
        B = layer.inverse_root()
        torch.testing.assert_close(B, inverse_square_root(layer.gram()), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(frame_of(layer), B, rtol=0, atol=0)


def test_a_layer_starts_with_the_symmetric_root_in_either_mode() -> None:
    """So what was learned on the maps of eval mode, by k-means say, fits when training begins."""
    layer = moving_layer(8, kernel=LEARNED)
    images = torch.randn(1, 2, 6, 6)
    encoded = layer.eval()(images)
    assert torch.equal(frame_of(layer), torch.eye(8))
    assert torch.equal(layer.train()(images), encoded)
    symmetric = KernelLayer(2, LayerConfig(8, 3, kernel=LEARNED))
    symmetric.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "frame"})
    torch.testing.assert_close(symmetric(images), encoded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gradients", [True, False])
def test_training_moves_the_frame_and_eval_mode_leaves_it(gradients: bool) -> None:
    layer = moving_layer().double()
    images = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    buffer = frame_of(layer)
    with torch.set_grad_enabled(gradients):
        layer(images)
        assert frame_of(layer) is buffer  # overwritten, not replaced: a CUDA graph knows its address alone
        assert misfit(layer.gram(), buffer) < 1e-10
        with torch.no_grad():
            layer.filters.add_(0.02 * torch.randn_like(layer.filters))
        kept = buffer.clone()
        layer.eval()
        outputs = [layer(images) for _ in range(2)]
        assert torch.equal(buffer, kept)
        assert torch.equal(*outputs)
        assert misfit(layer.gram(), layer.inverse_root()) < 1e-10  # yet to convergence
        layer.train()
        torch.testing.assert_close(layer(images), outputs[0], rtol=1e-12, atol=1e-12)
        assert not torch.equal(buffer, kept)
        assert not buffer.requires_grad


def test_while_encoding_it_is_kept_until_the_filters_or_the_frame_change(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = moving_layer().double().eval()
    calls = []
    monkeypatch.setattr("sckn.layer.moving_frame", lambda *given: calls.append(1) or moving_frame(*given))
    with torch.no_grad():
        first = layer.inverse_root()
        assert layer.inverse_root() is first
        assert len(calls) == 1
        frame_of(layer).copy_(frame_near(layer.gram(), 0.1))
        second = layer.inverse_root()
        assert len(calls) == 2
        layer.filters[0] += 0.01
        third = layer.inverse_root()
        assert len(calls) == 3
    assert relative_error(second, first) > 0.1
    assert 0 < relative_error(third, second) < 0.1


def test_two_passes_before_one_backward() -> None:
    """The frame is overwritten in between, which must not reach the graph of the first pass."""
    layer = moving_layer(kernel=Exponential(1.0)).double()
    images = torch.randn(2, 1, 2, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.inverse_root()
    (together,) = torch.autograd.grad(torch.stack([layer(batch).pow(3).sum() for batch in images]).sum(), layer.filters)
    separate = [torch.autograd.grad(layer(batch).pow(3).sum(), layer.filters)[0] for batch in images]
    torch.testing.assert_close(together, separate[0] + separate[1], rtol=1e-9, atol=1e-9)


def test_copies_pickles_and_state_dicts_compute_the_same() -> None:
    layer = moving_layer(kernel=LEARNED)
    turned(layer)
    images = torch.randn(1, 2, 6, 6)
    reloaded = moving_layer(kernel=LEARNED)
    reloaded.load_state_dict(layer.state_dict())
    assert sorted(layer.state_dict()) == ["filters", "frame", "log_alpha"]
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), reloaded]
    expected = layer.eval()(images)
    without_frame = moving_layer(kernel=LEARNED).eval()
    without_frame.load_state_dict({**layer.state_dict(), "frame": torch.eye(6)})
    assert not torch.allclose(without_frame(images), expected, rtol=1e-3, atol=1e-3)
    for twin in twins:
        assert torch.equal(twin.eval()(images), expected)
        turned(twin)
        assert not torch.allclose(twin(images), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(layer(images), expected)  # a copy is a copy
    assert "frame" not in KernelLayer(2, LayerConfig(6, 3, inverse_root="newton_schulz")).state_dict()


def network_config() -> NetworkConfig:
    """Two widths, two kernels, and one layer by another method between."""
    return NetworkConfig(
        2,
        (
            LayerConfig(5, 3, 1.5, inverse_root="moving_frame"),
            LayerConfig(7, 1, inverse_root="moving_frame", kernel=ArcCosine()),
            LayerConfig(5, 3, inverse_root="newton_schulz"),
            LayerConfig(5, 2, 2.0, inverse_root="moving_frame", epsilon=0.1, kernel=LEARNED),
        ),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_checkpoints(tmp_path: Path, dtype: torch.dtype) -> None:
    network = CKN(network_config())
    turned(network)
    network = network.to(dtype).eval()
    again = checkpoint.load(checkpoint.save(network, tmp_path / "network.safetensors"))
    images = torch.randn(2, 2, 9, 8, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(network(images), again(images))
    assert again.config == network.config


def test_to_double_and_to_half_precision() -> None:
    layer = moving_layer(16, 4)
    turned(layer)
    images = torch.randn(2, 4, 6, 6)
    expected = layer.eval()(images).detach()
    double = copy.deepcopy(layer).double()
    assert frame_of(double).dtype == torch.float64
    assert relative_error(double(images.double()).detach(), expected) < 1e-5
    half = copy.deepcopy(layer).to(torch.bfloat16)
    # rounded to 8 bits it would be another frame
    assert torch.equal(frame_of(half), frame_of(layer))
    assert half.inverse_root().dtype == torch.float32
    assert relative_error(half(images.to(torch.bfloat16)).detach(), expected) < 5e-2
    half.train()(images.to(torch.bfloat16)).float().square().sum().backward()
    assert half.filters.grad is not None
    assert bool(torch.isfinite(half.filters.grad).all())
    assert frame_of(half).dtype == torch.float32


def test_a_network_finds_the_frames_of_one_width_together(monkeypatch: pytest.MonkeyPatch) -> None:
    network = CKN(network_config()).double()
    turned(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    alone = copy.deepcopy(network)
    shapes = []
    monkeypatch.setattr("sckn.network.moving_frame", lambda K, B: shapes.append(tuple(K.shape)) or moving_frame(K, B))
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    output, maps = network(images), images
    for layer in alone.kernel_layers:
        maps = layer(maps)
    assert sorted(shapes) == [(1, 7, 7), (2, 5, 5)]
    torch.testing.assert_close(output, maps, rtol=1e-10, atol=1e-10)
    for one, other in zip(network.kernel_layers, alone.kernel_layers, strict=True):
        assert (one.frame is None) == (other.frame is None) == (one.config.inverse_root == "newton_schulz")
        if one.frame is not None and other.frame is not None:
            torch.testing.assert_close(one.frame, other.frame, rtol=1e-10, atol=1e-10)
    together, one_by_one = (
        torch.autograd.grad(y.square().sum(), list(net.parameters())) for net, y in ((network, output), (alone, maps))
    )
    torch.testing.assert_close(together, one_by_one, rtol=1e-8, atol=1e-9)


def test_only_layers_in_training_mode_move_their_frames() -> None:
    network = CKN(network_config()).double()
    network.kernel_layers[0].eval()
    network(torch.randn(1, 2, 9, 8, dtype=torch.float64))
    first, second, _, last = network.kernel_layers
    assert torch.equal(frame_of(first), torch.eye(5, dtype=torch.float64))
    assert misfit(second.gram(), frame_of(second)) < 1e-10
    assert misfit(last.gram(), frame_of(last)) < 1e-10


def test_the_gradient_printed_in_the_paper_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient must be 'exact'"):
        LayerConfig(4, 3, inverse_root="moving_frame", gradient="paper")


class NoReads(TorchDispatchMode):
    """Refuses what brings a value of a tensor to Python, or lets it decide a shape: a captured CUDA graph cannot do that."""

    READS = frozenset(("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_linalg_eigh"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.READS or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            raise AssertionError(f"{name} reads a value")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_if_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("inverse_root", "moving_frame", "layer", "kernels"):
        monkeypatch.setattr(f"sckn.{module}.capturing", lambda device: True)


def test_without_capture_values_are_read() -> None:
    """The test below would notice."""
    with pytest.raises(AssertionError, match="reads a value"), NoReads():
        moving_frame(torch.eye(3), torch.eye(3))


def test_captured_steps_read_nothing_and_learn_the_same(request: pytest.FixtureRequest) -> None:
    """Several steps of training, forward and backward, by each way."""
    network = CKN(network_config()).double()
    turned(network)
    captured = copy.deepcopy(network)
    batches = [torch.randn(2, 2, 9, 8, dtype=torch.float64) for _ in range(5)]

    def train(net: CKN) -> None:
        for images in batches:
            gradients = torch.autograd.grad(10 * net(images).square().sum(), list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.sub_(0.05 * gradient)

    start = [parameter.detach().clone() for parameter in network.parameters()]
    train(network)
    request.getfixturevalue("as_if_captured")
    with NoReads():
        train(captured)
    for before, one, other in zip(start, network.parameters(), captured.parameters(), strict=True):
        assert relative_error(one.detach(), before) > 1e-4
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    for one, other in zip(network.kernel_layers, captured.kernel_layers, strict=True):
        if one.frame is not None and other.frame is not None:
            torch.testing.assert_close(other.frame, one.frame, rtol=1e-8, atol=1e-8)


def test_captured_encoding_reads_nothing_and_keeps_nothing(request: pytest.FixtureRequest) -> None:
    """What is captured has no value until the graph runs."""
    network = CKN(network_config()).double()
    turned(network)
    network.eval()
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = network(images)
        kept = [layer.cached_root() for layer in network.kernel_layers]
        assert all(root is not None for root in kept)
        request.getfixturevalue("as_if_captured")
        with NoReads():
            output = network(images)
            assert all(layer.cached_root() is None for layer in network.kernel_layers)
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
        assert all(layer._cached_root is root for layer, root in zip(network.kernel_layers, kept, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_cuda_graph_trains_as_the_same_steps_outside_do() -> None:
    network = CKN(network_config()).double().cuda()
    turned(network)
    twin = copy.deepcopy(network)
    batches = [torch.randn(4, 2, 9, 8, dtype=torch.float64, device="cuda") for _ in range(6)]
    images = batches[0].clone()

    def step(net: CKN, given: Tensor) -> None:
        gradients = torch.autograd.grad(10 * net(given).square().sum(), list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(0.05 * gradient)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(network, images)
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(3):
        step(twin, images)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(network, images)
    for batch in batches:
        images.copy_(batch)
        graph.replay()
        step(twin, batch)
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    for one, other in zip(network.kernel_layers, twin.kernel_layers, strict=True):
        if one.frame is not None and other.frame is not None:
            # it fits the filters before their last step
            assert misfit(one.gram().detach().cpu(), one.frame.cpu()) < 1e-2
            torch.testing.assert_close(one.frame, other.frame, rtol=1e-6, atol=1e-6)
