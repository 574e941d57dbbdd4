"""Projection of patches onto F = Span(phi(z_1), ..., phi(z_p)) in the Hilbert space of a kernel: appendix A.

Here patches are rows of a matrix and everything is written as the equations are; `KernelLayer` computes the same for
all patches of a map at once, by convolutions.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sckn.fused import rows as fused
from sckn.fused import split_products
from sckn.inverse_root import Gradient, InverseRoot, identity_like, inverse_square_root
from sckn.kernels import Kernel, WithAlpha
from sckn.precision import full_precision, without_autocast

__all__ = ["filter_gram", "filter_grams", "projection_coefficients", "projection_residuals", "psi", "unit_rows"]


def unit_rows(filters: Tensor) -> Tensor:
    """Filters (p, ...) flattened to (p, d) and scaled to unit norm, in fp32 at least: the columns of Z. Zero stays zero."""
    Z = filters.flatten(1).to(torch.promote_types(filters.dtype, torch.float32))
    if fused.applies(Z):
        unit: Tensor = _UnitRows.apply(Z)  # pyright: ignore[reportAssignmentType]
        return unit
    return _unit_rows(Z)


def _unit_rows(Z: Tensor) -> Tensor:
    return Z / _lengths(Z)


def _lengths(Z: Tensor) -> Tensor:
    squares = Z.square().sum(dim=1, keepdim=True)
    return torch.where(squares > 0, squares, 1).sqrt()  # the second derivative of a norm at zero would be NaN


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Z: Tensor) -> Tensor:
        ctx.save_for_backward(Z)
        return fused.unit_rows(Z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (Z,), (gradient,) = ctx.saved_tensors, gradients
        if not torch.is_grad_enabled():
            return fused.unit_rows_gradient(Z, gradient)
        unit = _unit_rows(Z)  # to be differentiated again
        return (gradient - (gradient * unit).sum(1, keepdim=True) * unit) / _lengths(Z)


def filter_gram(Z: Tensor, kernel: Kernel, epsilon: float) -> Tensor:
    """kappa(Z'Z) + epsilon I for unit rows Z (p, d)."""
    return filter_grams([Z], [kernel], [epsilon])[0]


def filter_grams(Zs: Sequence[Tensor], kernels: Sequence[Kernel], epsilons: Sequence[float]) -> Tensor:
    """The same for several layers with p filters each, (layers, p, p): what is done for each number, for all at once."""
    cosines = torch.stack(_cosines(Zs))
    with full_precision(cosines.device):
        values = _of_each(kernels, cosines)
        if len(set(epsilons)) == 1:
            return torch.add(values, identity_like(values), alpha=epsilons[0])
        return torch.stack([torch.add(v, identity_like(v), alpha=e) for v, e in zip(values, epsilons, strict=True)])


def _cosines(Zs: Sequence[Tensor]) -> list[Tensor]:
    """Z Z' of each, (p, p); those of one shape are found together, which takes fewer and fuller launches on a GPU."""
    together: dict[torch.Size, list[int]] = defaultdict(list)
    for index, Z in enumerate(Zs):
        together[Z.shape].append(index)
    products: dict[int, Tensor] = {}
    for indices in together.values():
        batch: Tensor = _RowProducts.apply(torch.stack([Zs[index] for index in indices]))  # pyright: ignore[reportAssignmentType]
        products |= dict(zip(indices, batch.unbind(), strict=True))
    return [products[index] for index in range(len(Zs))]


class _RowProducts(torch.autograd.Function):
    """Z Z' for each of (n, p, d), in full precision; its gradient takes one product, where that of a product takes two.

    Nothing magnifies the rounding of that gradient, so it may be in TF32, as the other gradients of filters are.
    """

    @staticmethod
    def forward(ctx: Any, Z: Tensor) -> Tensor:
        ctx.save_for_backward(Z)
        if split_products.applies(Z):
            return split_products.row_products(Z)
        with full_precision(Z.device):
            return Z @ Z.mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (Z,), (G,) = ctx.saved_tensors, gradients
        with without_autocast(Z.device):
            return (G + G.mT) @ Z


def _of_each(kernels: Sequence[Kernel], cosines: Tensor) -> Tensor:
    """kappa of the first layer for the first matrix, and so on."""
    kind = type(kernels[0])
    alphas = [kernel.alpha for kernel in kernels if isinstance(kernel, WithAlpha) and type(kernel) is kind]
    tensors = [alpha for alpha in alphas if isinstance(alpha, Tensor)]
    if len(tensors) == len(kernels) and issubclass(kind, WithAlpha):
        return kind(torch.stack(tensors).to(cosines.dtype)[:, None, None])(cosines)
    if not tensors and all(kernel == kernels[0] for kernel in kernels):
        return kernels[0](cosines)
    return torch.stack([kernel(matrix) for kernel, matrix in zip(kernels, cosines, strict=True)])


def psi(
    patches: Tensor,
    filters: Tensor,
    kernel: Kernel,
    *,
    epsilon: float = 1e-3,
    norm_offset: float = 1e-5,
    inverse_root: InverseRoot = "eigh",
    gradient: Gradient = "exact",
) -> Tensor:
    """psi(x) = |x| A kappa(Z'x / (|x| + offset)), equation (3), times the kernel's gain: coordinates (n, p) of the projected
    patches (n, d)."""
    Z = unit_rows(filters)
    A = inverse_square_root(filter_gram(Z, kernel, epsilon), inverse_root, gradient)
    norms = torch.linalg.vector_norm(patches, dim=1, keepdim=True)
    divisor = torch.where(norms > 0, norms + norm_offset, 1)
    return kernel.gain() * norms * kernel(patches @ Z.T / divisor) @ A


def projection_coefficients(patches: Tensor, filters: Tensor, kernel: Kernel, *, epsilon: float = 0.0) -> Tensor:
    """alpha* (n, p) with f_x = sum_j alpha*_j phi(z_j) the projection of phi(x); patches (n, d) of any norm.

    With epsilon > 0 the projection is regularised: for a patch of unit norm, alpha* minimises
    |phi(x) - sum_j alpha_j phi(z_j)|^2 + epsilon gain^2 |alpha|^2, with the kernel's gain, by which phi is larger.
    """
    Z = unit_rows(filters)
    similarity, norms = _similarity(patches, Z, kernel)
    coefficients, *_ = torch.linalg.lstsq(filter_gram(Z, kernel, epsilon), similarity.T, driver=_driver(Z))
    return norms * coefficients.T


def projection_residuals(patches: Tensor, filters: Tensor, kernel: Kernel, *, epsilon: float = 0.0) -> Tensor:
    """K(x, x) - |psi(x)|^2 for each patch, (n,): what the projection loses.

    At epsilon = 0 it is the squared distance |phi(x) - f_x|^2; otherwise the minimum of the regularised problem of
    `projection_coefficients`. Either way it never rises when filters are added.
    """
    Z = unit_rows(filters)
    similarity, norms = _similarity(patches, Z, kernel)
    A = inverse_square_root(filter_gram(Z, kernel, epsilon))
    return (kernel.gain() * norms.flatten()).square() * (1 - (similarity @ A).square().sum(dim=1))


def _similarity(patches: Tensor, Z: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """kappa(Z'x / |x|) and |x| for each patch; a zero patch is similar to nothing."""
    norms = torch.linalg.vector_norm(patches, dim=1, keepdim=True)
    present = norms > 0
    return torch.where(present, kernel(patches @ Z.T / torch.where(present, norms, 1)), 0), norms


def _driver(Z: Tensor) -> str | None:
    """Equal filters make a singular system, which only this LAPACK routine solves; CUDA has no choice of routine."""
    return "gelsd" if Z.device.type == "cpu" else None
