"""The sphere optimiser against the formulas of the paper, torch.optim.SGD, and functions with known minima."""

import pytest
import torch
from torch import Tensor

from sckn.training.orthogonal import orthogonalized
from sckn.training.sphere import SphereSGD, sphere_direction

FLOAT64 = torch.float64


def unit_rows(p: int, d: int, dtype: torch.dtype = FLOAT64) -> Tensor:
    Z = torch.randn(p, d, dtype=dtype)
    return Z / Z.norm(dim=1, keepdim=True)


def positive_definite(d: int) -> Tensor:
    M = torch.randn(d, d, dtype=FLOAT64)
    return M @ M.T + 0.1 * torch.eye(d, dtype=FLOAT64)


def stepped(Z: Tensor, gradient: Tensor, **settings: object) -> Tensor:
    parameter = torch.nn.Parameter(Z.clone())
    parameter.grad = gradient.clone()
    SphereSGD([parameter], **settings).step()  # pyright: ignore[reportArgumentType]
    return parameter.detach()


def test_a_step_is_the_update_of_the_paper() -> None:
    Z, gradient, Q, lr = unit_rows(5, 7), torch.randn(5, 7, dtype=FLOAT64), positive_definite(7), 0.3
    step = stepped(Z, gradient, lr=lr, preconditioner=Q)
    for z, g, found in zip(Z, gradient, step, strict=True):
        moved = z - lr * (torch.eye(7) - torch.outer(Q @ z, z) / (z @ Q @ z)) @ (Q @ g)
        torch.testing.assert_close(found, moved / moved.norm(), rtol=1e-12, atol=1e-12)


def test_without_preconditioner_it_is_the_projected_step_of_appendix_c() -> None:
    Z, gradient, lr = unit_rows(5, 7), torch.randn(5, 7, dtype=FLOAT64), 0.2
    plain = stepped(Z, gradient, lr=lr)
    identity = stepped(Z, gradient, lr=lr, preconditioner=torch.eye(7, dtype=FLOAT64))
    for z, g, found, same in zip(Z, gradient, plain, identity, strict=True):
        moved = z - lr / (1 + lr * (z @ g)) * g
        torch.testing.assert_close(found, moved / moved.norm(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(same, found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_any_preconditioner_gives_a_descent_direction(seed: int) -> None:
    torch.manual_seed(seed)
    Z, Q = unit_rows(4, 6), positive_definite(6)
    B = torch.randn(6, 6, dtype=FLOAT64)

    def loss(points: Tensor) -> Tensor:
        return torch.sin(points @ B).sum() + (points**3).sum()

    parameter = Z.clone().requires_grad_()
    loss(parameter).backward()
    assert parameter.grad is not None
    direction = sphere_direction(Z, parameter.grad, Q)
    torch.testing.assert_close((direction * Z).sum(1), torch.zeros(4, dtype=FLOAT64), atol=1e-12, rtol=0)
    assert loss(stepped(Z, parameter.grad, lr=1e-5, preconditioner=Q)) < loss(Z)


def test_it_finds_the_smallest_eigenvector() -> None:
    """The minimum of z' M z on the sphere."""
    M = positive_definite(6)
    parameter = torch.nn.Parameter(unit_rows(3, 6))
    optimizer = SphereSGD([parameter], lr=0.02, momentum=0.9)
    for _ in range(2000):
        optimizer.zero_grad()
        ((parameter @ M) * parameter).sum().backward()
        optimizer.step()
    values, _ = torch.linalg.eigh(M)
    found = ((parameter @ M) * parameter).sum(1)
    torch.testing.assert_close(found.detach(), values[0].expand(3), rtol=1e-8, atol=1e-8)


def test_momentum_stays_in_the_tangent_space() -> None:
    parameter = torch.nn.Parameter(unit_rows(3, 2 * 3 * 3).view(3, 2, 3, 3))
    optimizer = SphereSGD([parameter], lr=0.1, momentum=0.9, preconditioner=positive_definite(18))
    for _ in range(5):
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert momentum.shape == parameter.shape
        products = (momentum.flatten(1) * parameter.detach().flatten(1)).sum(1)
        torch.testing.assert_close(products, torch.zeros(3, dtype=FLOAT64), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.8, "dampening": 0.2}]
)
def test_off_the_sphere_it_is_sgd(settings: dict[str, float]) -> None:
    ours, theirs = (torch.nn.Parameter(torch.arange(3.0)) for _ in range(2))
    optimizer = SphereSGD([ours], lr=0.1, weight_decay=0.01, sphere=False, **settings)  # pyright: ignore[reportArgumentType]
    reference = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.01, **settings)  # pyright: ignore[reportArgumentType]
    for _ in range(4):
        ours.grad = torch.randn(3)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs)


def test_long_gradients_are_shortened_and_short_ones_left() -> None:
    """With momentum 0 the step of a clipped row is that of a gradient scaled by hand."""
    start, gradient = unit_rows(4, 7), torch.randn(4, 7, dtype=FLOAT64)
    lengths = sphere_direction(start, gradient).norm(dim=1, keepdim=True)
    clip = float(lengths.median())
    results = []
    for given, limit in ((gradient, clip), (gradient * (clip / lengths).clamp_max(1), None)):
        parameter = torch.nn.Parameter(start.clone())
        parameter.grad = given
        SphereSGD([parameter], lr=0.3, clip=limit).step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    unclipped = torch.nn.Parameter(start.clone())
    unclipped.grad = gradient
    SphereSGD([unclipped], lr=0.3).step()
    same = (unclipped.detach() - results[0]).norm(dim=1) < 1e-12
    assert same.tolist() == (lengths <= clip).flatten().tolist()
    assert 0 < int(same.sum()) < 4


@pytest.mark.parametrize("shape", [(6, 2, 3, 3), (40, 1, 3, 3)])
def test_orthogonal_steps_of_several_layers(shape: tuple[int, ...]) -> None:
    """Twice, so that momentum plays a part: as written out for one layer after the other."""
    starts = [unit_rows(shape[0], 9 * shape[1]) for _ in range(3)]
    layers = [torch.nn.Parameter(start.clone().view(shape)) for start in starts]
    optimizer = SphereSGD([{"params": [layer]} for layer in layers], lr=0.1, momentum=0.9, orthogonal=True)
    expected, momenta = list(starts), [torch.zeros_like(start) for start in starts]
    for _ in range(2):
        for index, layer in enumerate(layers):
            gradient = torch.randn(shape, dtype=FLOAT64)
            layer.grad = gradient
            Z = expected[index]
            momentum = 0.9 * momenta[index] + sphere_direction(Z, gradient.flatten(1))
            moved = Z - 0.1 * sphere_direction(Z, orthogonalized(momentum[None])[0])
            expected[index] = moved / moved.norm(dim=1, keepdim=True)
            momenta[index] = sphere_direction(expected[index], momentum)
        optimizer.step()
    for layer, Z in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.detach().flatten(1), Z, rtol=1e-10, atol=1e-10)


def test_orthogonal_steps_follow_weak_directions_as_fast_as_strong_ones() -> None:
    """Of two quadratic functions one is a thousand times as steep: plain steps that suit it leave the other where it was."""
    target = torch.nn.functional.normalize(torch.randn(2, 8, dtype=FLOAT64), dim=1)
    steepness = torch.tensor([[1.0], [1e-3]], dtype=FLOAT64)
    left = {}
    for orthogonal, lr in ((False, 0.2), (True, 0.05)):
        Z = torch.nn.Parameter(-target + 0.1 * unit_rows(2, 8))
        optimizer = SphereSGD([Z], lr=lr, momentum=0.5, orthogonal=orthogonal)
        for _ in range(200):
            optimizer.zero_grad()
            (steepness * (Z - target).square()).sum().backward()
            optimizer.step()
        left[orthogonal] = (Z.detach() - target).norm(dim=1)
    assert float(left[False][0]) < 1e-3
    assert float(left[False][1]) > 1
    assert float(left[True].max()) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 64])
def test_orthogonal_steps_on_a_gpu(width: int) -> None:
    """By kernels, against float64 on a CPU, for layers of one shape and steps enough for momentum to matter."""
    # the first gradients must not be the filters themselves, whose tangent part is nothing but rounding
    starts, lr = [torch.randn(32, width, 3, 3) for _ in range(3)], torch.tensor(0.05)
    runs = []
    for device, dtype in (("cpu", FLOAT64), ("cuda", torch.float32)):
        torch.manual_seed(1)
        layers = [torch.nn.Parameter(start.to(device, dtype)) for start in starts]
        groups = [{"params": [layer]} for layer in layers]
        optimizer = SphereSGD(groups, lr=lr.to(device), momentum=0.9, clip=0.5, orthogonal=True)
        for layer in layers:
            optimizer.state[layer]["momentum_buffer"] = torch.zeros_like(layer)
        for _ in range(5):
            for layer in layers:
                layer.grad = torch.randn(layer.shape).to(device, dtype)
            optimizer.step()
        runs.append(torch.stack([layer.detach().cpu().double() for layer in layers]))
    torch.testing.assert_close(*runs, rtol=0, atol=1e-4)


def test_off_the_sphere_each_number_is_clipped() -> None:
    numbers = torch.nn.Parameter(torch.zeros(3, dtype=FLOAT64))
    numbers.grad = torch.tensor([1e6, -0.3, -2.0], dtype=FLOAT64)
    SphereSGD([{"params": [numbers], "sphere": False, "clip": 0.5}], lr=2.0).step()
    assert numbers.tolist() == pytest.approx([-1.0, 0.6, 1.0])


def test_a_momentum_that_is_not_tangent_is_made_so_for_orthogonal_steps() -> None:
    """As a GPU leaves it: what is radial plays no part in the next step."""
    Z, gradient = unit_rows(4, 9), torch.randn(4, 9, dtype=FLOAT64)
    tangent = sphere_direction(Z, torch.randn(4, 9, dtype=FLOAT64))
    results = []
    for radial in (0.0, 3.0):
        parameter = torch.nn.Parameter(Z.clone())
        optimizer = SphereSGD([parameter], lr=0.1, momentum=0.9, orthogonal=True)
        optimizer.state[parameter]["momentum_buffer"] = tangent + radial * Z
        parameter.grad = gradient.clone()
        optimizer.step()
        results += [parameter.detach(), optimizer.state[parameter]["momentum_buffer"]]
    torch.testing.assert_close(results[0], results[2], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(results[1], results[3], rtol=1e-10, atol=1e-10)


def test_a_scalar_learns_beside_the_filters() -> None:
    filters, alpha = torch.nn.Parameter(unit_rows(2, 3)), torch.nn.Parameter(torch.tensor(1.0))
    optimizer = SphereSGD([{"params": [filters]}, {"params": [alpha], "sphere": False}], lr=0.1)
    filters.grad, alpha.grad = torch.randn(2, 3, dtype=FLOAT64), torch.tensor(2.0)
    optimizer.step()
    torch.testing.assert_close(alpha.detach(), torch.tensor(0.8))
    torch.testing.assert_close(filters.detach().norm(dim=1), torch.ones(2, dtype=FLOAT64))


@pytest.mark.slow
def test_unit_norms_after_100000_steps_in_single_precision() -> None:
    parameter = torch.nn.Parameter(unit_rows(8, 9, torch.float32))
    optimizer = SphereSGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(100_000):
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    torch.testing.assert_close(parameter.detach().norm(dim=1), torch.ones(8), atol=1e-6, rtol=0)


def test_state_survives_a_round_trip() -> None:
    first = torch.nn.Parameter(unit_rows(2, 3))
    second = torch.nn.Parameter(first.detach().clone())
    optimizers = [SphereSGD([p], lr=0.1, momentum=0.9) for p in (first, second)]
    first.grad = torch.randn_like(first)
    optimizers[0].step()
    second.data.copy_(first)
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    first.grad = second.grad = torch.randn_like(first)
    for optimizer in optimizers:
        optimizer.step()
    assert torch.equal(first, second)


def test_bad_settings_are_named() -> None:
    parameter = [torch.nn.Parameter(unit_rows(2, 3))]
    with pytest.raises(ValueError, match="lr must not be negative"):
        SphereSGD(parameter, lr=-1)
    with pytest.raises(ValueError, match="Nesterov"):
        SphereSGD(parameter, nesterov=True)
