"""How precisely convolutions with patches are computed; norms, kernels and p x p matrices always keep fp32 numbers.

The names are those of torch.set_float32_matmul_precision: "highest" is fp32, "high" TF32, "medium" bf16.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

__all__ = ["Precision", "full_precision", "loses_digits", "precision", "without_autocast"]

Precision = Literal["highest", "high", "medium"]


@contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """Compute at this precision within the block, afterwards as before. On a CPU "high" is the same as "highest"."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # pyright: ignore[reportAttributeAccessIssue]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if name == "highest" else "tf32"
    try:
        # a cached copy of a weight would outlive the step that changes the weight
        with torch.autocast(device.type, torch.bfloat16, enabled=name == "medium", cache_enabled=False):
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def loses_digits(name: Precision, device: torch.device) -> bool:
    """Whether what is computed at this precision on this device differs from fp32."""
    return name == "medium" or (name == "high" and device.type == "cuda")


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the type of their factors; TF32 stays as it is."""
    # where there is none to switch off, nothing is done: exported programs need not be told
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Neither autocast nor TF32: p x p matrices of condition 10^3 and more need every digit of fp32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision  # the older switches read and write it too
    matmul.fp32_precision = "ieee"
    try:
        with without_autocast(device):
            yield
    finally:
        matmul.fp32_precision = before
