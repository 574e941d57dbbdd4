"""kappa: the functions themselves, their derivatives, positive definiteness, settings."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel

from sckn.kernels import (
    ArcCosine,
    CentredExponential,
    Exponential,
    Kernel,
    Linear,
    Polynomial,
    WithAlpha,
    from_dict,
    homogeneous,
    to_dict,
)
from sckn.layer import KernelLayer, LayerConfig

KERNELS = [
    Exponential(4.0),
    Exponential(0.7),
    CentredExponential(4.0),
    CentredExponential(0.7),
    ArcCosine(),
    Polynomial(2, 1.0),
    Polynomial(3, 0.0),
    Polynomial(1, 0.5),
    Linear(),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)
every_kernel_scaled = pytest.mark.parametrize("kernel", [*KERNELS, CentredExponential(10.0)], ids=repr)  # whose gain is 47
both_kinds = pytest.mark.parametrize("kind", [Exponential, CentredExponential])


def gain(kernel: Kernel) -> float:
    """By which its feature maps are multiplied, from the formula."""
    if not isinstance(kernel, CentredExponential):
        return 1.0
    alpha = kernel.alpha.item() if isinstance(kernel.alpha, torch.Tensor) else kernel.alpha
    return math.sqrt(math.expm1(alpha) / alpha)


def unit_vectors(count: int, dimension: int) -> torch.Tensor:
    vectors = torch.randn(count, dimension, dtype=torch.float64)
    return vectors / vectors.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("alpha", [0.5, 4.0])
def test_exponential_is_the_gaussian_kernel_on_the_sphere(alpha: float) -> None:
    y = unit_vectors(20, 5)
    torch.testing.assert_close(
        Exponential(alpha)(y @ y.T), torch.from_numpy(rbf_kernel(y.numpy(), gamma=alpha / 2)), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 4.0, 30.0, 60.0, 80.0])
@pytest.mark.parametrize("learned", [False, True])
def test_centred_exponential_is_what_numpy_makes_of_it_for_small_and_large_alpha(
    alpha: float, dtype: torch.dtype, learned: bool
) -> None:
    """Beside numpy in float64, whose expm1 keeps its digits near 0."""
    given = torch.linspace(-1, 1, 41).to(dtype)
    u = given.double().numpy()
    kernel = CentredExponential(torch.tensor(alpha, dtype=dtype) if learned else alpha)
    exact = np.expm1(alpha * u) / np.expm1(alpha)
    slope = alpha * np.exp(alpha * u) / np.expm1(alpha)
    features = np.expm1(alpha * u) / np.sqrt(alpha * np.expm1(alpha))
    relative = 4 * (1 + alpha) * torch.finfo(dtype).eps  # exp magnifies the rounding of its argument
    np.testing.assert_allclose(kernel(given).double().numpy(), exact, rtol=relative, atol=0)
    smallest = float(torch.finfo(dtype).tiny)
    np.testing.assert_allclose(kernel.derivative(given).double().numpy(), slope, rtol=relative, atol=smallest)
    assert float(kernel.gain()) == pytest.approx(np.sqrt(np.expm1(alpha) / alpha), rel=relative)
    projected, squares = given.view(1, -1, 1, 1), torch.ones(1, 1, 1, 1, dtype=dtype)
    np.testing.assert_allclose(
        kernel.scaled(projected, squares, 0.0).flatten().double().numpy(), features, rtol=relative, atol=0
    )
    with torch.no_grad():
        written = kernel.scaled(projected.clone(), squares, 0.0, overwrite=True)
    np.testing.assert_allclose(written.flatten().double().numpy(), features, rtol=relative, atol=0)


def test_centred_exponential_is_the_exponential_kernel_less_its_constant_part() -> None:
    """Scaled so that it is 1 at 1, as all are; at 0 nothing is left of it."""
    u, (zero, one) = torch.linspace(-1, 1, 41, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.float64)
    usual, kernel = Exponential(2.0), CentredExponential(2.0)
    expected = (usual(u) - usual(zero)) / (usual(one) - usual(zero))
    torch.testing.assert_close(kernel(u), expected, rtol=1e-13, atol=1e-15)
    assert float(kernel(zero)) == 0


def test_centred_exponential_is_its_taylor_series() -> None:
    """With coefficients that are not negative, so that its matrices are positive definite on any sphere; none of degree 0."""
    alpha, u = 3.0, torch.linspace(-1, 1, 21, dtype=torch.float64)
    coefficients = [alpha**k / math.factorial(k) / math.expm1(alpha) for k in range(1, 40)]
    series = torch.stack([c * u**k for k, c in enumerate(coefficients, start=1)]).sum(dim=0)
    kernel = CentredExponential(alpha)
    torch.testing.assert_close(kernel(u), series, rtol=1e-13, atol=1e-15)
    at = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = kernel(at)
    assert found.item() == 0
    for k, coefficient in enumerate(coefficients[:8], start=1):
        (found,) = torch.autograd.grad(found, at, create_graph=True)
        assert found.item() / math.factorial(k) == pytest.approx(coefficient, rel=1e-13)


@pytest.mark.parametrize("alpha", [0.01, 1.0, 10.0, 80.0])
def test_the_centred_kernel_of_nearly_orthogonal_patches_is_their_inner_product(alpha: float) -> None:
    """Up to the curvature, whatever alpha is."""
    x = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([[-1e-6, 1.0], [1e-7, 2.0], [1e-6, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(homogeneous(CentredExponential(alpha), x, y), x @ y.T, rtol=1.1e-6 * alpha, atol=0)


@pytest.mark.parametrize("angle", np.linspace(0, math.pi, 9))
def test_arc_cosine_is_the_expected_product_of_two_rectified_responses(angle: float) -> None:
    """2 E[max(0, <w, y>) max(0, <w, y'>)] for Gaussian w; in polar coordinates only the angle is left to integrate."""
    both_positive = (angle - math.pi / 2, math.pi / 2)
    expected, _ = quad(lambda theta: 2 / math.pi * math.cos(theta) * math.cos(theta - angle), *both_positive)
    u = torch.tensor(math.cos(angle), dtype=torch.float64)
    assert float(ArcCosine()(u)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("degree", "offset"), [(1, 0.5), (2, 1.0), (3, 0.0)])
def test_polynomial_is_the_usual_one_scaled_to_1(degree: int, offset: float) -> None:
    y = unit_vectors(20, 5)
    usual = polynomial_kernel(y.numpy(), degree=degree, gamma=1, coef0=offset)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(Polynomial(degree, offset)(y @ y.T), torch.from_numpy(usual) / (1 + offset) ** degree)


def test_linear_is_the_inner_product() -> None:
    y = unit_vectors(20, 5)
    torch.testing.assert_close(Linear()(y @ y.T), torch.from_numpy(linear_kernel(y.numpy())))


@every_kernel
def test_kappa_of_1_is_1(kernel: Kernel) -> None:
    assert float(kernel(torch.tensor(1.0, dtype=torch.float64))) == 1


@every_kernel
def test_derivative_agrees_with_central_differences(kernel: Kernel) -> None:
    u = torch.linspace(-0.95, 0.95, 39, dtype=torch.float64)
    h = 1e-6
    torch.testing.assert_close(kernel.derivative(u), (kernel(u + h) - kernel(u - h)) / (2 * h), rtol=1e-8, atol=1e-9)


@every_kernel
def test_derivative_agrees_with_autograd_ends_included(kernel: Kernel) -> None:
    u = torch.linspace(-1, 1, 41, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernel(u).sum(), u)
    torch.testing.assert_close(gradient, kernel.derivative(u.detach()), rtol=1e-14, atol=1e-14)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_beyond_the_ends_changes_almost_nothing(kernel: Kernel, dtype: torch.dtype) -> None:
    ends = torch.tensor([-1, 1], dtype=dtype)
    beyond = (ends * (1 + 4 * torch.finfo(dtype).eps)).requires_grad_()
    assert bool((beyond.detach().abs() > 1).all())
    value = kernel(beyond)
    (gradient,) = torch.autograd.grad(value.sum(), beyond)
    small = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(value.detach(), kernel(ends), rtol=small, atol=small)
    torch.testing.assert_close(gradient, kernel.derivative(ends), rtol=small, atol=small)


@every_kernel
def test_gram_matrices_are_positive_semidefinite(kernel: Kernel) -> None:
    y = unit_vectors(60, 4)
    y[-5:] = y[:5]  # equal points: the matrix is singular, yet must not become indefinite
    y[-10:-5] = -y[:5]
    assert float(torch.linalg.eigvalsh(kernel(y @ y.T)).min()) >= -1e-12


@every_kernel
def test_homogeneous_kernel_is_its_definition_and_zero_at_zero(kernel: Kernel) -> None:
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    x[1], y[2] = 0, 0
    expected = torch.zeros(4, 5, dtype=torch.float64)
    for i in range(4):
        for j in range(5):
            norms = x[i].norm() * y[j].norm()
            if norms > 0:
                expected[i, j] = gain(kernel) ** 2 * norms * kernel(x[i] @ y[j] / norms)
    values = homogeneous(kernel, x, y)
    torch.testing.assert_close(values, expected, rtol=1e-13, atol=1e-13)
    assert bool((values[1] == 0).all())
    assert bool((values[:, 2] == 0).all())


@every_kernel
def test_homogeneous_kernel_has_a_finite_gradient_at_zero(kernel: Kernel) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    x[0] = 0
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(homogeneous(kernel, x, x).sum(), x)
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[0] == 0).all())
    assert bool((gradient[1:] != 0).all())


@every_kernel
def test_homogeneous_kernel_scales_with_each_argument(kernel: Kernel) -> None:
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(homogeneous(kernel, 3 * x, 0.5 * y), 1.5 * homogeneous(kernel, x, y), rtol=1e-13, atol=1e-13)
    squares = gain(kernel) ** 2 * x.square().sum(dim=1)
    torch.testing.assert_close(homogeneous(kernel, x, x).diagonal(), squares, rtol=1e-13, atol=1e-13)


def projections_and_norms() -> tuple[torch.Tensor, torch.Tensor]:
    """<z, x> (B, p, H, W) and |x| (B, 1, H, W) of patches of norms from 1e-3 to 1e3."""
    norms = 10 ** torch.linspace(-3, 3, 24, dtype=torch.float64).reshape(2, 1, 3, 4)
    cosines = 2 * torch.rand(2, 5, 3, 4, dtype=torch.float64) - 1
    return norms * cosines, norms


@every_kernel_scaled
@pytest.mark.parametrize("offset", [0.0, 1e-5, 0.3])
def test_scaled_is_its_definition_and_zero_at_zero(kernel: Kernel, offset: float) -> None:
    projected, norms = projections_and_norms()
    expected = gain(kernel) * norms * kernel(projected / (norms + offset))
    torch.testing.assert_close(kernel.scaled(projected, norms.square(), offset), expected, rtol=1e-12, atol=0)
    norms[0, 0, 1] = 0
    scaled = kernel.scaled(projected, norms.square(), offset)
    assert bool((scaled[0, :, 1] == 0).all())
    torch.testing.assert_close(scaled[1], expected[1], rtol=1e-12, atol=0)


@every_kernel_scaled
@pytest.mark.parametrize("offset", [0.0, 1e-5])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_scaled_may_overwrite_only_where_that_is_allowed(kernel: Kernel, offset: float, order: torch.memory_format) -> None:
    projected, norms = projections_and_norms()
    projected = projected.contiguous(memory_format=order)
    norms[0, 0, 1], norms[1, 0, 2, 3] = 0, torch.nan
    before = projected.clone()
    with torch.no_grad():
        kept = kernel.scaled(projected, norms.square(), offset)
        torch.testing.assert_close(projected, before, rtol=0, atol=0)
        written = kernel.scaled(projected, norms.square(), offset, overwrite=True)
    torch.testing.assert_close(written, kept, rtol=0, atol=0, equal_nan=True)
    differentiable = before.clone().requires_grad_()
    kernel.scaled(differentiable * 1, norms.square(), offset, overwrite=True).sum().backward()
    assert differentiable.grad is not None


@both_kinds
@pytest.mark.parametrize("learned", [False, True])
def test_a_product_that_rounding_took_beyond_the_length_counts_as_the_length(kind: type[WithAlpha], learned: bool) -> None:
    """Errors of fast products have the size of the patches around, beside which a patch may have no length to speak of."""
    norms = torch.tensor([1e-6, 1e-10, 1.0]).reshape(1, 1, 1, 3)
    projected = torch.full((1, 2, 1, 3), 0.1)
    kernel = kind(torch.tensor(60.0, requires_grad=True) if learned else 60.0)
    found = kernel.scaled(projected, norms.square(), 1e-5)
    at_end = gain(kernel) * norms.expand(1, 2, 1, 3)[..., :2]
    torch.testing.assert_close(found[..., :2], at_end, rtol=1e-5, atol=0)
    cosine = 0.1 / (1 + 1e-5)
    within = (
        math.expm1(60 * cosine) / math.sqrt(60 * math.expm1(60)) if kind is CentredExponential else math.exp(60 * (cosine - 1))
    )
    torch.testing.assert_close(found[..., 2], torch.full((1, 2, 1), within), rtol=1e-5, atol=0)
    with torch.no_grad():
        overwritten = kernel.scaled(projected.clone(), norms.square(), 1e-5, overwrite=True)
    torch.testing.assert_close(overwritten, found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", [4.0, 60.0])
@pytest.mark.parametrize("learned", [False, True])
def test_beyond_its_end_a_centred_kernel_is_what_it_is_there(alpha: float, learned: bool) -> None:
    """Value and gradients with respect to length and alpha."""
    norms = torch.tensor([1e-6, 0.5]).reshape(1, 1, 1, 2).requires_grad_()
    kernel = CentredExponential(torch.tensor(alpha, requires_grad=True) if learned else alpha)
    inputs = [norms, *([kernel.alpha] if isinstance(kernel.alpha, torch.Tensor) else [])]
    beyond = torch.ones(1, 2, 1, 2)
    found = kernel.scaled(beyond, norms.square(), 1e-5)
    torch.testing.assert_close(found, gain(kernel) * norms.expand(1, 2, 1, 2), rtol=1e-5, atol=0)
    at_end = kernel.scaled((norms + 1e-5).detach().expand(1, 2, 1, 2), norms.square(), 1e-5)
    gradients, expected = (torch.autograd.grad(y.sum(), inputs) for y in (found, at_end))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(kernel.scaled(beyond, norms.square(), 1e-5, overwrite=True), found, rtol=1e-6, atol=0)


@both_kinds
@pytest.mark.parametrize("learned", [False, True])
def test_below_minus_1_nothing_is_cut_off(kind: type[WithAlpha], learned: bool) -> None:
    """An exponential of a negative number is small, whatever rounding made of it."""
    cosines = np.array([-1.0, -1.5, -3.0, -1e30])
    kernel = kind(torch.tensor(1.5) if learned else 1.5)
    projected = torch.tensor(0.7 * cosines, dtype=torch.float32).view(1, 4, 1, 1)
    exact = (
        np.expm1(1.5 * cosines) / math.sqrt(1.5 * math.expm1(1.5))
        if kind is CentredExponential
        else np.exp(1.5 * (cosines - 1))
    )
    found = kernel.scaled(projected, torch.full((1, 1, 1, 1), 0.49), 0.0)
    np.testing.assert_allclose(found.flatten().numpy(), 0.7 * exact, rtol=2e-6, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(
            kernel.scaled(projected, torch.full((1, 1, 1, 1), 0.49), 0.0, overwrite=True), found, rtol=1e-6, atol=0
        )


@both_kinds
def test_maps_larger_than_the_cache_are_scaled_in_parts(kind: type[WithAlpha], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 x 5 x 3 x 4 numbers: by pixel rows, by one image, all at once."""
    projected, norms = projections_and_norms()
    expected = gain(kind(4.0)) * norms * kind(4.0)(projected / norms)
    for numbers in (1, 20, 40, 60, 10**6):
        monkeypatch.setattr("sckn.cache.IN_CACHE", numbers)
        with torch.no_grad():
            scaled = kind(4.0).scaled(projected.clone(), norms.square(), 0.0, overwrite=True)
        torch.testing.assert_close(scaled, expected, rtol=1e-12, atol=0)


@both_kinds
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_maps_larger_than_the_cache_are_those_of_the_formula(
    kind: type[WithAlpha], order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in parts, beside autograd on gain |x| kappa(<z, x> / |x|) itself."""
    projected, norms = projections_and_norms()
    inputs = [projected.contiguous(memory_format=order), norms, torch.tensor(3.0, dtype=torch.float64)]
    u, S, alpha = (tensor.clone().requires_grad_() for tensor in inputs)
    kernel = kind(alpha)
    weights = torch.randn_like(u)
    expected = torch.autograd.grad(kernel.gain() * S * kernel(u / S), (u, S, alpha), weights)
    for numbers in (1, 20, 40, 60, 10**6):
        monkeypatch.setattr("sckn.cache.IN_CACHE", numbers)
        found = torch.autograd.grad(kind(alpha).scaled(u, S.square(), 0.0), (u, S, alpha), weights)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@every_kernel_scaled
@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_gradients_of_scaled_agree_with_central_differences(kernel: Kernel, offset: float) -> None:
    """For the projections, the norms and, where there is one, alpha; the second derivatives as well."""
    projected = torch.rand(2, 3, 1, 2, dtype=torch.float64, requires_grad=True)
    norms = (1 + torch.rand(2, 1, 1, 2, dtype=torch.float64)).requires_grad_()
    inputs = (projected, norms)
    if isinstance(kernel, WithAlpha):
        inputs = (*inputs, torch.tensor(float(kernel.alpha), dtype=torch.float64, requires_grad=True))

    def scaled(u: torch.Tensor, S: torch.Tensor, alpha: torch.Tensor | None = None) -> torch.Tensor:
        used = kernel if alpha is None else replace(kernel, alpha=alpha)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return used.scaled(u, S.square(), offset)

    assert torch.autograd.gradcheck(scaled, inputs)
    assert torch.autograd.gradgradcheck(scaled, inputs)


@every_kernel_scaled
@pytest.mark.parametrize("offset", [0.0, 1e-5])
def test_a_zero_patch_pulls_at_nothing(kernel: Kernel, offset: float) -> None:
    projected, norms = projections_and_norms()
    projected[0, :, 1], norms[0, :, 1] = 0, 0
    projected.requires_grad_()
    (gradient,) = torch.autograd.grad(kernel.scaled(projected, norms.square(), offset).sum(), projected)
    assert bool((gradient[0, :, 1] == 0).all())
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[1] != 0).all())


@every_kernel_scaled
def test_nan_is_not_taken_for_zero(kernel: Kernel) -> None:
    projected, norms = projections_and_norms()
    norms[1, 0, 2, 3] = torch.nan
    scaled = kernel.scaled(projected, norms.square(), 1e-5)
    assert bool(scaled[1, :, 2, 3].isnan().all())
    assert int(scaled.isnan().sum()) == 5


@every_kernel_scaled
def test_projections_in_half_precision_are_scaled_in_single(kernel: Kernel) -> None:
    """As autocast leaves them. What is lost is what the rounding of <z, x> itself loses."""
    projected, norms = (tensor.float() for tensor in projections_and_norms())
    rounded = projected.to(torch.bfloat16).requires_grad_()
    scaled = kernel.scaled(rounded, norms.square(), 1e-5)
    assert scaled.dtype == torch.float32
    same = rounded.detach().float().requires_grad_()
    expected = kernel.scaled(same, norms.square(), 1e-5)
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0)
    weights = torch.randn_like(scaled)
    (gradient,), (expected_gradient,) = (torch.autograd.grad(y, u, weights) for y, u in ((scaled, rounded), (expected, same)))
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float(), expected_gradient, rtol=2**-8, atol=1e-30)


@both_kinds
@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_alpha_must_be_positive(kind: type[WithAlpha], alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        kind(alpha)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("alpha", [80.5, 200.0])
def test_an_alpha_whose_exponential_is_too_large_is_refused(alpha: float, learnable: bool) -> None:
    with pytest.raises(ValueError, match=rf"^alpha must be a number above 0 and of at most 80, got {alpha}$"):
        CentredExponential(alpha, learnable=learnable)
    with pytest.raises(ValueError, match="of at most 80"):
        from_dict({"name": "CentredExponential", "alpha": alpha, "learnable": learnable})
    assert float(Exponential(alpha)(torch.tensor(1.0))) == 1  # which has no exponential of more than 0


def test_an_alpha_that_grew_is_taken_as_it_is() -> None:
    layer = KernelLayer(1, LayerConfig(2, 3, kernel=CentredExponential(79.0, learnable=True))).double()
    assert layer.log_alpha is not None
    layer.log_alpha.data += 0.1
    grown = 79 * math.exp(0.1)
    assert grown > 87
    value = layer.kernel(torch.tensor(0.9, dtype=torch.float64))
    assert float(value.detach()) == pytest.approx(math.expm1(grown * 0.9) / math.expm1(grown), rel=1e-5)


@pytest.mark.parametrize("degree", [0, -2, 1.5, math.inf, math.nan])
def test_polynomial_needs_a_whole_degree(degree: Any) -> None:
    with pytest.raises(ValueError, match="degree"):
        Polynomial(degree)


@pytest.mark.parametrize("offset", [-0.1, math.nan, math.inf])
def test_polynomial_needs_an_offset_that_is_not_negative(offset: float) -> None:
    with pytest.raises(ValueError, match="offset"):
        Polynomial(2, offset)


@pytest.mark.parametrize("kernel", [*KERNELS, Exponential(2.0, learnable=True), CentredExponential(learnable=True)], ids=repr)
def test_description_survives_json(kernel: Kernel) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(kernel)))) == kernel


@both_kinds
def test_a_learned_kernel_can_be_described(kind: type[WithAlpha]) -> None:
    layer = KernelLayer(1, LayerConfig(filters=2, patch=3, kernel=kind(3.0, learnable=True)))
    described = from_dict(json.loads(json.dumps(to_dict(layer.kernel))))
    assert isinstance(described, kind)
    assert float(described.alpha) == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [{}, {"name": "Sigmoid"}, {"name": "Linear", "slope": 2.0}, {"name": "Exponential", "alpha": -1.0}],
)
def test_unknown_descriptions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kernel|alpha"):
        from_dict(fields)


def test_a_kernel_between_patches_in_double_holds_a_learned_alpha_whose_squared_gain_single_precision_does_not() -> None:
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    alpha = torch.tensor(60.0)  # as a layer in fp32 learns it
    K = homogeneous(CentredExponential(alpha), x, y)
    lengths = x.norm(dim=1)[:, None] * y.norm(dim=1)
    torch.testing.assert_close(K, lengths * torch.expm1(60 * (x @ y.T) / lengths) / 60, rtol=1e-6, atol=0)
    assert bool(torch.isfinite(K).all())
