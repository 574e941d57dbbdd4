"""An upscaler as an ONNX graph: `Upscaler.forward` on a whole image of any size, mirrored beyond its border."""

import numpy as np

from sckn.export.graph import Graph, Value
from sckn.export.network import NUMBERS, kernel_model
from sckn.superres import detail
from sckn.superres.imresize import resize_taps
from sckn.superres.upscaler import CUBIC_REACH, Upscaler

__all__ = ["upscaled"]


def upscaled(graph: Graph, luminance: Value, upscaler: Upscaler) -> Value:
    """Luminance (B, 1, h, w) from 0 to 255 -> (B, 1, scale h, scale w)."""
    config, context = upscaler.config, upscaler.context
    small = _mirrored(graph, _mirrored(graph, luminance, context, 2), context, 3)
    interpolated = _interpolated(graph, small, config.scale)  # for all but CUBIC_REACH pixels of `small` on each side
    seen = small if config.low_resolution else interpolated
    side = 2 * detail.MARGIN + 1
    means = graph.node("AveragePool", seen, kernel_shape=(side, side))
    lost = kernel_model(graph, (seen.cropped(detail.MARGIN) - means) / config.detail_unit, upscaler.model, None)
    not_predicted = upscaler.margin + detail.MARGIN  # pixels of `seen` on each side
    beyond = config.scale * (context - CUBIC_REACH)  # pixels of `interpolated` on each side outside of the image
    if config.low_resolution:
        lost = _shuffled(graph, lost, config.scale).cropped(config.scale * (context - not_predicted))
    else:
        lost = lost.cropped(beyond - not_predicted)
    return interpolated.cropped(beyond) + lost


def _mirrored(graph: Graph, images: Value, margin: int, axis: int) -> Value:
    """`margin` more pixels on both sides of an axis, as `sckn.superres.imresize.reflected` finds them."""
    size = images.size(axis)
    places = graph.node("Range", graph.constant(-margin), size + margin, graph.constant(1))
    folded = graph.node("Mod", places, size * 2)  # has the sign of the divisor
    inside = graph.node("Less", folded, size, dtype=np.bool_)
    return images.gathered(graph.where(inside, folded, size * 2 - 1 - folded), axis)


def _interpolated(graph: Graph, images: Value, scale: int) -> Value:
    """`imresize` by a whole factor, of the pixels that lie CUBIC_REACH from the border.

    The scale x scale pixels that a small one becomes are sums of the small ones around it with weights that are the same
    everywhere: a convolution with so many outputs.
    """
    reach, middle = CUBIC_REACH, 2 * CUBIC_REACH
    size = 2 * middle + 1
    taps = resize_taps(size, scale * size).window(scale * middle, scale * (middle + 1))  # of what one pixel becomes
    phases = np.zeros((scale, 2 * reach + 1))
    for phase, (indices, weights) in enumerate(zip(taps.indices.numpy(), taps.weights.numpy(), strict=True)):
        near = weights != 0
        phases[phase, indices[near] - middle + reach] += weights[near]
    filters = np.einsum("ik,jl->ijkl", phases, phases).reshape(scale**2, 1, *2 * [2 * reach + 1])
    return _shuffled(graph, graph.node("Conv", images, filters.astype(NUMBERS)), scale)


def _shuffled(graph: Graph, maps: Value, scale: int) -> Value:
    """As `torch.nn.functional.pixel_shuffle`."""
    return graph.node("DepthToSpace", maps, blocksize=scale, mode="CRD")
