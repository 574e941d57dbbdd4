"""Kernels between images: K_Z of equation (6) from a network's features, and the exact kernel that it approximates.

A network maps an image I to a map I_k, and K_Z(I, I') = sum_z <I_k(z), I_k'(z)> is a positive definite kernel for any
kernel machine. I_k(z) are coordinates of f_k(z), projected onto the span of the filters at every layer. Without the
projections nothing but inner products of f_k is known, and those suffice: `exact_kernel_matrix` follows

    G_ab[z, z'] = <f_a(z), f_b(z')>        all pairs of positions of the images a and b

from layer to layer, from the pixels on. It shows what the filters lose, and is for small images only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sckn.data.batches import floating_point
from sckn.kernels import from_inner_products
from sckn.layer import KernelLayer, evaluating
from sckn.network import CKN
from sckn.patches import pad_for_patches
from sckn.pooling import gaussian_pool
from sckn.precision import full_precision

__all__ = ["ImageKernel", "exact_kernel_matrix", "exact_layer_kernel", "kernel_matrix"]

Images = Tensor | npt.NDArray[Any]

# Numbers of G held for the pairs of one group, unless a single pair needs more: 32 MB, and a few times that in passing.
GROUP_NUMBERS = 2**22


@torch.no_grad()
def kernel_matrix(network: CKN | KernelLayer, images: Images, others: Images | None = None, *, batch_size: int = 256) -> Tensor:
    """K_Z(I, I') = sum_z <I_k(z), I_k'(z)>, equation (6), for all I in `images` and I' in `others`.

    Parameters
    ----------
    network: a network, or a single layer of one; it works in eval mode meanwhile.
    images: (n, c, H, W).
    others: (m, c, H, W); the images themselves where left out, and then each pair is computed once.
    batch_size: images in a block. Only two blocks of features are held at a time, so those of the columns are computed
        anew for every block of rows: the larger the blocks, the faster.

    Returns
    -------
    Tensor (n, m) on the CPU, of the network's precision (float32 at least).
    """
    columns, symmetric = _columns(images, others)
    dtype = torch.promote_types(next(network.parameters()).dtype, torch.float32)
    K = torch.empty(len(images), len(columns), dtype=dtype)
    with evaluating(network):
        for i in range(0, len(images), batch_size):
            rows = slice(i, i + batch_size)
            x = _features(network, images[rows], dtype)  # (b, p h w)
            for j in range(i if symmetric else 0, len(columns), batch_size):
                part = slice(j, j + batch_size)
                same = symmetric and j == i
                block = _product(x, x if same else _features(network, columns[part], dtype))  # (b, b')
                K[rows, part] = block
                if symmetric and not same:
                    K[part, rows] = block.T
    return K


@dataclass(frozen=True, eq=False)
class ImageKernel:
    """K_Z as a function of two arrays of images, for scikit-learn's `kernel=`.

    Called on (n, c, H, W) and (m, c, H, W), or on (n, c H W) and (m, c H W) if `image_shape` = (c, H, W) is known, it
    returns K_Z (n, m) in float64. For estimators that call a kernel on one pair at a time (KernelRidge), compute
    `kernel_matrix` and say kernel="precomputed".

    Example
    -------
    >>> from sklearn.svm import SVC
    >>> from sckn.layer import LayerConfig
    >>> from sckn.network import NetworkConfig
    >>> network = CKN(NetworkConfig(1, (LayerConfig(filters=16, patch=3, subsampling=2),)))
    >>> model = SVC(kernel=ImageKernel(network, image_shape=(1, 8, 8)))
    >>> model.fit(np.eye(64)[:10], np.arange(10) % 2).predict(np.eye(64)[:10]).shape
    (10,)
    """

    network: CKN | KernelLayer
    image_shape: tuple[int, int, int] | None = None
    batch_size: int = 256

    def __call__(self, images: npt.NDArray[Any], others: npt.NDArray[Any] | None = None) -> npt.NDArray[np.float64]:
        x = self._as_images(images)
        y = None if others is None or others is images else self._as_images(others)
        return kernel_matrix(self.network, x, y, batch_size=self.batch_size).double().numpy()

    def _as_images(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.ndim == 4:
            return array
        if array.ndim == 1:
            raise ValueError("the kernel was called on single rows; compute kernel_matrix and use kernel='precomputed'")
        if self.image_shape is None:
            raise ValueError(f"rows of shape {array.shape[1:]} are no images; give ImageKernel their image_shape (c, H, W)")
        return array.reshape(len(array), *self.image_shape)


def exact_kernel_matrix(network: CKN, images: Images, others: Images | None = None) -> Tensor:
    """sum_z <f_k(z), f_k'(z)>, equation (6), without any projection: what K_Z tends to as filters are added.

    Images (n, c, H, W) and (m, c, H, W) give (n, m), float64, on the CPU. The filters, epsilon and the norm offset play
    no part; patches, kernels and pooling do. For small images: memory grows with (H W)^2, time with n m (H W)^2.
    """
    return _exact_kernel(network.kernel_layers, images, others)


def exact_layer_kernel(layer: KernelLayer, maps: Images, others: Images | None = None) -> Tensor:
    """sum_z <f(z), f'(z)> with f(z) = sum_u P[z, u] phi(x_u), for a single layer: see `exact_kernel_matrix`."""
    return _exact_kernel([layer], maps, others)


@torch.no_grad()
def _exact_kernel(layers: Sequence[KernelLayer], images: Images, others: Images | None) -> Tensor:
    columns, symmetric = _columns(images, others)
    device = next(layers[0].parameters()).device
    x = layers[0].checked(_as_tensor(images, torch.float64, device))  # (n, c, H, W)
    y = x if symmetric else _as_tensor(columns, torch.float64, device)  # (m, c, H, W)
    x_norms = _norms(layers, x)
    y_norms = x_norms if symmetric else _norms(layers, y)
    K = torch.empty(len(x), len(y), dtype=torch.float64)
    group = max(1, GROUP_NUMBERS // (x.shape[2] * x.shape[3]) ** 2)
    for a in range(len(x)):
        for start in range(a if symmetric else 0, len(y), group):
            b = slice(start, start + group)
            G = torch.einsum("chw,bcij->bhwij", x[a], y[b])  # (b, H, W, H, W)
            for layer, x_norm, y_norm in zip(layers, x_norms, y_norms, strict=True):
                G = _pooled_kernel(layer, _patch_products(layer, G), x_norm[a : a + 1], y_norm[b])
            values = torch.einsum("bhwhw->b", G)
            K[a, b] = values
            if symmetric:
                K[b, a] = values
    return K


def _norms(layers: Sequence[KernelLayer], images: Tensor) -> list[Tensor]:
    """|x_z| of the patches that each layer sees, (n, H_k, W_k) for layer k: the diagonal of the products of G_aa."""
    norms: list[list[Tensor]] = [[] for _ in layers]
    for image in images.split(1):
        G = torch.einsum("bchw,bcij->bhwij", image, image)  # (1, H, W, H, W)
        for layer, of_layer in zip(layers, norms, strict=True):
            products = _patch_products(layer, G)  # (1, H', W', H', W')
            norm = torch.einsum("bhwhw->bhw", products).clamp_min(0).sqrt()  # (1, H', W')
            of_layer.append(norm)
            G = _pooled_kernel(layer, products, norm, norm)
    return [torch.cat(of_layer) for of_layer in norms]


def _patch_products(layer: KernelLayer, G: Tensor) -> Tensor:
    """<x_z, x'_z'> = sum_o G[z + o, z' + o] over the e x e offsets o of a patch: (b, H, W, H, W) -> (b, H', W', H', W')."""
    e, padding = layer.config.patch, layer.config.padding
    G = _on_both_sides(lambda maps: pad_for_patches(maps, e, padding), G)
    height, width = G.shape[1] - e + 1, G.shape[2] - e + 1
    products = G.new_zeros(len(G), height, width, height, width)
    for i in range(e):
        for j in range(e):
            rows, columns = slice(i, i + height), slice(j, j + width)
            products += G[:, rows, columns, rows, columns]
    return products


def _pooled_kernel(layer: KernelLayer, products: Tensor, x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """G of the next layer, P K(x_z, x'_z') P' with K of equation (1), times gain^2: (b, H', W', H', W') -> (b, h, w, h, w)."""
    x_norm, y_norm = x_norm[:, :, :, None, None], y_norm[:, None, None, :, :]
    K = from_inner_products(layer.kernel, products, x_norm, y_norm)
    return _on_both_sides(lambda maps: gaussian_pool(maps, layer.config.subsampling, layer.config.pooling_width), K)


def _on_both_sides(operation: Callable[[Tensor], Tensor], G: Tensor) -> Tensor:
    """An operation on maps (..., H, W), applied to both pairs of position axes of G (b, H, W, H, W)."""
    for _ in range(2):
        G = operation(G).permute(0, 3, 4, 1, 2)
    return G


def _features(network: CKN | KernelLayer, images: Images, dtype: torch.dtype) -> Tensor:
    """I_k of each image in one row, (b, p h w)."""
    parameter = next(network.parameters())
    return network(_as_tensor(images, parameter.dtype, parameter.device)).flatten(1).to(dtype)


def _product(x: Tensor, y: Tensor) -> Tensor:
    with full_precision(x.device):
        return x @ y.T


def _as_tensor(images: Images, dtype: torch.dtype, device: torch.device) -> Tensor:
    # a copy, since a tensor can share neither read-only memory nor negative strides
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images, order="C"))
    tensor = floating_point(tensor).to(device, dtype)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError("the images hold NaN or infinity; clean them first")
    return tensor


def _columns(images: Images, others: Images | None) -> tuple[Images, bool]:
    """The second set of images, and whether it is the first again."""
    columns = images if others is None else others
    x, y = tuple(images.shape), tuple(columns.shape)
    if len(x) != 4 or x[1:] != y[1:]:
        raise ValueError(f"expected two sets of images (n, c, H, W) that agree in c, H and W, got shapes {x} and {y}")
    return columns, columns is images
