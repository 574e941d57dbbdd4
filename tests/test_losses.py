"""Losses against their definitions, central differences and autograd."""

import math
from collections.abc import Callable

import pytest
import torch

from sckn.losses import Logistic, Loss, Square, SquaredHinge

DEFINITIONS: list[tuple[Loss, Callable[[float, float], float]]] = [
    (SquaredHinge(), lambda y, f: max(0.0, 1 - y * f) ** 2),
    (Logistic(), lambda y, f: math.log1p(math.exp(-y * f))),
    (Square(), lambda y, f: (y - f) ** 2 / 2),
]
# away from the kink of the squared hinge's second derivative at y f = 1
SCORES = torch.tensor([-3.0, -1.2, -0.5, 0.0, 0.4, 0.99, 1.01, 1.7, 5.0], dtype=torch.float64)


@pytest.mark.parametrize(("loss", "definition"), DEFINITIONS, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_and_derivatives(loss: Loss, definition: Callable[[float, float], float], sign: float) -> None:
    targets, h = torch.full_like(SCORES, sign), 1e-4
    expected = torch.tensor([definition(sign, float(f)) for f in SCORES], dtype=torch.float64)
    torch.testing.assert_close(loss(targets, SCORES), expected, rtol=1e-12, atol=1e-12)
    above, below = loss(targets, SCORES + h), loss(targets, SCORES - h)
    torch.testing.assert_close(loss.derivative(targets, SCORES), (above - below) / (2 * h), rtol=1e-7, atol=1e-8)
    second = (above - 2 * loss(targets, SCORES) + below) / h**2
    torch.testing.assert_close(loss.curvature(targets, SCORES), second, rtol=1e-5, atol=1e-6)
    scores = SCORES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(targets, scores).sum(), scores)
    torch.testing.assert_close(gradient, loss.derivative(targets, SCORES), rtol=1e-12, atol=1e-12)


def test_large_scores_do_not_overflow() -> None:
    targets, scores = torch.ones(2, 1), torch.tensor([[1000.0], [-1000.0]])
    torch.testing.assert_close(Logistic()(targets, scores), torch.tensor([[0.0], [1000.0]]))
    assert Logistic().curvature(targets, scores).isfinite().all()


def test_a_sample_is_inactive_when_every_class_has_its_margin() -> None:
    targets = torch.tensor([[1.0, -1.0], [1.0, -1.0], [1.0, -1.0]])
    scores = torch.tensor([[1.5, -1.0], [1.5, -0.9], [0.5, -2.0]])
    assert SquaredHinge().gradient_is_zero(targets, scores).tolist() == [True, False, False]
    assert Square().gradient_is_zero(targets, targets).tolist() == [True, True, True]
    assert Logistic().gradient_is_zero(targets, scores).tolist() == [False, False, False]


def test_maps_count_as_one_sample() -> None:
    targets = torch.zeros(2, 1, 3, 3)
    scores = torch.zeros(2, 1, 3, 3)
    scores[1, 0, 2, 2] = 1
    assert Square().gradient_is_zero(targets, scores).tolist() == [True, False]
