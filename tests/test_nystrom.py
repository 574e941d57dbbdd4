"""The projection of appendix A: inner products, homogeneity, residuals, degenerate filters."""

import itertools

import pytest
import torch
from torch import Tensor

from sckn.inverse_root import InverseRoot
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Linear, Polynomial, homogeneous
from sckn.nystrom import projection_coefficients, projection_residuals, psi, unit_rows

# with 8 filters in 12 dimensions each of these has a Gram matrix of full rank
every_kernel = pytest.mark.parametrize(
    "kernel", [Exponential(4.0), CentredExponential(4.0), ArcCosine(), Polynomial(2, 1.0), Linear()], ids=repr
)
by_both_methods = pytest.mark.parametrize("method", ["eigh", "newton_schulz"])


def patches_and_filters() -> tuple[Tensor, Tensor]:
    """Patches of norms from 0.05 to 20, and unit filters."""
    patches = torch.randn(15, 12, dtype=torch.float64)
    scales = torch.logspace(-1.3, 1.3, 15, dtype=torch.float64)[:, None]
    return scales * patches / patches.norm(dim=1, keepdim=True), unit_rows(torch.randn(8, 12, dtype=torch.float64))


@every_kernel
@by_both_methods
def test_inner_products_with_the_filters_are_the_kernel(kernel: Kernel, method: InverseRoot) -> None:
    patches, filters = patches_and_filters()
    encoded, anchors = (psi(x, filters, kernel, epsilon=0.0, norm_offset=0.0, inverse_root=method) for x in (patches, filters))
    torch.testing.assert_close(encoded @ anchors.T, homogeneous(kernel, patches, filters), rtol=1e-10, atol=1e-10)


@every_kernel
def test_inner_products_tend_to_the_kernel_as_filters_are_added(kernel: Kernel) -> None:
    """Of any two patches; those of three numbers are soon near some filter."""
    x, y = (scale * torch.randn(20, 3, dtype=torch.float64) for scale in (1.0, 3.0))
    filters = torch.randn(400, 3, dtype=torch.float64)
    exact = homogeneous(kernel, x, y)
    errors = []
    for count in (1, 20, 400):
        by_x, by_y = (psi(patches, filters[:count], kernel, epsilon=1e-13, norm_offset=0.0) for patches in (x, y))
        errors.append(float((by_x @ by_y.T - exact).norm() / exact.norm()))
    assert 0.1 < errors[0] < 1
    assert errors[1] < errors[0]
    assert errors[2] < 1e-4


@every_kernel
@pytest.mark.parametrize("gamma", [1e-3, 0.5, 700.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_psi_is_homogeneous_without_the_offset(kernel: Kernel, gamma: float, epsilon: float) -> None:
    patches, filters = patches_and_filters()
    scaled = psi(gamma * patches, filters, kernel, epsilon=epsilon, norm_offset=0.0)
    expected = gamma * psi(patches, filters, kernel, epsilon=epsilon, norm_offset=0.0)
    torch.testing.assert_close(scaled, expected, rtol=1e-10, atol=1e-12)


@every_kernel
def test_psi_is_equation_3(kernel: Kernel) -> None:
    patches, filters = patches_and_filters()
    gram = kernel(filters @ filters.T) + 1e-2 * torch.eye(8, dtype=torch.float64)
    encoded = psi(patches, 3 * filters, kernel, epsilon=1e-2, norm_offset=0.1)  # the scale of the filters does not count
    for x, coordinates in zip(patches, encoded, strict=True):
        expected = kernel.gain() * x.norm() * kernel(filters @ x / (x.norm() + 0.1))
        # A is the only positive definite solution of A A (K + epsilon I) = I; multiplying by its square avoids computing it
        torch.testing.assert_close(coordinates @ coordinates, expected @ torch.linalg.solve(gram, expected), rtol=1e-10, atol=0)


@every_kernel
@pytest.mark.parametrize("norm_offset", [0.0, 1e-5])
def test_a_zero_patch_gives_zero_and_a_finite_gradient(kernel: Kernel, norm_offset: float) -> None:
    patches, filters = patches_and_filters()
    patches[3] = 0
    patches.requires_grad_()
    filters.requires_grad_()
    encoded = psi(patches, filters, kernel, norm_offset=norm_offset)
    assert bool((encoded[3] == 0).all())
    assert bool((encoded.detach().norm(dim=1)[:3] > 0).all())
    for gradient in torch.autograd.grad(encoded.sum(), (patches, filters)):
        assert bool(torch.isfinite(gradient).all())


def nested_residuals(kernel: Kernel, epsilon: float) -> Tensor:
    patches, _ = patches_and_filters()
    filters = torch.randn(30, 12, dtype=torch.float64)
    return torch.stack([projection_residuals(patches, filters[:p], kernel, epsilon=epsilon) for p in range(1, 31)])


@pytest.mark.parametrize("kernel", [Exponential(4.0), CentredExponential(4.0), ArcCosine()], ids=repr)
@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_residuals_never_rise_as_filters_are_added(kernel: Kernel, epsilon: float) -> None:
    residuals = nested_residuals(kernel, epsilon)
    patches, _ = patches_and_filters()
    rounding = 1e-10 * homogeneous(kernel, patches, patches).diagonal()
    assert all(bool((after <= before + rounding).all()) for before, after in itertools.pairwise(residuals))
    assert bool((residuals[-1] < residuals[0]).all())
    assert bool((residuals > -rounding).all())


def test_residuals_vanish_once_the_filters_span_the_space() -> None:
    """For the linear kernel that takes as many filters as dimensions, and not one fewer."""
    residuals = nested_residuals(Linear(), epsilon=0.0)
    patches, _ = patches_and_filters()
    size = patches.square().sum(dim=1)
    assert bool((residuals[10] > 1e-6 * size).all())
    torch.testing.assert_close(residuals[11] / size, torch.zeros(15, dtype=torch.float64), rtol=0, atol=1e-10)


@every_kernel
def test_a_residual_is_the_squared_distance_to_the_projection(kernel: Kernel) -> None:
    """|phi(x) - sum_j a_j phi(z_j)|^2 = K(x, x) - 2 a'k + a'K a, all from kernel values."""
    patches, filters = patches_and_filters()
    a = projection_coefficients(patches, filters, kernel)
    k = homogeneous(kernel, patches, filters)
    gram = homogeneous(kernel, filters, filters)
    squared_norms = homogeneous(kernel, patches, patches).diagonal()
    distance = squared_norms - 2 * (a * k).sum(dim=1) + ((a @ gram) * a).sum(dim=1)
    torch.testing.assert_close(projection_residuals(patches, filters, kernel), distance, rtol=1e-9, atol=1e-9)


@every_kernel
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_the_coefficients_are_a_minimum(kernel: Kernel, epsilon: float) -> None:
    patches, filters = patches_and_filters()
    patches = patches / patches.norm(dim=1, keepdim=True)  # the regularised problem is stated for unit patches
    k, gram = homogeneous(kernel, patches, filters), homogeneous(kernel, filters, filters)
    size = homogeneous(kernel, patches, patches).diagonal()  # gain^2, in which epsilon is measured

    def objective(a: Tensor) -> Tensor:
        distance = size - 2 * (a * k).sum(dim=1) + ((a @ gram) * a).sum(dim=1)
        return distance + epsilon * size * a.square().sum(dim=1)

    best = projection_coefficients(patches, filters, kernel, epsilon=epsilon)
    value = objective(best)
    torch.testing.assert_close(projection_residuals(patches, filters, kernel, epsilon=epsilon), value, rtol=1e-9, atol=1e-10)
    for _ in range(20):
        assert bool((objective(best + 0.01 * torch.randn_like(best)) > value).all())


@every_kernel
def test_a_duplicated_filter_changes_no_projection(kernel: Kernel) -> None:
    patches, filters = patches_and_filters()
    twice = torch.cat([filters, filters[2:4], 5 * filters[:1]])  # also a multiple: the same direction
    without, with_duplicates = (psi(patches, z, kernel, epsilon=0.0, norm_offset=0.0) for z in (filters, twice))
    torch.testing.assert_close(with_duplicates @ with_duplicates.T, without @ without.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        projection_residuals(patches, twice, kernel), projection_residuals(patches, filters, kernel), rtol=1e-9, atol=1e-9
    )
    # the coefficients need not be the same, the point they describe must: compare its inner product with every phi(x)
    by_each = [
        projection_coefficients(patches, z, kernel) @ homogeneous(kernel, unit_rows(z), patches) for z in (filters, twice)
    ]
    torch.testing.assert_close(by_each[1], by_each[0], rtol=1e-9, atol=1e-9)


def test_a_zero_patch_projects_to_zero() -> None:
    _, filters = patches_and_filters()
    zero = torch.zeros(1, 12, dtype=torch.float64)
    assert bool((projection_coefficients(zero, filters, Exponential()) == 0).all())
    assert float(projection_residuals(zero, filters, Exponential())) == 0


def test_a_zero_filter_can_be_differentiated_twice() -> None:
    filters = torch.randn(3, 5, dtype=torch.float64)
    filters[1] = 0
    filters.requires_grad_()
    (once,) = torch.autograd.grad(unit_rows(filters)[:, 0].square().sum(), filters, create_graph=True)
    (twice,) = torch.autograd.grad(once.square().sum(), filters)
    assert bool(torch.isfinite(twice).all())
    assert bool(twice[0].any())
