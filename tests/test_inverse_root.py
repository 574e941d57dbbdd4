"""K^(-1/2) and its gradient, against scipy and central differences, by both methods."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power, solve_continuous_lyapunov, sqrtm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sckn.capture import capturing
from sckn.fused import split_products
from sckn.fused.split_products import Split
from sckn.inverse_root import (
    FACTORS,
    LEAST,
    InverseRoot,
    _counted_iterations,
    _fixed_iterations,
    _inversion_factors,
    _matrix,
    full_precision,
    inverse_square_root,
    iterations_in_graphs,
    iterations_needed,
    lyapunov,
    newton_schulz,
)

EPS = torch.finfo(torch.float64).eps
METHODS: list[InverseRoot] = ["eigh", "newton_schulz"]
by_both_methods = pytest.mark.parametrize("method", METHODS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def matrix_with(eigenvalues: Tensor) -> Tensor:
    """A symmetric matrix in a random basis."""
    Q, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), dtype=torch.float64))
    matrix = Q @ torch.diag(eigenvalues) @ Q.T
    return (matrix + matrix.T) / 2


def matrix_of_condition(size: int, condition: float) -> Tensor:
    """Eigenvalues spread evenly on a logarithmic scale, up to 10 as in a real layer."""
    return matrix_with(10 * torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64))


def value_and_gradient(gram: Tensor, G: Tensor, method: InverseRoot) -> tuple[Tensor, Tensor]:
    gram = gram.detach().clone().requires_grad_()
    root = inverse_square_root(gram, method)
    (gradient,) = torch.autograd.grad(root, gram, G)
    return root.detach(), gradient


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value.double().cpu() - expected).norm() / expected.norm())


def symmetric_differences(function: Callable[[Tensor], Tensor], gram: Tensor, h: float) -> Tensor:
    """The gradient in the space of symmetric matrices, by central differences."""
    gradient = torch.zeros_like(gram)
    for i in range(len(gram)):
        for j in range(i + 1):
            step = torch.zeros_like(gram)
            step[i, j] += h / 2  # <gradient, step> = h gradient_ij both on and off the diagonal
            step[j, i] += h / 2
            gradient[i, j] = gradient[j, i] = (function(gram + step) - function(gram - step)) / (2 * h)
    return gradient


@by_both_methods
def test_value_agrees_with_scipy(method: InverseRoot) -> None:
    gram = matrix_of_condition(12, 1e3)
    root = inverse_square_root(gram, method).numpy()
    np.testing.assert_allclose(root, fractional_matrix_power(gram.numpy(), -0.5), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(root, np.linalg.inv(sqrtm(gram.numpy())), rtol=1e-10, atol=1e-10)


@by_both_methods
@pytest.mark.parametrize(
    "eigenvalues",
    [[1.0, 1.0, 1.0, 1.0], [2.0, 0.5, 0.5, 0.5], [3.0, 3.0, 0.1, 0.1], [5.0, 1.0, 0.3, 0.05]],
    ids=["identity", "triple", "two pairs", "distinct"],
)
def test_gradient_agrees_with_central_differences(method: InverseRoot, eigenvalues: list[float]) -> None:
    """Where eigenvalues coincide, differentiating an eigendecomposition would give NaN."""
    gram = matrix_with(torch.tensor(eigenvalues, dtype=torch.float64))
    G = torch.randn_like(gram)
    _, gradient = value_and_gradient(gram, G, method)
    expected = symmetric_differences(lambda K: (inverse_square_root(K, method) * G).sum(), gram, h=1e-5)
    torch.testing.assert_close((gradient + gradient.T) / 2, expected, rtol=1e-7, atol=1e-7)


@by_both_methods
def test_gradient_of_exactly_the_identity(method: InverseRoot) -> None:
    """At I, Delta A = -Delta K / 2."""
    G = torch.randn(5, 5, dtype=torch.float64)
    root, gradient = value_and_gradient(torch.eye(5, dtype=torch.float64), G, method)
    torch.testing.assert_close(root, torch.eye(5, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(gradient, -(G + G.T) / 4, rtol=1e-13, atol=1e-13)


@by_both_methods
def test_a_paper_gradient_is_the_printed_formula(method: InverseRoot) -> None:
    gram = matrix_of_condition(8, 1e2)
    G = torch.randn_like(gram)
    leaf = gram.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(inverse_square_root(leaf, method, gradient="paper"), leaf, G)
    A32 = torch.from_numpy(fractional_matrix_power(gram.numpy(), -0.75))  # A^(3/2) = K^(-3/4)
    torch.testing.assert_close(gradient, -A32 @ (G + G.T) @ A32 / 4, rtol=1e-9, atol=1e-9)


@by_both_methods
def test_the_paper_gradient_is_right_only_where_everything_commutes(method: InverseRoot) -> None:
    gram = matrix_of_condition(8, 1e2)
    for G, commutes in ((gram @ gram, True), (torch.randn_like(gram), False)):
        leaf = gram.clone().requires_grad_()
        (paper,) = torch.autograd.grad(inverse_square_root(leaf, method, gradient="paper"), leaf, G)
        (exact,) = torch.autograd.grad(inverse_square_root(leaf, method), leaf, G)
        assert torch.allclose(paper, exact, rtol=1e-8, atol=1e-8) == commutes


@by_both_methods
@pytest.mark.parametrize("size", [16, 128])
def test_single_precision_at_condition_1e3(method: InverseRoot, size: int) -> None:
    gram = matrix_of_condition(size, 1e3)
    G = torch.randn_like(gram)
    expected_root, expected_gradient = value_and_gradient(gram, G, "eigh")
    root, gradient = value_and_gradient(gram.float(), G.float(), method)
    assert relative_error(root, expected_root) < 1e-3
    assert relative_error(gradient, expected_gradient) < 1e-3


@by_both_methods
def test_single_precision_keeps_the_directions_that_epsilon_holds_up(method: InverseRoot) -> None:
    """As in a wide layer with some equal filters: largest eigenvalue about 100, smallest epsilon = 1e-3.

    Float32 knows these to some 1e-5, a hundredth of epsilon, so they may not be taken for zero.
    """
    gram = matrix_with(torch.cat([torch.full((8,), 1e-3), torch.linspace(0.3, 3, 119), torch.tensor([100.0])]).double())
    assert relative_error(inverse_square_root(gram.float(), method), inverse_square_root(gram)) < 1e-2


def test_the_methods_agree_in_double_precision_at_condition_1e5() -> None:
    gram = matrix_of_condition(48, 1e5)
    G = torch.randn_like(gram)
    (root, gradient), (other_root, other_gradient) = (value_and_gradient(gram, G, method) for method in METHODS)
    assert relative_error(other_root, root) < 1e-8
    assert relative_error(other_gradient, gradient) < 1e-8


@by_both_methods
def test_a_batch_is_its_matrices_one_by_one(method: InverseRoot) -> None:
    """Also where they need different numbers of iterations."""
    grams = torch.stack([matrix_of_condition(10, condition) for condition in (1.5, 1e2, 1e4, 1e1)]).reshape(2, 2, 10, 10)
    G = torch.randn_like(grams)
    roots, gradients = value_and_gradient(grams, G, method)
    for i in range(2):
        for j in range(2):
            root, gradient = value_and_gradient(grams[i, j], G[i, j], method)
            assert relative_error(roots[i, j], root) < 1e-11
            assert relative_error(gradients[i, j], gradient) < 1e-11


def test_newton_schulz_gives_the_root_too() -> None:
    gram = matrix_of_condition(12, 1e3)
    root, inverse = newton_schulz(gram)
    np.testing.assert_allclose(root.numpy(), sqrtm(gram.numpy()), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose((root @ inverse).numpy(), np.eye(12), atol=1e-10)


def test_lyapunov_agrees_with_scipy() -> None:
    S = matrix_of_condition(12, 1e2)
    G = torch.randn_like(S)
    G = G + G.T
    A = torch.linalg.inv(S)
    expected = solve_continuous_lyapunov(S.numpy(), (A @ G @ A).numpy())
    np.testing.assert_allclose(lyapunov(S, A, G).numpy(), expected, rtol=1e-9, atol=1e-9)


@by_both_methods
def test_a_matrix_of_one_number(method: InverseRoot) -> None:
    root, gradient = value_and_gradient(torch.tensor([[4.0]]), torch.tensor([[1.0]]), method)
    assert float(root) == pytest.approx(0.5)
    assert float(gradient) == pytest.approx(-1 / 16)


def test_a_singular_matrix_gives_the_pseudo_inverse_root() -> None:
    gram = matrix_with(torch.tensor([3.0, 1.0, 0.2, 0.0, 0.0], dtype=torch.float64))
    root = inverse_square_root(gram, "eigh")
    np.testing.assert_allclose((root @ root).numpy(), np.linalg.pinv(gram.numpy(), rcond=1e-10), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_singular_matrix_is_refused_by_matrix_products(dtype: torch.dtype) -> None:
    """They have no pseudo-inverse to offer: better an error that says so than numbers of size 1e10. Rounding makes of a zero
    a number of either sign, or a small one."""
    noise = torch.finfo(dtype).eps / 10
    for zeros in ((0.0, 0.0), (noise, 0.0), (noise, noise), (noise, -noise)):
        gram = matrix_with(torch.tensor([3.0, 1.0, 0.2, *zeros], dtype=torch.float64)).to(dtype)
        with pytest.raises(ValueError, match="singular"):
            inverse_square_root(gram, "newton_schulz")
    diagonal = torch.diag(torch.tensor([3.0, 1.0, 0.2, noise, noise], dtype=torch.float64)).to(dtype)  # exact, no rounding
    with pytest.raises(ValueError, match="singular"):
        inverse_square_root(diagonal, "newton_schulz")


def test_a_matrix_that_is_nearly_singular_is_not_refused() -> None:
    gram = torch.diag(torch.cat([torch.full((60,), 1e-6), torch.ones(4)]))
    root = inverse_square_root(gram, "newton_schulz")
    torch.testing.assert_close(root.diagonal(), gram.diagonal().rsqrt(), rtol=1e-3, atol=0)


@by_both_methods
def test_a_second_derivative_is_refused(method: InverseRoot) -> None:
    """The backward formulas are not differentiable themselves; silently they would count as constant."""
    gram = matrix_of_condition(4, 10).requires_grad_()
    (gradient,) = torch.autograd.grad(inverse_square_root(gram, method).square().sum(), gram, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.sum().backward()


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        inverse_square_root(torch.full((3, 3), torch.nan), "newton_schulz")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="cholesky"):
        inverse_square_root(torch.eye(2), "cholesky")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="detached"):
        inverse_square_root(torch.eye(2), gradient="detached")  # pyright: ignore[reportArgumentType]


@by_both_methods
def test_autocast_does_not_reach_inside(method: InverseRoot) -> None:
    gram = matrix_of_condition(16, 1e3).float()
    G = torch.randn_like(gram)
    expected = value_and_gradient(gram, G, method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        root, gradient = value_and_gradient(gram, G, method)
    assert root.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close((root, gradient), expected, rtol=0, atol=0)


@contextmanager
def tf32_on_for_every_product(switch: str) -> Iterator[None]:
    """The three switches a user may have thrown: the process-wide function, the old flag, the new one."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        if switch == "set_float32_matmul_precision":
            torch.set_float32_matmul_precision("high")
        elif switch == "allow_tf32":
            matmul.allow_tf32 = True
        else:
            matmul.fp32_precision = "tf32"
        yield
    finally:
        matmul.fp32_precision = before
        torch.set_float32_matmul_precision("highest")


every_tf32_switch = pytest.mark.parametrize("switch", ["set_float32_matmul_precision", "allow_tf32", "fp32_precision"])


@every_tf32_switch
def test_tf32_is_off_inside_and_as_before_outside(switch: str) -> None:
    matmul = torch.backends.cuda.matmul
    with tf32_on_for_every_product(switch):
        assert matmul.fp32_precision == "tf32"
        with full_precision(torch.device("cpu")):
            assert matmul.fp32_precision != "tf32"
        assert matmul.fp32_precision == "tf32"


class NoReads(TorchDispatchMode):
    """Refuses what brings a value of a tensor to Python: a CUDA graph that is being captured cannot do that."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select"):
            raise AssertionError(f"{name} reads a value")
        return func(*args, **(kwargs or {}))


def captured_value_and_gradient(gram: Tensor, G: Tensor, method: InverseRoot = "newton_schulz") -> tuple[Tensor, Tensor]:
    """As a CUDA graph would record them, on any device."""
    with pytest.MonkeyPatch.context() as patch, NoReads():
        patch.setattr("sckn.inverse_root.capturing", lambda device: True)
        return value_and_gradient(gram, G, method)


def test_a_cpu_captures_nothing_and_there_values_are_read() -> None:
    assert not capturing(torch.device("cpu"))
    with pytest.raises(AssertionError, match="reads a value"), NoReads():
        inverse_square_root(torch.eye(2), "newton_schulz")


CONDITIONS = [10.0, 1e2, 1e3, 1e4, 1e5]
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@both_precisions
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("size", [5, 64])
def test_a_fixed_number_of_iterations_ends_where_an_open_one_does(condition: float, dtype: torch.dtype, size: int) -> None:
    gram = matrix_of_condition(size, condition).to(dtype)
    G = torch.randn_like(gram)
    expected = value_and_gradient(gram, G, "newton_schulz")
    for found, open_ended in zip(captured_value_and_gradient(gram, G), expected, strict=True):
        assert relative_error(found, open_ended.double()) < 20 * condition * torch.finfo(dtype).eps


@both_precisions
def test_a_fixed_number_of_iterations_for_a_batch_of_all_conditions(dtype: torch.dtype) -> None:
    repeated = [[1.0, 1.0, 1.0, 1.0], [2.0, 0.5, 0.5, 0.5], [3.0, 3.0, 0.01, 0.01]]
    grams = [matrix_of_condition(4, condition) for condition in CONDITIONS]
    grams += [matrix_with(torch.tensor(eigenvalues, dtype=torch.float64)) for eigenvalues in repeated]
    batch = torch.stack(grams).to(dtype)
    G = torch.randn_like(batch)
    together = value_and_gradient(batch, G, "newton_schulz")
    captured = captured_value_and_gradient(batch, G)
    for index, gram in enumerate(batch):
        alone = value_and_gradient(gram, G[index], "newton_schulz")
        condition = float(torch.linalg.cond(grams[index]))
        for value, by_itself, in_company in zip(captured, alone, together, strict=True):
            rounding = 20 * condition * torch.finfo(dtype).eps
            assert relative_error(value[index], by_itself.double()) < rounding
            assert relative_error(value[index], in_company[index].double()) < rounding


@both_precisions
@pytest.mark.parametrize("condition", CONDITIONS)
def test_more_iterations_than_needed_do_no_harm(condition: float, dtype: torch.dtype) -> None:
    """Rounding errors do not grow from one iteration to the next."""
    gram = matrix_of_condition(16, condition)
    G = torch.randn_like(gram)
    exact = value_and_gradient(gram, G, "eigh")
    errors = []
    for iterations in (24, 100):
        with iterations_in_graphs(iterations):
            found = captured_value_and_gradient(gram.to(dtype), G.to(dtype))
        errors.append([relative_error(value.double(), right) for value, right in zip(found, exact, strict=True)])
    rounding = torch.finfo(dtype).eps
    assert all(late < 2 * early + 20 * rounding for early, late in zip(*errors, strict=True))


@both_precisions
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_iterations_needed_are_enough_for_root_and_gradient(condition: float, dtype: torch.dtype) -> None:
    """With the one to spare that a recorded step has, and not with four less."""
    gram = matrix_of_condition(16, condition).to(dtype)
    G = torch.randn_like(gram)
    expected = value_and_gradient(gram, G, "newton_schulz")
    needed = iterations_needed(gram)
    bound = 20 * condition * torch.finfo(dtype).eps
    with iterations_in_graphs(needed + 1):
        found = captured_value_and_gradient(gram, G)
    assert all(relative_error(value, right.double()) < bound for value, right in zip(found, expected, strict=True))
    with iterations_in_graphs(needed - 4):
        found = captured_value_and_gradient(gram, G)
    assert not all(relative_error(value, right.double()) < bound for value, right in zip(found, expected, strict=True))


def test_where_an_iteration_ends() -> None:
    """By residuals made up for four matrices, whose states count the steps."""
    residuals = torch.ones(4, 24, dtype=torch.float64)
    residuals[0, :4] = torch.tensor([0.5, 0.05, 1e-4, 1e-9])  # small enough: one step more
    residuals[1, :5] = torch.tensor([0.5, 0.05, 0.01, 0.02, 1e-9])  # a rise near the end is rounding: no step more
    residuals[2, :6] = torch.tensor([0.5, 0.7, 0.3, 0.05, 1e-3, 1e-8])  # a rise at the beginning is none
    residuals[3, :2] = torch.tensor([0.5, torch.inf])  # never near
    for row, (end, steps) in zip(residuals, ((4, 4), (3, 4), (6, 6), (None, 2)), strict=True):

        def step(state: Any, *_: float, row: Tensor = row) -> tuple[tuple[Any], Tensor]:
            return (state[0] + 1,), 1 + row[state[0].long()]

        start: Any = (torch.zeros(1, 1, dtype=torch.float64),)
        if end is None:
            with pytest.raises(ValueError, match="singular"):
                _counted_iterations(step, start, EPS)
        else:
            state, count = _counted_iterations(step, start, EPS)
            assert (float(_matrix(state[0])), count) == (end, len(FACTORS) + steps)
        with iterations_in_graphs(len(FACTORS) + 2):
            (fixed,), _ = _fixed_iterations(step, start)
        assert (float(_matrix(fixed)) == 2) == (float(row[1]) <= 0.1)  # NaN, if the last residual was not small


def test_scaled_iterations_bring_all_eigenvalues_near_one() -> None:
    """On the numbers they are made for: after as many unscaled ones the smallest is still far away."""
    x = torch.linspace(math.sqrt(LEAST), 1, 1000, dtype=torch.float64)
    plain = x.clone()
    for factor in FACTORS:
        x = factor * x * (3 - (factor * x) ** 2) / 2
        plain = plain * (3 - plain**2) / 2
        assert 0 < float(x.min()) < float(x.max()) <= 1
    assert float(x.min()) > 0.98
    assert float(plain.min()) < 0.4


@pytest.mark.parametrize("rounding", [torch.finfo(torch.float32).eps, EPS])
@pytest.mark.parametrize("steps", [1, 4, 8, 12, 60])
def test_scaled_inversion_brings_all_eigenvalues_to_one(steps: int, rounding: float) -> None:
    """In fewer steps than the doublings, of which one is that from a multiple of I."""
    factors = _inversion_factors(steps, rounding)
    x = torch.linspace(-math.expm1(math.log(rounding) * 2 / 2**steps), 1, 1000, dtype=torch.float64)
    for factor in factors:
        x = factor * x * (2 - factor * x)
        assert 0 < float(x.min()) < float(x.max()) < 1 + 1e-12
    assert float((1 - x).max()) < 2 * rounding
    assert len(factors) <= max(0, steps - 1)


def test_a_fixed_number_of_iterations_agrees_with_the_eigendecomposition() -> None:
    gram = matrix_of_condition(48, 1e5)
    G = torch.randn_like(gram)
    for value, expected in zip(captured_value_and_gradient(gram, G), value_and_gradient(gram, G, "eigh"), strict=True):
        assert relative_error(value, expected) < 1e-8


@both_precisions
def test_what_has_no_root_is_nan_in_a_cuda_graph_and_spoils_no_neighbour(dtype: torch.dtype) -> None:
    """An error cannot be raised there, and numbers of size 1e10 would not be noticed."""
    good = matrix_of_condition(5, 1e2)
    singular = matrix_with(torch.tensor([3.0, 1.0, 0.2, 0.0, 0.0], dtype=torch.float64))
    batch = torch.stack([good, singular, torch.full_like(good, torch.nan)]).to(dtype)
    roots, gradients = captured_value_and_gradient(batch, torch.randn_like(batch))
    assert relative_error(roots[0], inverse_square_root(good)) < 1e3 * torch.finfo(dtype).eps
    assert bool(torch.isfinite(gradients[0]).all())
    assert bool(roots[1:].isnan().all())
    assert bool(gradients[1:].isnan().all())


def test_an_eigendecomposition_in_a_cuda_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="newton_schulz"):
        captured_value_and_gradient(torch.eye(3), torch.eye(3), "eigh")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_products_of_which_half_is_mirrored_are_as_precise(condition: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU computes them where they are known to be symmetric. Of others that would cost all digits."""

    def mirrored(
        a: Tensor, b: Tensor, alpha: float = 1.0, base: Any = None, beta: float = 0.0, *, symmetric: bool = False
    ) -> Any:
        result = alpha * (a @ b) + (0 if base is None else beta * base)
        return result.tril() + result.tril(-1).mT if symmetric else result

    gram = matrix_of_condition(64, condition)
    G = torch.randn_like(gram)
    exact = value_and_gradient(gram, G, "eigh")
    plain = value_and_gradient(gram.float(), G.float(), "newton_schulz")
    monkeypatch.setattr("sckn.inverse_root._product", mirrored)
    for found, whole, right in zip(value_and_gradient(gram.float(), G.float(), "newton_schulz"), plain, exact, strict=True):
        assert relative_error(found, right) < 3 * relative_error(whole, right)


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_split_in_two_of_fp16_matrices_lose_nothing(monkeypatch: pytest.MonkeyPatch, condition: float, size: float) -> None:
    """As on a GPU, where tensor cores make the products; whatever the size of the gradient."""

    def product(a: Split, b: Split, alpha: float, base: Split | None, beta: float, *, symmetric: bool) -> Split:
        (high_a, low_a), (high_b, low_b) = a.parts.float(), b.parts.float()
        value = alpha * (high_a @ high_b + (high_a @ low_b + low_a @ high_b) / split_products.LOW)
        value = value if base is None else value + beta * split_products.joined(base)
        return split_products.split((value + value.mT) / 2 if symmetric else value)

    gram = torch.stack([matrix_of_condition(64, condition), matrix_of_condition(64, 2.0)])
    G = size * torch.randn_like(gram)
    exact = value_and_gradient(gram, G, "eigh")
    plain = value_and_gradient(gram.float(), G.float(), "newton_schulz")
    monkeypatch.setattr(split_products, "applies", lambda matrices: True)
    monkeypatch.setattr(split_products, "product", product)
    for found, whole, right in zip(value_and_gradient(gram.float(), G.float(), "newton_schulz"), plain, exact, strict=True):
        for one, other, expected in zip(found, whole, right, strict=True):
            assert relative_error(one, expected) < 3 * relative_error(other, expected)
            assert relative_error(one, expected) < 3e-6 * condition**0.5


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("size", [5, 128, 300, 512])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_in_single_precision_a_gpu_is_as_precise_as_a_cpu(condition: float, size: int) -> None:
    count = max(2, 1024 // size)  # matrices, so that rounding errors are those of many numbers
    gram = torch.stack([matrix_of_condition(size, condition) for _ in range(count)])
    G = torch.randn_like(gram)
    exact = value_and_gradient(gram, G, "eigh")
    on_cpu = value_and_gradient(gram.float(), G.float(), "newton_schulz")
    on_gpu = value_and_gradient(gram.float().cuda(), G.float().cuda(), "newton_schulz")
    for found, expected, right in zip(on_gpu, on_cpu, exact, strict=True):
        assert relative_error(found, right) < 4 * relative_error(expected, right)


@pytest.mark.gpu
@needs_cuda
@both_precisions
@pytest.mark.parametrize("size", [64, 300])
def test_a_cuda_graph_computes_the_same(dtype: torch.dtype, size: int) -> None:
    """Captured for one batch, replayed for another."""
    batches = [
        torch.stack([matrix_of_condition(size, condition) for condition in conditions]).to(dtype).cuda()
        for conditions in ((1e1, 1e3), (1e4, 3.0))
    ]
    G = torch.randn_like(batches[0])
    gram = batches[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        value_and_gradient(gram, G, "newton_schulz")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = value_and_gradient(gram, G, "newton_schulz")
    for batch in batches:
        gram.copy_(batch)
        graph.replay()
        for value, expected in zip(captured, value_and_gradient(batch, G, "newton_schulz"), strict=True):
            assert relative_error(value, expected.double().cpu()) < 2e5 * torch.finfo(dtype).eps


@pytest.mark.gpu
@needs_cuda
@by_both_methods
@every_tf32_switch
def test_tf32_does_not_cost_precision(method: InverseRoot, switch: str) -> None:
    gram = matrix_of_condition(128, 1e3)
    G = torch.randn_like(gram)
    expected_root, expected_gradient = value_and_gradient(gram, G, "eigh")
    with tf32_on_for_every_product(switch):
        root, gradient = value_and_gradient(gram.float().cuda(), G.float().cuda(), method)
    # TF32 products are only right to 1e-3 each, and condition 1e3 multiplies that
    assert relative_error(root, expected_root) < 1e-4
    assert relative_error(gradient, expected_gradient) < 1e-3


@pytest.mark.gpu
@needs_cuda
@by_both_methods
def test_cuda_agrees_with_the_cpu(method: InverseRoot) -> None:
    grams = torch.stack([matrix_of_condition(64, condition) for condition in (1e1, 1e3)])
    G = torch.randn_like(grams)
    on_cpu = value_and_gradient(grams, G, method)
    on_cuda = value_and_gradient(grams.cuda(), G.cuda(), method)
    for value, expected in zip(on_cuda, on_cpu, strict=True):
        assert relative_error(value, expected) < 1e-9


@pytest.mark.parametrize("method", ["eigh", "newton_schulz"])
def test_a_gradient_that_is_not_finite_stays_so(method: InverseRoot) -> None:
    """The matrices are not to blame: no error, and training sees the NaN where it undoes an epoch."""
    gram = torch.stack([matrix_of_condition(5, 10.0), matrix_of_condition(5, 20.0)])
    G = torch.randn_like(gram)
    G[0, 1, 2] = torch.nan
    _, gradient = value_and_gradient(gram, G, method)
    assert bool(gradient[0].isnan().all())
    assert bool(torch.isfinite(gradient[1]).all())
