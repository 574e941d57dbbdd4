"""The matrix A = (K + epsilon I)^(-1/2) of equation (3), with its exact gradient.

The paper differentiates A by Delta A = -1/2 A^(3/2) Delta K A^(3/2), which is right only if K and Delta K commute.
Exactly, with K = V diag(s^2) V' and G the symmetrised gradient for A,

    dL/dK = V [ -(V' G V)_ab / (s_a s_b (s_a + s_b)) ] V',

finite also where eigenvalues coincide, which automatic differentiation of an eigendecomposition is not.
Equivalently dL/dK = -X where S X + X S = A G A and S = K^(1/2), which needs matrix products alone.

References
----------
Higham, Functions of Matrices (2008), chapter 6: the coupled Newton-Schulz iteration.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Gradient", "InverseRoot", "full_precision", "inverse_square_root"]

InverseRoot = Literal["eigh", "newton_schulz"]
Gradient = Literal["exact", "paper"]

# Newton-Schulz more than doubles the smallest eigenvalue (relative to the largest) at each iteration until it is near
# 1: 60 iterations reach beyond the condition numbers that float64 can express.
MAX_ITERATIONS = 60

NOT_FINITE = "the kernel matrix of the filters holds NaN or infinity; check the filters and the images"

# Below this residual the iteration is in its quadratic end: a rise from there on is rounding.
NEAR = 0.1


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Neither autocast nor TF32: p x p matrices of condition 10^3 and more need every digit of fp32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision  # the older switches read and write it too
    matmul.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        matmul.fp32_precision = before


def inverse_square_root(gram: Tensor, method: InverseRoot = "eigh", gradient: Gradient = "exact") -> Tensor:
    """K^(-1/2) for symmetric positive definite matrices K (..., p, p), differentiable once.

    Parameters
    ----------
    gram: K, with the regularisation epsilon I already added.
    method: "eigh" decomposes each matrix; "newton_schulz" uses batched matrix products alone, much faster on a GPU.
    gradient: "exact", or "paper" for the formula printed in the paper.
    """
    if method not in ("eigh", "newton_schulz"):
        raise ValueError(f"the inverse root is found by 'eigh' or 'newton_schulz', not by {method!r}")
    if gradient not in ("exact", "paper"):
        raise ValueError(f"the gradient of the inverse root is 'exact' or 'paper', not {gradient!r}")
    function = _ByEigenvectors if method == "eigh" else _ByMatrixProducts
    root: Tensor = function.apply(gram, gradient)  # pyright: ignore[reportAssignmentType]
    return root


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


class _ByEigenvectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gram: Tensor, gradient: Gradient) -> Tensor:
        with full_precision(gram.device):
            try:
                eigenvalues, V = torch.linalg.eigh(gram)  # (..., p), (..., p, p)
            except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
                raise ValueError(NOT_FINITE) from None
            # Directions without weight (two equal filters at epsilon = 0) are left out: the pseudo-inverse still
            # projects onto the span of the filters. The bound is tight, so that it stays below epsilon in wide layers.
            smallest = 4 * torch.finfo(gram.dtype).eps * eigenvalues[..., -1:]
            inverse = torch.where(eigenvalues > smallest, eigenvalues.clamp_min(smallest).rsqrt(), 0)  # 1 / s
            root = (V * inverse.unsqueeze(-2)) @ V.mT
        ctx.save_for_backward(inverse, V)
        ctx.gradient = gradient
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inverse, V = ctx.saved_tensors
        a, b = inverse.unsqueeze(-1), inverse.unsqueeze(-2)
        if ctx.gradient == "exact":
            # 1 / (s_a s_b (s_a + s_b)) written with 1/s, so that a direction left out (1/s = 0) gives 0
            total = a + b
            weights = (a * b).square() / torch.where(total > 0, total, 1)
        else:
            weights = (a * b) ** 1.5 / 2
        with full_precision(V.device):
            rotated = V.mT @ _symmetric(gradients[0]) @ V
            return -(V @ (rotated * weights) @ V.mT), None


class _ByMatrixProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gram: Tensor, gradient: Gradient) -> Tensor:
        with full_precision(gram.device):
            S, A = newton_schulz(gram)
        ctx.save_for_backward(S, A)
        ctx.gradient = gradient
        return A

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        S, A = ctx.saved_tensors
        with full_precision(A.device):
            G = _symmetric(gradients[0])
            if ctx.gradient == "exact":
                return -lyapunov(S, A @ G @ A), None
            A32 = A @ newton_schulz(A)[0]  # A^(3/2)
            return -_symmetric(A32 @ G @ A32) / 2, None


def newton_schulz(gram: Tensor) -> tuple[Tensor, Tensor]:
    """K^(1/2) and K^(-1/2) by the coupled Newton-Schulz iteration, always started afresh.

    (Started from the last A it would not converge to K^(-1/2): the old A does not commute with the new K.)
    """
    scale = torch.linalg.matrix_norm(gram, ord=torch.inf)[..., None, None]  # at least the largest eigenvalue
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)

    def step(state: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        Y, Z = state
        product = Z @ Y
        T = 1.5 * identity - product / 2
        return (Y @ T, T @ Z), identity - product

    Y, Z = _until_converged(step, (gram / scale, identity.expand_as(gram)))
    return _symmetric(Y) * scale.sqrt(), _symmetric(Z) / scale.sqrt()


def lyapunov(S: Tensor, G: Tensor) -> Tensor:
    """The symmetric X with S X + X S = G, for S positive definite: the sign iteration on [[S, G], [0, -S]]."""
    scale = torch.linalg.matrix_norm(S, ord=torch.inf)[..., None, None]
    identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)

    def step(state: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        a, q = state
        square = a @ a
        T = 1.5 * identity - square / 2
        return (a @ T, q @ T - a @ (a @ q - q @ a) / 2), identity - square

    _, q = _until_converged(step, (S / scale, G / scale))
    return _symmetric(q) / 2


def _until_converged(
    step: Callable[[tuple[Tensor, ...]], tuple[tuple[Tensor, ...], Tensor]], state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Iterate while the residual falls. It falls quadratically at the end, so one step below the square root of the
    rounding error is the last that helps; where rounding stops it earlier, the first rise ends the iteration."""
    tolerance = torch.finfo(state[0].dtype).eps ** 0.5
    if not all(bool(torch.isfinite(matrix).all()) for matrix in state):
        raise ValueError(NOT_FINITE)
    last = torch.inf
    for _ in range(MAX_ITERATIONS):
        advanced, residual = step(state)
        size = float(residual.abs().amax())
        if not size < torch.inf or (size >= last and size < NEAR):
            break
        state, last = advanced, size
        if size < tolerance:
            break
    if last > NEAR:
        raise ValueError(
            "the kernel matrix of the filters is singular, which matrix products alone cannot invert; "
            "set epsilon above 0 or inverse_root='eigh'"
        )
    return state
