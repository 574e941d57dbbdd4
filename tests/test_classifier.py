"""A model that carries what is needed to use it: in memory, and in one file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_checkpoint import tensors_and_metadata
from tiny_classifier import CLASSES, CONFIG, files_in, tiny_classifier

from sckn import CKN, CheckpointError, ImageClassifier, LayerConfig, NetworkConfig, kernels, load, local_whitening, save
from sckn.checkpoint import load_classifier, load_network, write_tensors
from sckn.model import KernelModel
from sckn.preparation import Preparation

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 3, 12, 12), dtype=np.uint8)


def test_images_are_prepared_as_in_training() -> None:
    classifier = tiny_classifier()
    expected = classifier.model.predict(local_whitening(torch.from_numpy(IMAGES), power=0.25))
    torch.testing.assert_close(classifier.predict(IMAGES), expected)
    torch.testing.assert_close(classifier.predict(torch.from_numpy(IMAGES), batch_size=2), expected)
    torch.testing.assert_close(classifier.predict(torch.from_numpy(IMAGES) / 255), expected, atol=1e-4, rtol=1e-4)
    plain = tiny_classifier(preparation=Preparation())
    torch.testing.assert_close(plain.predict(IMAGES), plain.model.predict(torch.from_numpy(IMAGES) / 255))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (IMAGES.astype(np.float32), "must be from 0 to 1, got 0 to 255; divide bytes by 255"),
        (IMAGES.astype(np.int64), r"bytes \(uint8\) or floating point, got torch.int64"),
        (np.full(IMAGES.shape, np.nan, np.float32), "NaN or infinity"),
        (IMAGES[0], r"a batch of images .*, got \(3, 12, 12\); resize them, with channels first"),
        (IMAGES / 255.0 - 0.5, "must be from 0 to 1, got -0.5 to 0.5"),
    ],
)
@pytest.mark.parametrize("power", [0.0, 0.25])
def test_images_that_are_no_images_are_refused(images: np.ndarray, sentence: str, power: float) -> None:
    with pytest.raises(ValueError, match=sentence):
        tiny_classifier(preparation=Preparation(power)).predict(images)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    classifier = tiny_classifier(figures={"test_error": 12.5})
    again = load(save(classifier, tmp_path / "classifier.safetensors"))
    assert isinstance(again, ImageClassifier)
    assert not again.training
    assert again.description() == classifier.description()
    assert (again.classes, again.image_size, again.channels) == (CLASSES, 12, 3)
    assert torch.equal(again.predict(IMAGES), classifier.predict(IMAGES))


@pytest.mark.parametrize("kind", ["classifier", "model", "network"])
def test_half_precision_is_half_as_large_and_comes_back_in_fp32(kind: str, tmp_path: Path) -> None:
    learned = kernels.Exponential(3.0, learnable=True)
    wide = NetworkConfig(3, (LayerConfig(64, 3, subsampling=4.0, kernel=learned), LayerConfig(64, 3)))
    classifier = tiny_classifier(config=wide)
    model = {"classifier": classifier, "model": classifier.model, "network": classifier.model.network}[kind]
    whole, half = save(model, tmp_path / "whole.safetensors"), save(model, tmp_path / "half.safetensors", half=True)
    assert half.stat().st_size < 0.7 * whole.stat().st_size
    again = load(half)
    assert type(again) is type(model)
    for name, tensor in again.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-3, atol=1e-7)
    if isinstance(again, ImageClassifier):
        expected = classifier.predict(IMAGES)
        torch.testing.assert_close(again.predict(IMAGES), expected, rtol=0, atol=0.01 * float(expected.abs().max()))


def test_what_rounding_would_spoil_is_not_halved(tmp_path: Path) -> None:
    """A moving frame belongs to its filters; W may be larger or smaller than any number of half precision."""
    classifier = tiny_classifier()
    classifier.model.weights.data *= 1e-7
    classifier.model.weights.data[0, 0] = 1e6
    path = save(classifier, tmp_path / "half.safetensors", half=True)
    kinds = {name: tensor.dtype for name, tensor in load_file(path).items()}
    assert kinds["network.layers.0.frame"] == torch.float32
    assert {kind for name, kind in kinds.items() if "filters" in name} == {torch.float16}
    again = load(path)
    assert isinstance(again, ImageClassifier)
    assert torch.equal(again.model.weights, classifier.model.weights)


def test_filters_too_large_for_half_precision_are_named(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    classifier.model.network.kernel_layers[0].filters.data[0, 0] = 1e6
    with pytest.raises(ValueError, match="filters too large for half precision; save it without half=True"):
        save(classifier, tmp_path / "half.safetensors", half=True)
    assert files_in(tmp_path) == set()


def test_files_of_before_load_as_before(tmp_path: Path) -> None:
    """Those of a network, alone or with its linear model, had no more than these metadata."""
    model = tiny_classifier().model
    metadata = {"config": json.dumps(CONFIG.to_dict())}
    network = load(write_tensors(tmp_path / "old.safetensors", "CKN", model.network.state_dict(), metadata))
    assert isinstance(network, CKN)
    again = load(
        write_tensors(tmp_path / "old.safetensors", "KernelModel", model.state_dict(), {**metadata, "per_pixel": "false"})
    )
    assert isinstance(again, KernelModel)
    assert torch.equal(again.predict(torch.from_numpy(IMAGES)), model.predict(torch.from_numpy(IMAGES)))
    assert tensors_and_metadata(save(model, tmp_path / "new.safetensors"))[1].keys() == {
        *("format", "format_version", "kind", "config", "per_pixel")
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classes": ["cat", "dog"]}, "3 outputs, but there are names for 2"),
        ({"classes": ["cat", "dog", "dog"]}, "each once"),
        ({"classes": "abc"}, "a list of names"),
        ({"classes": [1, 2, 3]}, "a list of names"),
        ({"image_size": 24}, "does not classify whole images of 24 x 24"),
        ({"image_size": -1}, "image_size must be a whole number"),
        ({"image_size": None}, "image_size must be a whole number"),
        ({"preparation": {"whitening_power": 0.25, "crop": 2}}, "upgrade sckn"),
        ({"preparation": {"whitening_power": "0.25"}}, "whitening_power must be a number"),
        ({"experiment": 3}, ""),
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_named(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = save(tiny_classifier(), tmp_path / "classifier.safetensors")
    tensors, metadata = tensors_and_metadata(path)
    metadata["classifier"] = json.dumps({**json.loads(metadata["classifier"]), **changes})
    rest = {name: text for name, text in metadata.items() if name not in ("format", "format_version", "kind")}
    write_tensors(path, "ImageClassifier", tensors, rest)
    with pytest.raises(CheckpointError, match=r"^the description of the classifier in \S+ cannot be read: ") as caught:
        load(path)
    assert reason in str(caught.value)
    for text in ("[1]", "not JSON", "null"):
        write_tensors(path, "ImageClassifier", tensors, {**rest, "classifier": text})
        with pytest.raises(CheckpointError, match="cannot be read"):
            load(path)
    del rest["classifier"]
    write_tensors(path, "ImageClassifier", tensors, rest)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path)


def test_a_later_version_may_tell_more(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    described = ImageClassifier.described(classifier.model, {**classifier.description(), "colour space": "RGB"})
    assert described.description() == classifier.description()


def test_images_of_another_size_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"a batch of images of 3 x 12 x 12 \(channels, height, width\), got \(7, 3, 11, 12\); resize them"
    ):
        tiny_classifier().predict(IMAGES[:, :, 1:])


def test_where_another_kind_is_needed_it_is_named(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    path = save(classifier, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"give the \.model\.network of what that returns"):
        load_network(path)
    assert load_classifier(path).classes == CLASSES
    kinds = {
        "a network with a linear model alone": classifier.model,
        "a network without a linear model": classifier.model.network,
    }
    for kind, model in kinds.items():
        save(model, path)
        with pytest.raises(CheckpointError, match=f"holds {kind}, which knows no classes"):
            load_classifier(path)
