"""`export_onnx`: a trained classifier or upscaler in one ONNX file, with its names and what they mean."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sckn.classifier import ImageClassifier
from sckn.export.graph import Graph, onnx_package
from sckn.export.network import NUMBERS, kernel_model
from sckn.export.upscaling import upscaled
from sckn.export.whitening import whitened
from sckn.files import written_whole
from sckn.superres.upscaler import Upscaler

__all__ = ["checked_target", "export_onnx"]

TOLERANCE = 1e-4  # by which the file may differ from the model, relative to the range of the results


def export_onnx(model: nn.Module, path: str | Path, *, name: str = "") -> Path:
    """Write a classifier or an upscaler as an ONNX file; a file that was there is replaced only once the new one is whole.

    Before that, onnxruntime computes an example with it, which must be what the model itself gives.

    A classifier takes `images` (batch, channels, size, size) from 0 to 1, as many as there are, and gives `scores`
    (batch, classes); what is done to images before the network sees them is part of the file. An upscaler takes `luminance`
    (batch, 1, height, width) from 0 to 255, of any size, and gives `enlarged`, neither rounded nor clipped. The metadata hold
    a description, the names of classes as JSON, and the like.

    Example
    -------
    >>> from sckn import load
    >>> export_onnx(load("cifar10"), "cifar10.onnx")  # doctest: +SKIP
    """
    path = checked_target(path)
    if isinstance(model, ImageClassifier):
        content, example = _classifier(model, name or model.name), torch.rand(2, *_image_shape(model))
    elif isinstance(model, Upscaler):
        content, example = _upscaler(model, name), 255 * torch.rand(1, 1, 17, 12)
    else:
        raise ValueError(
            f"a {type(model).__name__} cannot be exported: it does not say what images it takes; "
            "export an ImageClassifier or an Upscaler"
        )
    _check_result(content, model, example)
    with written_whole(path) as temporary:
        temporary.write_bytes(content)
    return path


def checked_target(path: str | Path) -> Path:
    """The file to write, before there is work; it must be named as such."""
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"{path} must be an ONNX file; give a name that ends in .onnx")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file, such as {path / 'model.onnx'}")
    return path


def _image_shape(classifier: ImageClassifier) -> tuple[int, int, int]:
    return classifier.channels, classifier.image_size, classifier.image_size


def _classifier(classifier: ImageClassifier, name: str) -> bytes:
    shape, count = _image_shape(classifier), len(classifier.classes)
    channels, size, _ = shape
    graph = Graph()
    images = graph.input("images", NUMBERS, ["batch", *shape])
    power = classifier.preparation.whitening_power
    prepared = whitened(graph, images, channels, size, power) if power else images
    scores = kernel_model(graph, prepared, classifier.model, (size, size))
    colours = "RGB images" if channels == 3 else f"images of {channels} channel(s)"
    description = (
        f"A supervised convolutional kernel network for {count} classes. images: {colours} of {size} x {size} pixels, "
        "(batch, channels, height, width), from 0 to 1, not otherwise prepared. scores: (batch, classes); the highest is the "
        "answer, none is a probability. The metadata's classes are their names, in JSON."
    )
    metadata = {
        "kind": "ImageClassifier",
        "name": name,
        "description": description,
        "classes": json.dumps(classifier.classes, ensure_ascii=False),
        "image_size": str(size),
        "figures": json.dumps(classifier.figures),
    }
    result = graph.renamed(scores, "scores")
    return graph.to_bytes(name or "sckn", description, result, ["batch", count], metadata)


def _upscaler(upscaler: Upscaler, name: str) -> bytes:
    scale, reach = upscaler.scale, upscaler.reach
    graph = Graph()
    luminance = graph.input("luminance", NUMBERS, ["batch", 1, "height", "width"])
    result = graph.renamed(upscaled(graph, luminance, upscaler), "enlarged")
    description = (
        f"A supervised convolutional kernel network that makes images larger by {scale}. luminance: Y of YCbCr (BT.601, as "
        "Matlab has it), (batch, 1, height, width), from 0 to 255, of any size. enlarged: that of the larger image, neither "
        f"rounded nor clipped; colour differences are left to bicubic interpolation. A pixel depends on {reach} pixels of "
        "luminance around it, so that a large image can be done in tiles with as many more on each side."
    )
    metadata = {
        "kind": "Upscaler",
        "name": name,
        "description": description,
        "scale": str(scale),
        "context": str(reach),
    }
    size = ["batch", 1, f"{scale} * height", f"{scale} * width"]
    return graph.to_bytes(name or "sckn", description, result, size, metadata)


@torch.no_grad()
def _check_result(content: bytes, model: ImageClassifier | Upscaler, example: torch.Tensor) -> None:
    """onnxruntime with the file against the model itself."""
    device = model.model.weights.device
    if isinstance(model, ImageClassifier):
        expected = model.predict(example)
    else:
        expected = model.upscale_luminance(example[0, 0].to(device))[None, None]
    session = onnx_package("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: example.numpy()})
    right = expected.double().cpu().numpy()
    difference = np.abs(got - right).max() / max(np.ptp(right), np.abs(right).max() * TOLERANCE)
    if not difference < TOLERANCE:
        raise ValueError(
            f"the exported model would differ from the model itself by {difference:.1g} of the range of its results, "
            "and was not written; this happens if its weights are so large that float32 does not suffice"
        )
