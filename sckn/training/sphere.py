"""Stochastic gradient descent on the sphere, where the filters live (section 3.2 and appendix C)."""

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from sckn.fused import rows as fused

__all__ = ["SphereSGD", "sphere_direction"]


def sphere_direction(Z: Tensor, gradient: Tensor, Q: Tensor | None = None) -> Tensor:
    """(I - Q z z' / (z' Q z)) Q g for each row z of Z (p, d) and g of its gradient; Q = I where left out.

    It is tangent to the sphere at z, and a descent direction for every positive definite Q (appendix C).
    """
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
    clip: the largest norm of a row's direction, to which longer ones are shortened; on the sphere alone.
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
        settings |= {"clip": clip}
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
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self._updated_by_one_kernel(parameter, group):
                    self._update(parameter, group)
        return loss

    def _updated_by_one_kernel(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        """Make the step on a GPU in one launch, if it is of the kind that training makes: the same as `_update`."""
        momentum, gradient = self.state[parameter].get("momentum_buffer"), parameter.grad
        rows = parameter.flatten(1) if parameter.dim() > 1 else parameter
        special = group["nesterov"] or group["maximize"] or group["dampening"] or group["preconditioner"] is not None
        if special or not group["sphere"] or momentum is None or gradient is None or not isinstance(group["lr"], Tensor):
            return False
        if not (fused.applies(rows) and momentum.is_contiguous() and rows.data_ptr() == parameter.data_ptr()):
            return False
        clip = math.inf if group["clip"] is None else group["clip"]
        fused.sphere_step(rows, gradient.contiguous(), momentum, group["lr"], group["momentum"], clip)
        return True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As for any optimiser; the state is copied, because steps change it in place."""
        super().load_state_dict(deepcopy(state_dict))

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        on_sphere = group["sphere"]
        Z = parameter.flatten(1) if on_sphere else parameter  # (p, d)
        if on_sphere:
            Z = Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
        gradient = -parameter.grad if group["maximize"] else parameter.grad  # pyright: ignore[reportOptionalOperand]
        direction = gradient.view_as(Z) + group["weight_decay"] * Z  # pyright: ignore[reportOptionalMemberAccess]
        if on_sphere:
            direction = sphere_direction(Z, direction, group["preconditioner"])
            if group["clip"] is not None:
                norms = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
                direction = direction * (group["clip"] / norms).clamp_max(1)
        momentum = None
        if group["momentum"]:
            state = self.state[parameter]
            momentum = state.get("momentum_buffer")
            if momentum is None:
                momentum = direction.clone()
            else:
                momentum = momentum.view_as(Z).mul(group["momentum"]).add(direction, alpha=1 - group["dampening"])
            direction = direction.add(momentum, alpha=group["momentum"]) if group["nesterov"] else momentum
        Z = Z - group["lr"] * direction
        if on_sphere:
            Z = Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
        if momentum is not None:
            carried = (sphere_direction(Z, momentum) if on_sphere else momentum).view_as(parameter)
            # in place, so that a CUDA graph finds it where it was
            self.state[parameter].setdefault("momentum_buffer", torch.empty_like(carried)).copy_(carried)
        parameter.copy_(Z.view_as(parameter))
