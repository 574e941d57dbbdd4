"""Proposition 1 in explicit matrices, for one image: what the layers, and autograd through them, are compared with.

Letters are the paper's: E the patches as columns, S their norms, Z the filters as columns, M the map before pooling,
P the pooling (pixels in rows, pooled pixels in columns), U the gradient for the output. Two things differ from the
print, both from method.md: the offset delta divides without being part of S, which changes h, and the gradient of
A = (kappa(Z'Z) + epsilon I)^(-1/2) may be the exact one. A kernel may have a gain, which multiplies the output.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.inverse_root import Gradient
from sckn.kernels import Kernel


def pooling_weights(size: int, factor: float, width: float = 1 / math.sqrt(2)) -> Tensor:
    """Weights (pooled, size) along one axis, number by number as method.md has them, each row summing to 1."""
    if factor == 1:
        return torch.eye(size, dtype=torch.float64)
    out_size = math.floor(size / factor + 0.5)
    d = size / out_size
    sigma = width * factor
    weights = torch.zeros(out_size, size, dtype=torch.float64)
    for i in range(out_size):
        centre = d / 2 + i * d
        for k in range(size):
            distance = k + 0.5 - centre
            if abs(distance) <= 3 * sigma + 1e-9:  # a pixel exactly 3 sigma away counts, however it is rounded
                weights[i, k] = math.exp(-(distance**2) / (2 * sigma**2))
        weights[i] /= weights[i].sum()
    return weights


@dataclass(frozen=True)
class ClosedFormLayer:
    """One layer with filters Z (c e^2, p), columns of unit norm, on one image (c, H, W), all float64."""

    Z: Tensor
    kernel: Kernel
    patch: int
    subsampling: float
    padding: bool = True
    epsilon: float = 1e-3
    norm_offset: float = 1e-5
    gradient: Gradient = "exact"

    def forward(self, image: Tensor) -> Tensor:
        """I_j = gain A kappa(Z' E S^-1) S P as a map (p, h, w)."""
        E, S = self._patches_and_norms(image)
        kappa = self.kernel(self.Z.T @ E / (S + self.norm_offset))
        rows, columns = self._pooling(image)
        return self.kernel.gain() * (self._A() @ (kappa * S) @ self._P(image)).reshape(-1, len(rows), len(columns))

    def backward(self, image: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """g_j(U), the Euclidean gradient for Z (c e^2, p), and h_j(U), the gradient for the image (c, H, W)."""
        E, S = self._patches_and_norms(image)
        N = S + self.norm_offset
        A, P = self._A(), self._P(image)
        U = self.kernel.gain() * U.flatten(1)  # (p, pooled pixels)
        V = self.Z.T @ E  # (p, pixels)
        kappa = self.kernel(V / N)
        Q = A @ U @ P.T  # gradient for kappa S
        B = self.kernel.derivative(V / N) * Q

        dL_dA = U @ (kappa * S @ P).T
        D = self._gradient_for_gram(dL_dA)
        g = E @ (B * S / N).T + self.Z @ (self.kernel.derivative(self.Z.T @ self.Z) * (D + D.T))

        # The norm S acts as the factor in front and in the denominator of the cosine; a zero patch has no direction.
        through_norm = (kappa * Q).sum(dim=0) / S.clamp_min(1e-300) - (B * V).sum(dim=0) / N**2
        through_norm = torch.where(S > 0, through_norm, 0)
        h = self._adjoint_of_patches(self.Z @ (B * S / N) + E * through_norm, image)
        return g, h

    def _A(self) -> Tensor:
        eigenvalues, V = self._eigen()
        return V @ torch.diag(eigenvalues**-0.5) @ V.T

    def _eigen(self) -> tuple[Tensor, Tensor]:
        p = self.Z.shape[1]
        eigenvalues, V = torch.linalg.eigh(self.kernel(self.Z.T @ self.Z) + self.epsilon * torch.eye(p, dtype=torch.float64))
        return eigenvalues, V

    def _gradient_for_gram(self, G: Tensor) -> Tensor:
        """dL/dK from G = dL/dA; K is symmetric, so only the symmetric part of the result has a meaning."""
        eigenvalues, V = self._eigen()
        if self.gradient == "paper":
            A32 = V @ torch.diag(eigenvalues**-0.75) @ V.T
            return -0.5 * A32 @ G @ A32
        s = eigenvalues.sqrt()
        return -V @ ((V.T @ G @ V) / (s[:, None] * s * (s[:, None] + s))) @ V.T

    def _pooling(self, image: Tensor) -> tuple[Tensor, Tensor]:
        lost = 0 if self.padding else self.patch - 1
        height, width = image.shape[1] - lost, image.shape[2] - lost
        return pooling_weights(height, self.subsampling), pooling_weights(width, self.subsampling)

    def _P(self, image: Tensor) -> Tensor:
        """Pixels are in row-major order, so the pooling of both axes at once is a Kronecker product."""
        rows, columns = self._pooling(image)
        return torch.kron(rows, columns).T

    def _margins(self) -> tuple[int, int]:
        """Zeros before and after each axis; an even patch reaches one pixel further ahead than back."""
        return ((self.patch - 1) // 2, self.patch // 2) if self.padding else (0, 0)

    def _patches_and_norms(self, image: Tensor) -> tuple[Tensor, Tensor]:
        before, after = self._margins()
        E = F.unfold(F.pad(image, (before, after, before, after))[None], self.patch)[0]
        return E, E.square().sum(dim=0).sqrt()

    def _adjoint_of_patches(self, columns: Tensor, image: Tensor) -> Tensor:
        """E*: every patch adds itself to the pixels it came from."""
        before, after = self._margins()
        height, width = image.shape[1:]
        padded = F.fold(columns[None], (height + before + after, width + before + after), self.patch)[0]
        return padded[:, before : before + height, before : before + width]
