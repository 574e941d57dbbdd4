"""Dot-product kernels on the sphere: the functions kappa of equation (1), each with its derivative.

A kernel here is a value: a small frozen dataclass that is called on a tensor of cosines u = <y, y'> in [-1, 1].
All satisfy kappa(1) = 1 and have non-negative Taylor coefficients, so all are positive definite on the sphere.
The homogeneous kernel between patches, K(x, x') = |x| |x'| kappa(<x, x'> / |x| |x'|), is `homogeneous`; of a kernel with a
gain it is that times gain^2.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from sckn.cache import parts_in_cache
from sckn.capture import capturing
from sckn.fused import exponential
from sckn.settings import check_names, real_number, true_or_false, whole_number

__all__ = [
    "ArcCosine",
    "CentredExponential",
    "Exponential",
    "Kernel",
    "Linear",
    "Polynomial",
    "WithAlpha",
    "from_dict",
    "homogeneous",
    "root",
    "to_dict",
]


def root(squares: Tensor) -> Tensor:
    """The square root, with a zero gradient at zero."""
    present = squares != 0
    return torch.where(present, torch.where(present, squares, 1).sqrt(), 0)


class Kernel(ABC):
    """kappa, applied pointwise, with its derivative."""

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """kappa(u), differentiable."""

    @abstractmethod
    def derivative(self, u: Tensor) -> Tensor:
        """kappa'(u)."""

    def gain(self) -> float | Tensor:
        """By which feature maps of this kernel are multiplied: 1, unless they would otherwise shrink from layer to layer."""
        return 1.0

    def scaled(self, projected: Tensor, squares: Tensor, offset: float, *, overwrite: bool = False) -> Tensor:
        """gain |x| kappa(<z, x> / (|x| + offset)) from <z, x> and |x|^2 of shapes that broadcast; 0 where x is 0.

        With `overwrite` the result may take the place of <z, x>, where nothing is to be differentiated.
        """
        norms = root(squares)
        return self.gain() * norms * self(projected / torch.where(norms == 0, 1, norms + offset))


@dataclass(frozen=True)
class WithAlpha(Kernel):
    """kappa(u) = f(alpha u) / f(alpha) with f the exponential, or the exponential less 1.

    With `learnable`, the layer that uses this kernel learns log(alpha), so that alpha stays positive, starting here.
    """

    _centred: ClassVar[bool] = False
    _most: ClassVar[float] = math.inf

    alpha: float | Tensor = 4.0
    learnable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            object.__setattr__(self, "alpha", real_number("alpha", self.alpha, above=0, most=self._most))
        object.__setattr__(self, "learnable", true_or_false("learnable", self.learnable))

    def scaled(self, projected: Tensor, squares: Tensor, offset: float, *, overwrite: bool = False) -> Tensor:
        """As `Kernel.scaled`, written f(scale <z, x>) exp(shift): few passes over the large map, where the formula has many.

        No cosine counts as more than 1. Products by fast transforms have errors of the size of the largest patch around, in
        which a patch without length would have a large one, whose exponential is infinite.
        """
        if exponential.applies(projected, squares):
            return exponential.exponential_map(projected, squares, self.alpha, offset, centred=self._centred)
        if overwrite and projected.device.type == "cpu" and projected.dtype == squares.dtype and not torch.is_grad_enabled():
            norms = squares.sqrt()
            scale = (self.alpha / (norms + offset)).masked_fill_(norms == 0, 0)
            shift = norms.log_() - self._log_at_end()  # exp(log 0) is 0
            for part, slope, start in parts_in_cache(projected, scale, shift):
                self._of_line_(part.mul_(slope), start, self.alpha)
            return projected
        norms = root(squares)
        absent = norms == 0
        length = torch.where(absent, 1, norms)
        scale = torch.where(absent, 0, self.alpha / (length + offset))
        shift = torch.where(absent, -torch.inf, length.log() - self._log_at_end())
        value: Tensor = _OfLine.apply(projected, scale, shift, self.alpha, type(self))  # pyright: ignore[reportAssignmentType]
        return value

    @abstractmethod
    def _log_at_end(self) -> float | Tensor:
        """log(f(alpha) / gain)."""

    @staticmethod
    @abstractmethod
    def _of_line_(line: Tensor, shift: Tensor, largest: float | Tensor) -> Tensor:
        """f(line) exp(shift) in the place of `line`, of which what exceeds `largest` counts as that."""

    @staticmethod
    @abstractmethod
    def _slope_of_line(value: Tensor, shift: Tensor) -> Tensor:
        """f'(line) exp(shift) from the value f(line) exp(shift)."""


class _OfLine(torch.autograd.Function):
    """f(min(scale u, largest)) exp(shift) with the f of a kernel, for u (B, p, H, W) and one scale and shift a pixel,
    (B, 1, H, W), in the precision of these two. What exceeds `largest` does so by rounding: it counts as `largest`, with the
    gradient of scale u there.

    Autograd would keep the argument of f, and form each gradient by passes of its own over the large map.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, scale: Tensor, shift: Tensor, largest: float | Tensor, kernel: type["WithAlpha"]
    ) -> Tensor:
        value = torch.empty_like(u, dtype=torch.promote_types(u.dtype, scale.dtype))
        readable = u.device.type == "cpu" and not capturing(u.device)
        bound = float(largest) if readable else largest  # a processor compares with a number far faster
        for line, seen, slope, start in parts_in_cache(value, u, scale, shift):
            kernel._of_line_(line.copy_(seen).mul_(slope), start, bound)  # in one type: a product of two is slow
        ctx.save_for_backward(u, scale, shift, value)
        ctx.largest, ctx.kernel = largest.detach() if isinstance(largest, Tensor) else largest, kernel
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps = (gradients[0], *ctx.saved_tensors)
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # to be differentiated again
            return (*_gradients_of_line(ctx.kernel, ctx.largest, wanted, *maps), None, None)
        found = [torch.empty_like(of) if want else None for want, of in zip(wanted, maps[1:4], strict=True)]
        asked = [each for each in found if each is not None]
        for parts in parts_in_cache(*maps, *asked):
            computed = _gradients_of_line(ctx.kernel, ctx.largest, wanted, *parts[:5])
            for into, part in zip(parts[5:], (each for each in computed if each is not None), strict=True):
                into.copy_(part)
        return (*found, None, None)


def _gradients_of_line(
    kernel: type["WithAlpha"],
    largest: float | Tensor,
    wanted: tuple[bool, ...],
    gradient: Tensor,
    u: Tensor,
    scale: Tensor,
    shift: Tensor,
    value: Tensor,
) -> list[Tensor | None]:
    """Those for u, scale and shift, as far as they are wanted."""
    of_shift = (gradient * value).sum_to_size(shift.shape) if wanted[2] else None
    weighted = kernel._slope_of_line(value, shift) * gradient
    of_scale = (weighted * torch.minimum(u, largest / scale)).sum_to_size(scale.shape) if wanted[1] else None
    return [(weighted * scale).to(u.dtype) if wanted[0] else None, of_scale, of_shift]


@dataclass(frozen=True)
class Exponential(WithAlpha):
    """kappa(u) = exp(alpha (u - 1)), a Gaussian kernel of the distance on the sphere: equation (2).

    With `learnable`, the layer that uses this kernel learns log(alpha), so that alpha stays positive, starting here.
    """

    def __call__(self, u: Tensor) -> Tensor:
        return torch.exp(self.alpha * (u - 1))

    def derivative(self, u: Tensor) -> Tensor:
        return self.alpha * self(u)

    def _log_at_end(self) -> float | Tensor:
        return self.alpha

    @staticmethod
    def _of_line_(line: Tensor, shift: Tensor, largest: float | Tensor) -> Tensor:
        return line.clamp_max_(largest).add_(shift).exp_()

    @staticmethod
    def _slope_of_line(value: Tensor, shift: Tensor) -> Tensor:
        return value


@dataclass(frozen=True)
class CentredExponential(WithAlpha):
    """kappa(u) = (exp(alpha u) - 1) / (exp(alpha) - 1), the exponential kernel without its constant part.

    That part is what all patches have in common; in deep layers it hides what they differ in, the more so the larger alpha is.
    What is left is small for patches that are not alike, and the maps of a deep network would vanish. So K is divided by
    kappa'(0) and becomes |x| |x'| (exp(alpha c) - 1) / alpha with the cosine c: where that is small, the inner product <x, x'>.

    With `learnable`, the layer that uses this kernel learns log(alpha), so that alpha stays positive, starting here.
    """

    _centred: ClassVar[bool] = True
    _most: ClassVar[float] = 80.0  # exp(alpha) is infinite in fp32 from 88.8 on, and there are factors beside it

    def __call__(self, u: Tensor) -> Tensor:
        return torch.expm1(self.alpha * u) / _expm1(self.alpha)

    def derivative(self, u: Tensor) -> Tensor:
        return self.alpha * torch.exp(self.alpha * u) / _expm1(self.alpha)

    def gain(self) -> float | Tensor:
        return (_expm1(self.alpha) / self.alpha) ** 0.5  # kappa'(0)^(-1/2)

    def _log_at_end(self) -> float | Tensor:
        product = self.alpha * _expm1(self.alpha)
        return (product.log() if isinstance(product, Tensor) else math.log(product)) / 2

    @staticmethod
    def _of_line_(line: Tensor, shift: Tensor, largest: float | Tensor) -> Tensor:
        return line.clamp_max_(largest).expm1_().mul_(shift.exp())

    @staticmethod
    def _slope_of_line(value: Tensor, shift: Tensor) -> Tensor:
        # exp = expm1 + 1, which takes no exponential; what is lost to rounding is small beside the slope at 0
        return value + shift.exp()


def _expm1(number: float | Tensor) -> Any:
    """exp(x) - 1."""
    return number.expm1() if isinstance(number, Tensor) else math.expm1(number)


@dataclass(frozen=True)
class ArcCosine(Kernel):
    """kappa(u) = (sqrt(1 - u^2) + u (pi - arccos u)) / pi, the arc-cosine kernel of degree 1 (Cho and Saul, 2009)."""

    def __call__(self, u: Tensor) -> Tensor:
        value: Tensor = _ArcCosine.apply(u)  # pyright: ignore[reportAssignmentType]
        return value

    def derivative(self, u: Tensor) -> Tensor:
        return 1 - torch.arccos(u.clamp(-1, 1)) / math.pi


class _ArcCosine(torch.autograd.Function):
    """Its derivative is written out because autograd meets 0/0 at u = 1 and u = -1, where kappa' is finite."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        u = u.clamp(-1, 1)  # rounding may leave the domain of arccos
        # (1 - u)(1 + u) keeps the digits that 1 - u^2 loses near the ends
        return ((1 - u).mul(1 + u).sqrt() + u * (math.pi - torch.arccos(u))) / math.pi

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return gradients[0] * ArcCosine().derivative(u)


@dataclass(frozen=True)
class Polynomial(Kernel):
    """kappa(u) = ((u + c) / (1 + c))^d with a whole degree d and an offset c >= 0."""

    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", whole_number("degree", self.degree))
        object.__setattr__(self, "offset", real_number("offset", self.offset, least=0))

    def __call__(self, u: Tensor) -> Tensor:
        return ((u + self.offset) / (1 + self.offset)) ** self.degree

    def derivative(self, u: Tensor) -> Tensor:
        return self.degree / (1 + self.offset) * ((u + self.offset) / (1 + self.offset)) ** (self.degree - 1)


@dataclass(frozen=True)
class Linear(Kernel):
    """kappa(u) = u: patches are projected as they are."""

    def __call__(self, u: Tensor) -> Tensor:
        return u

    def derivative(self, u: Tensor) -> Tensor:
        return torch.ones_like(u)


def homogeneous(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    """K(x, y) of equation (1), times gain^2, between the rows of x (n, d) and the rows of y (m, d), as an (n, m) matrix."""
    x_norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (n, 1)
    y_norm = torch.linalg.vector_norm(y, dim=1, keepdim=True)  # (m, 1)
    return from_inner_products(kernel, x @ y.T, x_norm, y_norm.T)


def from_inner_products(kernel: Kernel, inner: Tensor, x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """gain^2 |x| |y| kappa(<x, y> / |x| |y|) from <x, y>, |x| and |y| of shapes that broadcast; 0 where x or y is 0."""
    norms = x_norm * y_norm
    present, gain = norms > 0, kernel.gain()
    cosine = (inner / torch.where(present, norms, 1)).clamp(-1, 1)  # rounding may exceed Cauchy and Schwarz
    # the gain twice, not its square, which fp32, in which alpha was learned, may not hold where the norms' type does
    return torch.where(present, gain * (gain * norms * kernel(cosine)), 0)


_KERNELS: dict[str, type[Kernel]] = {
    kind.__name__: kind for kind in (Exponential, CentredExponential, ArcCosine, Polynomial, Linear)
}


def to_dict(kernel: Kernel) -> dict[str, Any]:
    """A form for TOML and JSON: {"name": "Exponential", "alpha": 4.0, ...}."""
    settings = {field.name: getattr(kernel, field.name) for field in fields(kernel)}  # pyright: ignore[reportArgumentType]
    plain = {name: value.item() if isinstance(value, Tensor) else value for name, value in settings.items()}
    return {"name": type(kernel).__name__, **plain}


def from_dict(description: dict[str, Any]) -> Kernel:
    """The kernel that `to_dict` described."""
    if not isinstance(description, dict):
        raise ValueError(f'a kernel is described by a table such as {{name = "Linear"}}, got {description!r}')
    arguments = dict(description)
    name = arguments.pop("name", None)
    if name not in _KERNELS:
        raise ValueError(f"unknown kernel {name!r}; expected one of {', '.join(_KERNELS)}")
    kind: Any = _KERNELS[name]
    check_names(f"the kernel {name}", arguments, {field.name for field in fields(kind)})
    return kind(**arguments)
