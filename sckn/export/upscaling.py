"""An upscaler as an ONNX graph: `Upscaler.upscale_luminance` on a whole image of any size."""

import numpy as np

from sckn.export.graph import Graph, Value
from sckn.export.network import NUMBERS, kernel_model
from sckn.superres import detail
from sckn.superres.consistency import FILTER_REACH, sharpening_weights
from sckn.superres.imresize import resize_taps
from sckn.superres.upscaler import CUBIC_REACH, Upscaler

__all__ = ["upscaled"]


def upscaled(graph: Graph, luminance: Value, upscaler: Upscaler) -> Value:
    """Luminance (B, 1, h, w) from 0 to 255 -> (B, 1, scale h, scale w)."""
    said = _said(graph, luminance, upscaler)
    # as `sckn.superres.consistency.nearest_image`
    missing = luminance - _shrunk(graph, said, upscaler.scale)
    around = _sharpened(graph, _mirrored(graph, missing, FILTER_REACH + CUBIC_REACH), upscaler.scale)
    return said + _interpolated(graph, around, upscaler.scale)


def _said(graph: Graph, luminance: Value, upscaler: Upscaler) -> Value:
    """What the network says of the image: `Upscaler.forward`, the image mirrored beyond its border."""
    config, context = upscaler.config, upscaler.context
    small = _mirrored(graph, luminance, context)
    seen = small if config.low_resolution else _interpolated(graph, small, config.scale)
    side = 2 * detail.MARGIN + 1
    means = graph.node("AveragePool", seen, kernel_shape=(side, side))
    said = kernel_model(graph, (seen.cropped(detail.MARGIN) - means) / config.detail_unit, upscaler.model, None)
    if config.low_resolution:  # the context is what the network loses
        return _shuffled(graph, said, config.scale)
    beyond = config.scale * (context - CUBIC_REACH)  # pixels of `seen` on each side outside of the image
    return said.cropped(beyond - upscaler.margin - detail.MARGIN)


def _mirrored(graph: Graph, images: Value, margin: int) -> Value:
    """`margin` more pixels on each side, as `sckn.superres.imresize.reflected` finds them."""
    for axis in (2, 3):
        size = images.size(axis)
        places = graph.node("Range", graph.constant(-margin), size + margin, graph.constant(1))
        folded = graph.node("Mod", places, size * 2)  # has the sign of the divisor
        inside = graph.node("Less", folded, size, dtype=np.bool_)
        images = images.gathered(graph.where(inside, folded, size * 2 - 1 - folded), axis)
    return images


def _shrunk(graph: Graph, images: Value, scale: int) -> Value:
    """`imresize` by 1 / scale: a small pixel is a sum of the large ones that it covers and those CUBIC_REACH small pixels
    around, with weights that are the same everywhere."""
    middle = 2 * CUBIC_REACH
    size = 2 * middle + 1
    taps = resize_taps(scale * size, size, 1 / scale).window(middle, middle + 1)  # of one pixel
    near = taps.weights[0] != 0
    along = np.zeros(scale * (2 * CUBIC_REACH + 1))
    along[(taps.indices[0][near] - scale * (middle - CUBIC_REACH)).numpy()] = taps.weights[0][near].numpy()
    filters = np.outer(along, along)[None, None].astype(NUMBERS)
    return graph.node("Conv", _mirrored(graph, images, scale * CUBIC_REACH), filters, strides=(scale, scale))


def _sharpened(graph: Graph, images: Value, scale: int) -> Value:
    """`sckn.superres.consistency.sharpening_weights` along both sides, of the pixels that lie FILTER_REACH from the border."""
    weights = np.array(sharpening_weights(scale), NUMBERS)
    for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):
        images = graph.node("Conv", images, weights.reshape(shape))
    return images


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
