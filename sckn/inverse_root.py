"""The matrix A = (K + epsilon I)^(-1/2) of equation (3), with its exact gradient.

The paper differentiates A by Delta A = -1/2 A^(3/2) Delta K A^(3/2), which is right only if K and Delta K commute.
Exactly, with K = V diag(s^2) V' and G the symmetrised gradient for A,

    dL/dK = V [ -(V' G V)_ab / (s_a s_b (s_a + s_b)) ] V',

finite also where eigenvalues coincide, which automatic differentiation of an eigendecomposition is not.
Equivalently dL/dK = -X where S X + X S = A G A and S = K^(1/2), which needs matrix products alone.

Any B with B B' = K^-1 gives the same kernel as A: `sckn.moving_frame` follows K from one training step to the next by such a B.

While a CUDA graph is captured no value may be read and none decides what is done next: both iterations then have a
fixed length, and what cannot be found so is NaN rather than an error. (That a matrix is singular but for rounding is not seen.)

References
----------
Higham, Functions of Matrices (2008), chapter 6: the coupled Newton-Schulz iteration.
Smith, Matrix equation XA + BX = C (1968): the doubling.
Chen and Chow, A stable scaling of Newton-Schulz for improving the sign function computation of a Hermitian matrix (2014).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sckn.capture import capturing
from sckn.fused import products as fused
from sckn.fused import split_products
from sckn.fused.split_products import Split
from sckn.precision import full_precision

__all__ = [
    "Gradient",
    "InverseRoot",
    "identity_like",
    "inverse_square_root",
    "iterations_in_graphs",
    "iterations_needed",
    "lyapunov",
    "newton_schulz",
]

InverseRoot = Literal["eigh", "newton_schulz", "moving_frame"]
Gradient = Literal["exact", "paper"]

# Newton-Schulz more than doubles the smallest eigenvalue (relative to the largest) at each iteration until it is near
# 1: 60 iterations reach beyond the condition numbers that float64 can express.
MAX_ITERATIONS = 60

# The first iterations are scaled so that they go further, for a smallest eigenvalue of LEAST. If it is smaller, the others
# take care of it. A factor near sqrt(3) would go fastest, but send the largest eigenvalue near 0, and digits with it.
LEAST = 1e-4
LARGEST_FACTOR = 1.4

# The same for the inverse in the gradient, where a factor near 2 would do that.
LARGEST_INVERSION_FACTOR = 1.98

# What a CUDA graph runs instead, whatever the matrices are: enough for condition 10^5 in float64, and for more than
# float32 can express.
CAPTURED_ITERATIONS = 24

# Doublings of its gradient there, at least: in float32, 8 leave about as much as rounding does at condition 10^4 with bounds of
# eigenvalues as wide as those of 384 filters. For larger conditions they follow the iterations.
LEAST_DOUBLINGS, ITERATIONS_MORE = 8, 4

NOT_FINITE = "the kernel matrix of the filters holds NaN or infinity; check the filters, the images and learned alphas"
SINGULAR = (
    "the kernel matrix of the filters is singular, or so nearly that rounding decides, and matrix products alone cannot invert "
    "it; set a larger epsilon or inverse_root='eigh'"
)

# Split matrices have the range of fp16. `lyapunov` solves for a gradient whose largest number is 1 / ROOM: the solution is
# larger, the more so the larger the condition is.
ROOM = 16

# Below this residual the iteration is in its quadratic end: a rise from there on is rounding.
NEAR = 0.1


def inverse_square_root(gram: Tensor, method: InverseRoot = "eigh", gradient: Gradient = "exact") -> Tensor:
    """K^(-1/2) for symmetric positive definite matrices K (..., p, p), differentiable once.

    Parameters
    ----------
    gram: K, with the regularisation epsilon I already added.
    method: "eigh" decomposes each matrix; "newton_schulz" uses batched matrix products alone, much faster on a GPU.
    gradient: "exact", or "paper" for the formula printed in the paper.
    """
    if method not in ("eigh", "newton_schulz"):
        advice = "; `moving_frame` needs the last frame too" if method == "moving_frame" else ""
        raise ValueError(f"the inverse root is found by 'eigh' or 'newton_schulz', not by {method!r}{advice}")
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
        if capturing(gram.device):
            raise ValueError(
                "a CUDA graph cannot hold an eigendecomposition; set inverse_root='newton_schulz' or 'moving_frame'"
            )
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
            G = (gradients[0] + gradients[0].mT) / -2  # symmetrised, with the sign of the result
            if ctx.gradient == "exact":
                return lyapunov(S, A, G), None
            A32 = A @ newton_schulz(A)[0]  # A^(3/2)
            return _symmetric(A32 @ G @ A32) / 2, None


def newton_schulz(gram: Tensor) -> tuple[Tensor, Tensor]:
    """K^(1/2) and K^(-1/2) by the coupled Newton-Schulz iteration, always started afresh.

    (Started from the last A it would not converge to K^(-1/2): the old A does not commute with the new K.)
    """
    return _newton_schulz(gram)[0]


def _newton_schulz(gram: Tensor) -> tuple[tuple[Tensor, Tensor], int]:
    """With the number of iterations."""
    scale = torch.linalg.matrix_norm(gram, ord=torch.inf)[..., None, None]  # at least the largest eigenvalue

    def start(linear: float, cubic: float) -> State:
        """The first step, from K / scale and I."""
        Y = _combination(gram, 1 / scale)
        return _product(Y, Y, cubic, Y, linear, symmetric=True), _combination(gram, cubic / scale, linear)

    def step(state: State, linear: float, cubic: float) -> tuple[State, Factor]:
        Y, Z = state
        # In this order, and with this one as it is, rounding errors of one iteration do not grow in the next.
        product = _product(Z, Y)
        Y = _product(Y, product, cubic, Y, linear, symmetric=True)
        return (Y, _product(product, Z, cubic, Z, linear, symmetric=True)), product

    if not capturing(gram.device) and not bool(torch.isfinite(gram).all()):
        raise ValueError(NOT_FINITE)
    (Y, Z), count = _iterations(start, step, gram)
    if not capturing(gram.device) and bool((_largest(Z).square() >= 1 / torch.finfo(Z.dtype).eps).any()):
        raise ValueError(SINGULAR)  # rounding alone made the smallest eigenvalue what it is, and perhaps positive
    if not split_products.applies(gram):  # those are symmetric to the last digit
        Y, Z = _symmetric(Y), _symmetric(Z)
    return (Y * scale.sqrt(), Z / scale.sqrt()), count


def lyapunov(S: Tensor, A: Tensor, G: Tensor) -> Tensor:
    """The symmetric X with S X + X S = A G A, for S positive definite, A = S^-1 and G symmetric, by doubling (Smith).

    With U = (S + s I)^-1 and B = I - 2s U, which is (S - s I) U, the equation is X = 2s U A G A U + B X B: its solution is the
    sum of 2s B^k U A G A U B^k over all k, of which every step doubles the number of terms. U is found by Schulz's iteration,
    and s U A is A - U.
    """
    if not capturing(S.device) and not bool(torch.isfinite(S).all()):
        raise ValueError(NOT_FINITE)
    largest, smallest = _bound(S), 1 / _bound(A)  # of the eigenvalues of S
    shift = (largest * smallest).sqrt()  # B is smallest for this
    if capturing(S.device):
        steps = max(LEAST_DOUBLINGS, _in_graphs - ITERATIONS_MORE)
    else:
        steps = _doublings(float((largest / smallest).max()), S.dtype)
    shifted = _combination(S, 1.0, shift)
    middle = 2 / (largest + smallest + 2 * shift)
    U = _combination(S, -middle.square(), middle * (2 - middle * shift))  # a first step from a multiple of I
    for factor in _inversion_factors(steps, torch.finfo(S.dtype).eps):
        U = _product(_product(U, shifted, symmetric=True), U, -(factor**2), U, 2 * factor, symmetric=True)
    U = _matrix(U)
    B, V = _combination(U, -2 * shift, 1.0), _combination(A - U, smallest)
    size = ROOM * G.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(G.dtype).tiny)
    X = _product(_product(V, _combination(G, 1 / size)), V, symmetric=True)
    for number in range(steps - 1):  # one less, since B is on both sides
        B = _product(B, B, symmetric=True) if number else B
        X = _product(_product(B, X), B, 1.0, X, 1.0, symmetric=True)
    return 2 * size / (shift * smallest.square()) * _matrix(X)


def _bound(matrix: Tensor) -> Tensor:
    """Not less than the largest eigenvalue, (..., 1, 1)."""
    norms = torch.linalg.matrix_norm(matrix, ord=torch.inf), torch.linalg.matrix_norm(matrix)
    return torch.minimum(*norms)[..., None, None]


def _largest(matrix: Tensor) -> Tensor:
    """Not more than the largest eigenvalue of positive definite matrices (..., p, p), and near it if it is far above the
    others: what a matrix makes of its longest column."""
    longest = torch.linalg.vector_norm(matrix, dim=-2).argmax(dim=-1)[..., None, None].expand(*matrix.shape[:-1], 1)
    column = matrix.gather(-1, longest)  # (..., p, 1)
    return torch.linalg.vector_norm(matrix @ column, dim=(-2, -1)) / torch.linalg.vector_norm(column, dim=(-2, -1))


def _doublings(condition: float, dtype: torch.dtype) -> int:
    """After which what is left in `lyapunov` is a rounding error: the largest eigenvalue of B, to the power 2^steps."""
    largest = (math.sqrt(condition) - 1) / (math.sqrt(condition) + 1)
    if not largest > 0:
        return 1
    return min(MAX_ITERATIONS, 1 + math.ceil(math.log2(max(1.0, math.log(torch.finfo(dtype).eps) / math.log(largest)))))


def _inversion_factors(steps: int, rounding: float) -> list[float]:
    """Of the steps of Schulz's iteration for U, U <- c U (2 I - (S + s I) c U), after the first.

    The eigenvalues of (S + s I) U lie between some number and 1. c makes this an interval around 1, unless that would send the
    largest near 0, which is why these iterations are fewer than the doublings, of which `steps` make the rest a rounding error.
    """
    smallest, factors = -math.expm1(math.log(rounding) * 2 / 2**steps), []
    while 1 - smallest > rounding:
        factor = min(LARGEST_INVERSION_FACTOR, 2 / (1 + smallest))
        smallest = min(factor * smallest * (2 - factor * smallest), factor * (2 - factor))
        factors.append(factor)
    return factors


# What is multiplied: matrices, or the same split in two, where that is faster (`split_products`).
Factor = Tensor | Split


def _combination(matrices: Tensor, by: Tensor | float, identity: Tensor | float = 0.0) -> Factor:
    """`by` times the matrices (..., p, p) plus `identity` times I, to be multiplied; both are numbers, or (..., 1, 1)."""
    if split_products.applies(matrices):
        return split_products.combination(matrices, by, identity)
    scaled = matrices if isinstance(by, float) and by == 1 else by * matrices
    return scaled if isinstance(identity, float) and identity == 0 else scaled + identity * identity_like(matrices)


def _matrix(factor: Factor) -> Tensor:
    return split_products.joined(factor) if isinstance(factor, Split) else factor


def _product(
    a: Factor, b: Factor, alpha: float = 1.0, base: Factor | None = None, beta: float = 0.0, *, symmetric: bool = False
) -> Any:
    """alpha a b + beta base, of the kind that a is; `symmetric` tells that base and the result are known to be so."""
    if isinstance(a, Split):
        return split_products.product(a, b, alpha, base, beta, symmetric=symmetric)  # pyright: ignore[reportArgumentType]
    return _plain_product(a, b, alpha, base, beta, symmetric=symmetric)  # pyright: ignore[reportArgumentType]


def _plain_product(a: Tensor, b: Tensor, alpha: float, base: Tensor | None, beta: float, *, symmetric: bool) -> Tensor:
    added = a if base is None else base
    if fused.applies(a, b, added):
        return fused.product(a, b, added, alpha, beta, symmetric=symmetric)
    if base is None:
        return a @ b if alpha == 1 else alpha * (a @ b)
    if a.dim() == 3:
        return torch.baddbmm(base, a, b, beta=beta, alpha=alpha)
    return beta * base + alpha * (a @ b)


# One step x <- linear x + cubic x^3 of an iteration for x = 1 or -1, in matrices: (state, linear, cubic) -> the next state,
# and the matrix that tends to I, before the step.
State = tuple[Factor, ...]
Step = Callable[[State, float, float], tuple[State, Factor]]


def _factors() -> list[float]:
    """Of the scaled iterations: x is multiplied by a factor before each step, the one that is best for all eigenvalues from
    the smallest to 1."""
    smallest, factors = math.sqrt(LEAST), []
    while smallest < 0.99:
        factor = min(LARGEST_FACTOR, math.sqrt(3 / (1 + smallest + smallest**2)))
        smallest *= factor * (3 - (factor * smallest) ** 2) / 2
        factors.append(factor)
    return factors


FACTORS = _factors()


def _iterations(start: Callable[[float, float], State], step: Step, gram: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """The state at the end, and how many iterations it took."""
    first, *others = ((1.5 * factor, -0.5 * factor**3) for factor in FACTORS)
    state = start(*first)
    for linear, cubic in others:
        state, _ = step(state, linear, cubic)
    if capturing(gram.device):
        state, count = _fixed_iterations(step, state)
    else:
        state, count = _counted_iterations(step, state, torch.finfo(gram.dtype).eps)
    return tuple(_matrix(each) for each in state), count


def _counted_iterations(step: Step, state: State, rounding: float) -> tuple[State, int]:
    """Iterate while the residual falls.

    It falls quadratically at the end, so one step below the square root of the rounding error is the last that helps; where
    rounding stops it earlier, the first rise ends the iteration.
    """
    last, count = torch.inf, len(FACTORS)
    while count < MAX_ITERATIONS:
        count += 1
        advanced, near_identity = step(state, 1.5, -0.5)
        size = float(_residual(near_identity).max())
        if not size < torch.inf or (size >= last and size < NEAR):
            break
        state, last = advanced, size
        if size < rounding**0.5:
            break
    if last > NEAR:
        raise ValueError(SINGULAR)
    return state, count


def _fixed_iterations(step: Step, state: State) -> tuple[State, int]:
    """The same for a CUDA graph: so many steps, whatever the matrices are. More than are needed do no harm; a matrix of the
    batch that did not come near in so many is NaN."""
    near_identity = state[0]
    for _ in range(len(FACTORS), _in_graphs):
        state, near_identity = step(state, 1.5, -0.5)
    near = _residual(near_identity)[..., None, None] <= NEAR
    return tuple(torch.where(near, _matrix(each), torch.nan) for each in state), _in_graphs


def _residual(factor: Factor) -> Tensor:
    """The largest number in it less I, for each matrix of the batch."""
    near_identity = _matrix(factor)
    return (near_identity - identity_like(near_identity)).abs().amax(dim=(-2, -1))


_in_graphs = CAPTURED_ITERATIONS


@contextmanager
def iterations_in_graphs(count: int) -> Iterator[None]:
    """CUDA graphs captured within the block run so many iterations, `iterations_needed` and some to spare."""
    global _in_graphs
    before, _in_graphs = _in_graphs, count
    try:
        yield
    finally:
        _in_graphs = before


@torch.no_grad()
def iterations_needed(gram: Tensor) -> int:
    """Of "newton_schulz" for these matrices (..., p, p); its gradient needs fewer."""
    with full_precision(gram.device):
        return _newton_schulz(gram)[1]


# Made so far: a dozen small launches less at each step. They stay, because a CUDA graph may know their addresses.
_identities: dict[tuple[object, ...], Tensor] = {}


def identity_like(matrix: Tensor) -> Tensor:
    """I, (p, p), for matrices (..., p, p); not to be changed."""
    key = (matrix.shape[-1], matrix.dtype, matrix.device)
    identity = _identities.get(key)
    if identity is None:
        with torch.inference_mode(False):  # an inference tensor could not be used in training later
            identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        if not capturing(matrix.device):  # a graph may use its memory for other things
            _identities[key] = identity
    return identity
