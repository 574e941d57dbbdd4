"""A B with B B' = K^-1 that follows the kernel matrix K from one training step to the next.

Any such B gives the same kernel as A = K^(-1/2): the maps B' kappa(.) and A kappa(.) differ by a rotation. Near the last one it
takes a handful of products, through which automatic differentiation is exact.
"""

from typing import Any

import torch
from torch import Tensor

from sckn.capture import capturing
from sckn.inverse_root import SINGULAR, identity_like, newton_schulz
from sckn.precision import full_precision

__all__ = ["moving_frame"]

# A frame that fits its matrix worse than this, |B'KB - I| in the spectral norm, starts afresh: a turn that what comes after
# the layer has to learn, so the bound is wide. From 1 on, Newton-Schulz steps from I need not converge.
AFRESH = 0.9

# At least this many of those steps, and as many in a CUDA graph. Three leave |B'KB - I|^8 of the distance and ^7 in the
# gradient.
FRAME_STEPS = 3


def moving_frame(gram: Tensor, frame: Tensor) -> Tensor:
    """B with B B' = K^-1 for positive definite K (..., p, p), the one nearest to the last: frame (frame' K frame)^(-1/2).

    The last frame counts as a constant. Where it does not fit K well it is replaced by K^(-1/2), so that for the identity
    as frame the result is K^(-1/2). While a CUDA graph is captured that cannot be checked: the frame has to be near.
    """
    frame = frame.detach().to(gram.dtype, copy=True)  # the caller may overwrite his own before the backward pass
    deviation = _deviation(gram, frame)
    steps = FRAME_STEPS
    if not capturing(gram.device):
        distance = _distance(deviation)  # (...)
        farthest = float(distance.max())
        if not farthest < AFRESH:
            far = ~(distance < AFRESH)  # also where it is NaN
            with full_precision(gram.device):
                frame[far] = newton_schulz(gram.detach()[far])[1]
            deviation = _deviation(gram, frame)
            farthest = float(_distance(deviation).max())
            if not farthest < AFRESH:
                raise ValueError(SINGULAR)
        steps = _steps_from(farthest, torch.finfo(gram.dtype).eps)
    # Newton and Schulz from I, for (I - E)^(-1/2), in terms of E: what is left of it is known to its last digit
    E = deviation
    root = identity_like(E) + E / 2
    for _ in range(steps - 1):
        square = full_precision_product(E, E)
        E = (3 * square + full_precision_product(square, E)) / 4
        root = root + full_precision_product(root, E) / 2
    return full_precision_product(frame, root)


def _deviation(gram: Tensor, frame: Tensor) -> Tensor:
    """I - B'KB."""
    product = full_precision_product(frame.mT, full_precision_product(gram, frame))
    return identity_like(gram) - (product + product.mT) / 2


def _distance(deviation: Tensor) -> Tensor:
    """The spectral norm of E, (...), from above: the sum of eighth powers of its eigenvalues, to the power 1/8."""
    with torch.no_grad(), full_precision(deviation.device):
        square = deviation @ deviation
        return torch.linalg.matrix_norm(square @ square) ** 0.25


def _steps_from(distance: float, rounding: float) -> int:
    """Steps after which the rest, and its derivative, which is larger by 1 / distance, are rounding errors."""
    steps, rest = 0, distance
    while steps < FRAME_STEPS or rest > rounding * distance:
        rest = rest**2 * (3 + rest) / 4
        steps += 1
    return steps


def full_precision_product(a: Tensor, b: Tensor) -> Tensor:
    """a b for p x p matrices, with neither autocast nor TF32 in the forward or the backward pass."""
    product: Tensor = _Product.apply(a, b)  # pyright: ignore[reportAssignmentType]
    return product


class _Product(torch.autograd.Function):
    """a b, also in the backward pass in full precision, which runs when `full_precision` around the forward one has ended."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        with full_precision(a.device):
            return a @ b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        for_a, for_b = ctx.needs_input_grad
        G = gradients[0]
        return full_precision_product(G, b.mT) if for_a else None, full_precision_product(a.mT, G) if for_b else None
