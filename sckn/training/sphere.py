"""Stochastic gradient descent on the sphere, where the filters live (section 3.2 and appendix C)."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from sckn.fused import rows as fused
from sckn.precision import without_autocast
from sckn.training.orthogonal import orthogonalized

__all__ = ["SphereSGD", "sphere_direction"]


def sphere_direction(Z: Tensor, gradient: Tensor, Q: Tensor | None = None) -> Tensor:
    """(I - Q z z' / (z' Q z)) Q g for each row z of Z (p, d) and g of its gradient; Q = I where left out.

    It is tangent to the sphere at z, and a descent direction for every positive definite Q (appendix C).
    """
    with without_autocast(Z.device):
        Qg, Qz = (gradient, Z) if Q is None else (gradient @ Q, Z @ Q)  # rows, and Q is symmetric
    along = (Z * Qg).sum(1, keepdim=True) / (Z * Qz).sum(1, keepdim=True)
    return Qg - along * Qz


class SphereSGD(Optimizer):
    """torch.optim.SGD for parameters (p, ...) whose p rows have unit norm.

    A step is z <- Proj[z - lr v], with v the direction of `sphere_direction`, or its running sum with momentum, which is
    carried to the tangent space of each new z by projection. Rows that are not of unit norm are first scaled to it.

    Parameters
    ----------
    params, lr, momentum, dampening, nesterov, maximize: as in torch.optim.SGD; lr may be a tensor, too.
    weight_decay: as there, or a tensor, without effect on the sphere, where the penalty is constant.
    clip: the largest norm of a row's direction, to which longer ones are shortened; off the sphere, of each number's gradient.
    orthogonal: on the sphere, v is made orthogonal as a matrix of p rows (`orthogonalized`), so that directions that few rows
        have in common are followed as fast as those that all have. lr is then about the length of each row's step, unless
        there are more rows than numbers in a row.
    preconditioner: Q (d, d), symmetric positive definite, with d numbers a row; usually given by parameter group.
    sphere: False for groups of free parameters, such as a kernel's log(alpha): plain SGD.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        clip: float | None = None,
        orthogonal: bool = False,
        preconditioner: Tensor | None = None,
        sphere: bool = True,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, or None, got {clip}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum needs a positive momentum and no dampening")
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        settings |= {"nesterov": nesterov, "maximize": maximize, "preconditioner": preconditioner, "sphere": sphere}
        settings |= {"clip": clip, "orthogonal": orthogonal}
        super().__init__(params, settings)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step for every parameter with a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        together: dict[tuple[object, ...], list[tuple[Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if group["sphere"] and group["orthogonal"]:
                    together[parameter.shape, parameter.dtype, parameter.device].append((parameter, group))
                elif self._fits_the_kernel(parameter, group):
                    self._launch(parameter, group, parameter.grad, group["lr"])
                else:
                    self._move(parameter, group, *self._direction(parameter, group))
        for members in together.values():  # of one shape, whose products of matrices are made in one batch
            self._orthogonal_step(members)
        return loss

    def _fits_the_kernel(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        """Whether a step on a GPU can be made in one launch: of the kind that training makes."""
        momentum = self.state.get(parameter, {}).get("momentum_buffer")
        rows = parameter.flatten(1) if parameter.dim() > 1 else parameter
        special = group["nesterov"] or group["maximize"] or group["dampening"] or group["preconditioner"] is not None
        there = isinstance(group["lr"], Tensor) and group["lr"].device == parameter.device
        if special or not group["sphere"] or momentum is None or not there:
            return False
        return fused.applies(rows) and momentum.is_contiguous() and rows.data_ptr() == parameter.data_ptr()

    def _launch(self, parameter: Tensor, group: dict[str, Any], gradient: Tensor, lr: Tensor) -> None:
        """The same as `_direction` and `_move`."""
        momentum, clip = self.state[parameter]["momentum_buffer"], math.inf if group["clip"] is None else group["clip"]
        fused.sphere_step(parameter.flatten(1), gradient.contiguous(), momentum, lr, group["momentum"], clip)

    def _orthogonal_step(self, members: list[tuple[Tensor, dict[str, Any]]]) -> None:
        if not all(self._fits_the_kernel(parameter, group) for parameter, group in members):
            found = [self._direction(parameter, group) for parameter, group in members]
            directions = orthogonalized(torch.stack([direction for _, direction, _ in found]))
            for (parameter, group), (Z, _, momentum), direction in zip(members, found, directions, strict=True):
                self._move(parameter, group, Z, sphere_direction(Z, direction), momentum)
            return
        # First a launch with rate 0, which only adds the gradient to the momentum. After the step the momentum would have to be
        # projected to the new tangent space; that is done where it is used again.
        for parameter, group in members:
            assert parameter.grad is not None
            self._launch(parameter, group, parameter.grad, torch.zeros_like(group["lr"]))
        directions = orthogonalized(torch.stack([self.state[p]["momentum_buffer"].flatten(1) for p, _ in members]))
        scratch = torch.empty_like(directions[0])
        for (parameter, group), direction in zip(members, directions, strict=True):
            fused.sphere_step(parameter.flatten(1), direction.contiguous(), scratch.zero_(), group["lr"], 0.0, math.inf)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As for any optimiser; the state is copied, because steps change it in place."""
        super().load_state_dict(deepcopy(state_dict))

    def _direction(self, parameter: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Unit rows Z (p, d), or the parameter as it is off the sphere; where it is to move; and the momentum with the gradient
        in it."""
        on_sphere = group["sphere"]
        Z = parameter.flatten(1) if on_sphere else parameter
        if on_sphere:
            Z = Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
        gradient = -parameter.grad if group["maximize"] else parameter.grad  # pyright: ignore[reportOptionalOperand]
        direction = gradient.view_as(Z) + group["weight_decay"] * Z  # pyright: ignore[reportOptionalMemberAccess]
        if on_sphere:
            direction = sphere_direction(Z, direction, group["preconditioner"])
            if group["clip"] is not None:
                norms = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
                direction = direction * (group["clip"] / norms).clamp_max(1)
        elif group["clip"] is not None:
            direction = direction.clamp(-group["clip"], group["clip"])
        if not group["momentum"]:
            return Z, direction, None
        momentum = self.state[parameter].get("momentum_buffer")
        if momentum is None:
            momentum = direction.clone()
        else:
            carried = momentum.view_as(Z)
            if on_sphere and group["orthogonal"]:
                carried = sphere_direction(Z, carried)  # see `_orthogonal_step`
            momentum = carried.mul(group["momentum"]).add(direction, alpha=1 - group["dampening"])
        return Z, direction.add(momentum, alpha=group["momentum"]) if group["nesterov"] else momentum, momentum

    def _move(self, parameter: Tensor, group: dict[str, Any], Z: Tensor, direction: Tensor, momentum: Tensor | None) -> None:
        on_sphere = group["sphere"]
        Z = Z - group["lr"] * direction
        if on_sphere:
            Z = Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
        if momentum is not None:
            carried = (sphere_direction(Z, momentum) if on_sphere else momentum).view_as(parameter)
            # in place, so that a CUDA graph finds it where it was
            self.state[parameter].setdefault("momentum_buffer", torch.empty_like(carried)).copy_(carried)
        parameter.copy_(Z.view_as(parameter))
