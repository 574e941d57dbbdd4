"""The fused kernels give the numbers of the plain forms, and are used only where they apply."""

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from sckn.fused import exponential, pooling, products, rows, split_products, squares
from sckn.kernels import CentredExponential, Exponential, WithAlpha, root
from sckn.layer import KernelLayer, LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import unit_rows
from sckn.patches import patch_squares
from sckn.pooling import gaussian_pool, pooling_matrix
from sckn.precision import Precision, precision
from sckn.training.sphere import SphereSGD

both_kinds = pytest.mark.parametrize("kind", [Exponential, CentredExponential])


def channels_last(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).contiguous(memory_format=torch.channels_last)


def relative_error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm())


def test_they_do_not_apply_on_a_cpu() -> None:
    u, given = channels_last(2, 8, 4, 4), torch.rand(2, 1, 4, 4)
    assert not exponential.applies(u, given)
    assert not squares.applies(u)
    assert not pooling.applies(channels_last(2, 16, 8, 8))
    assert not rows.applies(torch.rand(3, 4))
    assert not products.applies(torch.rand(2, 4, 4))


@pytest.mark.gpu
def test_they_apply_to_what_training_uses_and_to_nothing_else() -> None:
    u, given = channels_last(2, 8, 4, 4).cuda(), torch.rand(2, 1, 4, 4).cuda()
    assert exponential.applies(u, given)
    assert squares.applies(u)
    assert not exponential.applies(u, given[:, :, :1, :1])
    for other in (u.contiguous(), u.double(), u[:, :1]):
        assert not squares.applies(other)
        assert not exponential.applies(other, given)
    Z = torch.rand(3, 4).cuda()
    assert rows.applies(Z)
    assert not any(rows.applies(other) for other in (Z.double(), Z.T, Z[0], torch.rand(2, 20_000).cuda()))


@pytest.mark.gpu
@both_kinds
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("channels", [3, 32, 100, 128, 512, 4096])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_map_and_gradients_are_those_of_the_formula(
    kind: type[WithAlpha], channels: int, dtype: torch.dtype, tolerance: float, learned: bool
) -> None:
    """In float64 with autograd; a pixel without length gives 0 and no gradient."""
    u = channels_last(3, channels, 5, 7, dtype=dtype).cuda()
    lengths = (u.abs().amax(dim=1, keepdim=True).float() + torch.rand(3, 1, 5, 7).cuda()).square()
    u[0, :, 0, 0], lengths[0, 0, 0, 0] = 0, 0
    alpha = torch.tensor(2.5, device="cuda")
    inputs = [u.requires_grad_(), lengths.requires_grad_(), *([alpha.requires_grad_()] if learned else [])]
    weights = channels_last(3, channels, 5, 7).cuda()
    found = exponential.exponential_map(u, lengths, alpha if learned else 2.5, 0.01, centred=kind is CentredExponential)
    gradients = torch.autograd.grad(found, inputs, weights)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    norms = root(exact[1])
    kernel = kind(exact[2] if learned else 2.5)
    expected = kernel.gain() * norms * kernel(exact[0] / torch.where(norms == 0, 1, norms + 0.01))
    expected_gradients = torch.autograd.grad(expected, exact, weights.double())
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(found, expected) < tolerance
    assert float(found[0, :, 0, 0].detach().abs().max()) == 0
    assert float(gradients[1][0, 0, 0, 0]) == 0
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        assert gradient.shape == right.shape
        assert relative_error(gradient, right) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("centred", [False, True])
def test_a_product_beyond_the_length_counts_as_the_length(centred: bool) -> None:
    u = torch.full((1, 8, 1, 3), 0.1).contiguous(memory_format=torch.channels_last).cuda()
    lengths = torch.tensor([1e-12, 1e-20, 1.0]).reshape(1, 1, 1, 3).cuda().requires_grad_()
    found = exponential.exponential_map(u, lengths, 60.0, 1e-5, centred=centred)
    size = math.sqrt(math.expm1(60.0) / 60) if centred else 1.0
    expected = size * lengths.detach().sqrt().expand(1, 8, 1, 3)[..., :2]
    torch.testing.assert_close(found[..., :2].detach(), expected, rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), lengths)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.gpu
@pytest.mark.parametrize("centred", [False, True])
def test_below_minus_the_length_nothing_is_cut_off(centred: bool) -> None:
    cosines = torch.tensor([-1.0, -1.5, -3.0, -1e30])
    u = (0.7 * cosines).reshape(1, 4, 1, 1).contiguous(memory_format=torch.channels_last).cuda()
    found = exponential.exponential_map(u, torch.full((1, 1, 1, 1), 0.49).cuda(), 1.5, 0.0, centred=centred)
    exact = (
        cosines.double().mul(1.5).expm1() / math.sqrt(1.5 * math.expm1(1.5))
        if centred
        else (1.5 * (cosines.double() - 1)).exp()
    )
    torch.testing.assert_close(found.flatten().double().cpu(), 0.7 * exact, rtol=1e-5, atol=1e-30)


@pytest.mark.gpu
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("alpha", [0.1, 4.0, 80.0])
def test_the_centred_map_at_small_and_large_alpha(alpha: float, learned: bool) -> None:
    """And its gradients. Small alphas cost digits by the difference of two numbers near 1, large ones by exp."""
    norms = 0.1 + torch.rand(2, 1, 5, 7)
    u = (norms * (2 * torch.rand(2, 32, 5, 7) - 1)).contiguous(memory_format=torch.channels_last).cuda().requires_grad_()
    lengths = norms.square().cuda().requires_grad_()
    number = torch.tensor(alpha).cuda().requires_grad_()
    inputs = [u, lengths, *([number] if learned else [])]
    found = exponential.exponential_map(u, lengths, number if learned else alpha, 1e-5, centred=True)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    length, size = exact[1].sqrt(), exact[2] if learned else torch.tensor(alpha, dtype=torch.float64)
    expected = length * torch.expm1(size * exact[0] / (length + 1e-5)) / (size * size.expm1()).sqrt()
    tolerance = 1e-6 * (1 + alpha + 1 / alpha)
    assert relative_error(found, expected) < tolerance
    gradients, right = torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(expected.sum(), exact)
    for one, other in zip(gradients, right, strict=True):
        assert relative_error(one, other) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("centred", [False, True])
def test_nan_is_not_taken_for_a_patch_without_length(centred: bool) -> None:
    u, lengths = channels_last(1, 8, 2, 2).cuda(), torch.rand(1, 1, 2, 2).cuda()
    lengths[0, 0, 1, 1] = torch.nan
    assert exponential.exponential_map(u, lengths, 2.0, 0.01, centred=centred).isnan().sum() == 8


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 128, 700])
def test_squares_and_their_gradients(channels: int) -> None:
    maps = channels_last(2, channels, 9, 6).cuda().requires_grad_()
    weights = torch.randn(2, 1, 9, 6).cuda()
    found = patch_squares(maps, 3, True)
    (gradient,) = torch.autograd.grad(found, maps, weights, create_graph=True)
    (fused_gradient,) = torch.autograd.grad(patch_squares(maps, 3, True), maps, weights)
    (again,) = torch.autograd.grad(gradient.square().sum(), maps)
    exact = maps.detach().double().cpu().requires_grad_()
    expected = patch_squares(exact, 3, True)
    (right,) = torch.autograd.grad(expected, exact, weights.double().cpu(), create_graph=True)
    (right_again,) = torch.autograd.grad(right.square().sum(), exact)
    for one, other in ((found, expected), (gradient, right), (fused_gradient, right), (again, right_again)):
        assert relative_error(one, other) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 27, 1152, 4608])
def test_unit_rows_and_their_gradients(width: int) -> None:
    filters = torch.randn(5, width).cuda()
    filters[3] = 0
    filters.requires_grad_()
    weights = torch.randn(5, width).cuda()
    weights[3] = 0
    found = unit_rows(filters)
    (gradient,) = torch.autograd.grad(found, filters, weights)
    (differentiable,) = torch.autograd.grad(unit_rows(filters), filters, weights, create_graph=True)
    (again,) = torch.autograd.grad(differentiable.square().sum(), filters)
    exact = filters.detach().double().cpu().requires_grad_()
    expected = unit_rows(exact)
    (right,) = torch.autograd.grad(expected, exact, weights.double().cpu(), create_graph=True)
    (right_again,) = torch.autograd.grad(right.square().sum(), exact)
    torch.testing.assert_close(found.detach().double().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)
    for one, other in ((gradient, right), (differentiable, right), (again, right_again)):
        torch.testing.assert_close(one.detach().double().cpu(), other.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", [None, 5.0])
def test_a_step_on_the_sphere_is_the_plain_one(clip: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    start = torch.randn(6, 4, 3, 3)
    fused, plain = torch.nn.Parameter(start.cuda()), torch.nn.Parameter(start.double())
    calls, step = [0], rows.sphere_step

    def counting(*arguments: object) -> None:
        calls[0] += 1
        step(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(rows, "sphere_step", counting)
    optimizers = [SphereSGD([p], torch.tensor(0.1, device=p.device), momentum=0.9, clip=clip) for p in (fused, plain)]
    for _ in range(5):
        gradient = torch.randn_like(start)
        for parameter, optimizer in zip((fused, plain), optimizers, strict=True):
            parameter.grad = gradient.to(parameter)
            optimizer.step()
        assert relative_error(fused, plain) < 1e-6
    momenta = [optimizer.state[p]["momentum_buffer"] for p, optimizer in zip((fused, plain), optimizers, strict=True)]
    assert relative_error(*momenta) < 1e-5
    assert calls[0] == 4  # the first step has no momentum yet


@pytest.mark.gpu
@both_kinds
@pytest.mark.parametrize("filters", [20, 32])  # pooled by plain products, and in one pass
def test_a_layer_gives_the_same_in_either_order_of_memory(kind: type[WithAlpha], filters: int) -> None:
    layer = KernelLayer(6, LayerConfig(filters, 3, subsampling=1.5, kernel=kind(3.0, learnable=True))).cuda()
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


@pytest.mark.gpu
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [1, 5, 64, 70, 128, 300])
def test_products_of_matrices(size: int, symmetric: bool) -> None:
    S = torch.randn(3, size, size)
    S = S + S.mT
    a, base = (S @ S @ S if symmetric else torch.randn(3, size, size)), S.clone()  # powers of S commute
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.5)):
        found = products.product(a.cuda(), S.cuda(), base.cuda(), alpha, beta, symmetric=symmetric)
        expected = alpha * (a.double() @ S.double()) + beta * base.double()
        assert relative_error(found, expected) < 2e-6
        assert not symmetric or torch.equal(found, found.mT)


def test_a_split_number_has_22_bits() -> None:
    x = torch.randn(2, 300, 300) * 10 ** torch.linspace(-4, 4, 300)
    torch.testing.assert_close(split_products.joined(split_products.split(x)), x, rtol=2.0**-22, atol=2.0**-36)


@pytest.mark.gpu
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [257, 300, 384, 512])
def test_products_of_split_matrices(size: int, symmetric: bool) -> None:
    S = torch.randn(3, size, size) / size**0.5
    S = S + S.mT
    a, base = (S @ S @ S if symmetric else torch.randn(3, size, size)), S.clone()  # powers of S commute
    given = [split_products.split(each.cuda()) for each in (a, S, base)]
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.5)):
        found = split_products.product(given[0], given[1], alpha, given[2] if beta else None, beta, symmetric=symmetric)
        expected = alpha * (a.double() @ S.double()) + beta * base.double()
        assert relative_error(split_products.joined(found), expected) < 5e-7  # 1.5e-6 where tensor cores cut sums of whole rows
        assert not symmetric or torch.equal(found.parts, found.parts.mT)


@pytest.mark.gpu
def test_a_gpu_splits_and_joins_as_a_cpu_does() -> None:
    x = torch.randn(3, 70, 90) * 10 ** torch.linspace(-4, 4, 90)
    expected = split_products.split(x)
    found = split_products.split(x.cuda())
    assert torch.equal(found.parts.cpu(), expected.parts)
    torch.testing.assert_close(split_products.joined(found).cpu(), split_products.joined(expected), rtol=2.0**-23, atol=0)
    assert torch.equal(split_products.split(x.cuda().mT).parts.cpu(), expected.parts.mT)


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", [(1.0, 0.0), (2.5, -1.0)])
def test_combinations_with_the_identity(numbers: tuple[float, float]) -> None:
    x, by, identity = torch.randn(3, 300, 300), torch.rand(3, 1, 1), torch.rand(3, 1, 1)
    for first, second in (numbers, (by, numbers[1]), (numbers[0], identity), (by, identity)):
        given = [each.cuda() if isinstance(each, Tensor) else each for each in (first, second)]
        found = split_products.joined(split_products.combination(x.cuda(), given[0], given[1]))
        expected = first * x.double() + second * torch.eye(300, dtype=torch.float64)
        assert relative_error(found, expected) < 2e-7
        assert relative_error(split_products.joined(split_products.combination(x, first, second)), expected) < 2e-7


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 512, 27), (4, 512, 4608), (2, 300, 100), (3, 384, 384)])
def test_products_of_rows(shape: tuple[int, int, int]) -> None:
    Z = torch.nn.functional.normalize(torch.randn(shape), dim=2)
    found = split_products.row_products(Z.cuda())
    assert relative_error(found, Z.double() @ Z.double().mT) < 5e-7
    assert torch.equal(found, found.mT)


@pytest.mark.gpu
def test_large_matrices_alone_are_split() -> None:
    large = torch.rand(2, 512, 512).cuda()
    assert split_products.applies(large)
    assert not any(split_products.applies(other) for other in (large[:, :256, :256], large.double(), large[0], large.cpu()))


@pytest.mark.gpu
def test_small_matrices_alone_are_multiplied_as_they_are() -> None:
    small, large = torch.rand(2, 128, 128).cuda(), torch.rand(2, 512, 512).cuda()
    assert products.applies(small, small)
    for other in (large, small.mT, small.double(), small[0], small.cpu()):
        assert not products.applies(other, other)


@pytest.mark.gpu
def test_small_maps_of_many_channels_are_pooled_in_one_pass() -> None:
    maps = channels_last(2, 16, 32, 5).cuda()
    assert all(pooling.applies(given) for given in (maps, maps.bfloat16(), maps.half()))
    others = [maps.contiguous(), maps.double(), maps[0], channels_last(2, 16, 5, 33).cuda(), channels_last(2, 40, 5, 5).cuda()]
    assert not any(pooling.applies(other) for other in others)


def pooled_exactly(maps: Tensor, factor: float) -> Tensor:
    """In float64 on the CPU."""
    rows, columns = (pooling_matrix(side, factor) for side in maps.shape[-2:])
    return torch.einsum("iy,bcyx,jx->bcij", rows, maps, columns)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [16, 48, 64, 512])
@pytest.mark.parametrize(
    ("height", "width", "factor"),
    [(32, 32, 2**0.5), (23, 23, 2**0.5), (16, 11, 2**0.5), (32, 8, 3.0), (8, 8, 2.0), (8, 8, 8.0), (5, 3, 1.5), (1, 7, 2.0)],
)
@pytest.mark.parametrize(
    ("dtype", "name", "tolerance"),
    [
        (torch.float32, "highest", 1e-6),
        (torch.float32, "high", 1e-3),  # factors that are cut off rather than rounded would be beyond it
        (torch.bfloat16, "highest", 1e-2),
        (torch.float16, "highest", 2e-3),
    ],
)
def test_pooling_in_one_pass_and_its_gradient(
    height: int, width: int, factor: float, channels: int, dtype: torch.dtype, name: Precision, tolerance: float
) -> None:
    maps = channels_last(3, channels, height, width, dtype=dtype).cuda().requires_grad_()
    assert pooling.applies(maps)
    exact = maps.detach().double().cpu().requires_grad_()
    expected = pooled_exactly(exact, factor)
    weights = torch.randn(expected.shape).to(dtype)
    (right,) = torch.autograd.grad(expected, exact, weights.double())
    with precision(name, maps.device):
        found = gaussian_pool(maps, factor)
        (gradient,) = torch.autograd.grad(found, maps, weights.cuda())  # in the other order of memory
    for one, other in ((found, expected), (gradient, right)):
        assert one.dtype == dtype
        assert one.shape == other.shape
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert relative_error(one, other) < tolerance


@pytest.mark.gpu
def test_pooling_in_one_pass_can_be_differentiated_twice() -> None:
    maps = channels_last(2, 16, 11, 7).cuda().requires_grad_()
    exact = maps.detach().double().cpu().requires_grad_()
    with precision("highest", maps.device):
        (gradient,) = torch.autograd.grad(gaussian_pool(maps, 2**0.5).pow(3).sum(), maps, create_graph=True)
        (again,) = torch.autograd.grad(gradient.square().sum(), maps)
    (right,) = torch.autograd.grad(pooled_exactly(exact, 2**0.5).pow(3).sum(), exact, create_graph=True)
    (right_again,) = torch.autograd.grad(right.square().sum(), exact)
    assert relative_error(gradient, right) < 1e-5
    assert relative_error(again, right_again) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["highest", "high"])
def test_pooling_in_one_pass_keeps_nan(name: Precision) -> None:
    """Also that of all ones, which GPUs make, and which rounding by adding to the bits would turn into 0."""
    maps = channels_last(1, 16, 8, 8)
    maps[0, 3, 2, 2] = torch.nan
    maps[0, 5, 0, 0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    with precision(name, torch.device("cuda")):
        found = gaussian_pool(maps.cuda(), 2.0)
    assert found.isnan().flatten(2).any(dim=2).nonzero()[:, 1].tolist() == [3, 5]


@pytest.mark.gpu
def test_a_cuda_graph_pools_in_one_pass() -> None:
    """Captured for one batch, replayed for another."""
    maps = channels_last(2, 32, 23, 16).cuda().requires_grad_()
    weights = channels_last(2, 32, 16, 11).cuda()

    def value_and_gradient(given: Tensor) -> tuple[Tensor, Tensor]:
        found = gaussian_pool(given, 2**0.5)
        return found.detach(), torch.autograd.grad(found.square(), given, weights)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        value_and_gradient(maps)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = value_and_gradient(maps)
    for _ in range(2):
        batch = channels_last(2, 32, 23, 16).cuda().requires_grad_()
        with torch.no_grad():
            maps.copy_(batch)
        graph.replay()
        for found, expected in zip(captured, value_and_gradient(batch), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
def test_a_network_by_kernels_is_as_precise_as_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features and gradients of all parameters, in fp32, with filters enough for split products: against float64 on a CPU."""
    kernel = Exponential(3.0, learnable=True)
    layers = (
        LayerConfig(300, 3, subsampling=2**0.5, kernel=kernel, inverse_root="newton_schulz"),
        LayerConfig(300, 1, subsampling=2, kernel=kernel, inverse_root="newton_schulz"),
    )
    network = CKN(NetworkConfig(16, layers))
    images, weights = torch.randn(2, 16, 16, 16), torch.randn(2, 300, 6, 6)

    def numbers(device: str, dtype: torch.dtype) -> list[Tensor]:
        copy = deepcopy(network).to(device, dtype).train()
        with precision("highest", torch.device(device)):
            maps = copy(images.to(device, dtype))
            gradients = torch.autograd.grad((maps * weights.to(device, dtype)).sum(), list(copy.parameters()))
        return [maps, *gradients]

    exact, fused = numbers("cpu", torch.float64), numbers("cuda", torch.float32)
    for module in (exponential, pooling, products, rows, split_products, squares):
        monkeypatch.setattr(module, "applies", lambda *_, **__: False)
    plain = numbers("cuda", torch.float32)
    assert len(exact) == 5
    for one, other, expected in zip(fused, plain, exact, strict=True):
        assert relative_error(one, expected) < 4 * relative_error(other, expected) + 1e-6
