"""A network and its linear model as parts of an ONNX graph; everything that depends on the filters alone is a constant."""

import math

import numpy as np
import torch
from torch import Tensor

from sckn.export.graph import Graph, Value
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Linear, Polynomial
from sckn.layer import KernelLayer, evaluating
from sckn.model import KernelModel
from sckn.pooling import pooling_matrix

__all__ = ["kernel_model"]

NUMBERS = np.float32  # of the weights and of all that is computed from them


@torch.no_grad()
def kernel_model(graph: Graph, maps: Value, model: KernelModel, size: tuple[int, int] | None) -> Value:
    """Scores (B, outputs) of images of this size, or where the model acts on pixels (B, outputs, h, w) for any size.

    Pooling is a product with matrices that depend on the size: without one, layers may not pool.
    """
    with evaluating(model):
        roots = model.network.inverse_roots()
    for layer, root in zip(model.network.kernel_layers, roots, strict=True):
        maps = _kernel_layer(graph, maps, layer, root, size)
        size = None if size is None else layer.config.output_size(*size)
    weights, bias = _array(model.weights), _array(model.bias)
    if model.per_pixel:  # (p, outputs) at each pixel
        return graph.node("Conv", maps, np.ascontiguousarray(weights.T)[:, :, None, None], bias)
    return maps.reshaped(0, -1) @ weights + bias


def _kernel_layer(graph: Graph, maps: Value, layer: KernelLayer, root: Tensor, size: tuple[int, int] | None) -> Value:
    """As `KernelLayer.forward`."""
    config = layer.config
    side = config.patch
    before, after = ((side - 1) // 2, side // 2) if config.padding else (0, 0)
    pads = (before, before, after, after)
    squares = (maps * maps).sum(1)  # (B, 1, H, W)
    if side > 1:
        # a convolution with ones may become one by fast transforms, whose rounding can be below zero
        mean = graph.node("AveragePool", squares, kernel_shape=(side, side), pads=pads, count_include_pad=1)
        squares = mean * float(side**2)
    norms = squares.sqrt()
    Z = _array(layer.directions().view_as(layer.filters))  # (p, c, e, e)
    projected = graph.node("Conv", maps, Z, pads=pads)
    cosines = projected / graph.where(norms.equals(0.0), 1.0, norms + config.norm_offset)
    mapped = norms * _kappa(graph, layer.kernel, cosines)  # (B, p, H', W')
    if config.subsampling != 1:
        if size is None:
            raise ValueError("a network that pools can only be exported for images of one size")
        lost = 0 if config.padding else side - 1
        rows, columns = (
            pooling_matrix(pixels - lost, config.subsampling, config.pooling_width).numpy().astype(NUMBERS) for pixels in size
        )
        mapped = rows @ (mapped @ np.ascontiguousarray(columns.T))
    return graph.node("Conv", mapped, np.ascontiguousarray(_array(root).T)[:, :, None, None])


def _kappa(graph: Graph, kernel: Kernel, u: Value) -> Value:
    """gain kappa(u), as the kernels of `sckn.kernels` have it."""
    if isinstance(kernel, Exponential):
        return graph.node("Exp", (graph.node("Min", u, 1.0) - 1.0) * float(kernel.alpha))
    if isinstance(kernel, CentredExponential):
        alpha = float(kernel.alpha)
        return (graph.node("Exp", graph.node("Min", u, 1.0) * alpha) - 1.0) / math.sqrt(alpha * math.expm1(alpha))
    if isinstance(kernel, ArcCosine):
        u = graph.node("Clip", u, -1.0, 1.0)
        return (((1.0 - u) * (1.0 + u)).sqrt() + u * (math.pi - graph.node("Acos", u))) / math.pi
    if isinstance(kernel, Polynomial):
        return ((u + kernel.offset) / (1 + kernel.offset)) ** float(kernel.degree)
    if isinstance(kernel, Linear):
        return u
    raise ValueError(f"a network with the kernel {kernel!r} cannot be exported; only the kernels of sckn.kernels can")


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().astype(NUMBERS)
