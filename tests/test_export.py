"""Exported models: onnxruntime against the models themselves, on photographs and made-up images of several sizes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from PIL import Image
from skimage import data
from test_files import files_limited_to
from test_using_models import printed, sentence
from tiny_classifier import CLASSES, files_in, tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn import (
    CKN,
    KernelModel,
    LayerConfig,
    NetworkConfig,
    Upscaler,
    UpscalerConfig,
    export_onnx,
    kernels,
    local_whitening,
    save,
)
from sckn.export.graph import Graph
from sckn.export.onnx_file import _check_result
from sckn.export.whitening import whitened
from sckn.preparation import Preparation
from sckn.superres.colour import rgb_to_ycbcr

CLOSE = 1e-4  # of the range of the results


def photo(name: str, size: int | None = None) -> np.ndarray:
    """One of scikit-image's, (H, W, 3); with a size, resized to a square."""
    pixels = getattr(data, name)()
    return pixels if size is None else np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC))


PHOTOS = ("astronaut", "coffee", "chelsea", "rocket")


def small_photos(size: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([photo(name, size) for name in PHOTOS])).permute(0, 3, 1, 2).float() / 255


def ran(content: bytes | Path, given: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(content) if isinstance(content, Path) else content)
    (result,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    return np.asarray(result)


def agrees(got: np.ndarray, expected: torch.Tensor) -> bool:
    right = expected.detach().numpy()
    return got.shape == right.shape and np.abs(got - right).max() < CLOSE * np.ptp(right)


# -- classifiers --------------------------------------------------------------------------------------------------------


def test_a_classifier_gives_the_scores_of_photographs(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    path = export_onnx(classifier, tmp_path / "tiny.onnx")
    photos = small_photos(12)
    for images in (photos, photos[:1], torch.rand(33, 3, 12, 12), photos.flip(3)):
        assert agrees(ran(path, images), classifier.predict(images))


KERNELS = [
    kernels.Exponential(2.5),
    kernels.Exponential(4.0, learnable=True),
    kernels.CentredExponential(2.5),
    kernels.CentredExponential(20.0, learnable=True),
    kernels.ArcCosine(),
    kernels.Polynomial(3, 0.5),
    kernels.Linear(),
]
LAYERS = [
    {},
    {"patch": 2},
    {"patch": 4, "subsampling": 2**0.5},
    {"padding": False, "subsampling": 2.0},
    {"norm_offset": 0.0},
    {"inverse_root": "newton_schulz", "pooling_width": 1.0, "subsampling": 3.0},
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_kind_of_layer(tmp_path: Path, kernel: kernels.Kernel, layer: dict[str, Any]) -> None:
    layers = (LayerConfig(**{"filters": 5, "patch": 3, "kernel": kernel, **layer}), LayerConfig(6, 3, subsampling=2.0))
    classifier = tiny_classifier(config=NetworkConfig(3, layers), preparation=Preparation())
    with torch.no_grad():
        for each in classifier.model.network.kernel_layers:
            if each.log_alpha is not None:
                each.log_alpha.add_(0.3)
    images = small_photos(12)
    images[1, :, 4:] = 0  # patches without a norm
    images[2] = 0
    assert agrees(ran(export_onnx(classifier, tmp_path / "a.onnx"), images), classifier.predict(images))


def test_a_double_classifier_in_training_mode_is_left_as_it_is(tmp_path: Path) -> None:
    classifier = tiny_classifier().double().train()
    path = export_onnx(classifier, tmp_path / "tiny.onnx")
    assert classifier.training
    assert agrees(ran(path, small_photos(12)), classifier.predict(small_photos(12).double()))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "power"), [(3, 0.25), (8, 0.5), (32, 0.25)])
def test_whitening_is_that_of_the_library(channels: int, size: int, power: float) -> None:
    """Also where singular values are zero, or so small that they count as such."""
    graph = Graph()
    images = graph.input("images", np.float32, ["batch", channels, size, size])
    result = graph.renamed(whitened(graph, images, channels, size, power), "whitened")
    content = graph.to_bytes("whitening", "", result, ["batch", channels, size, size], {})
    board = torch.from_numpy(np.indices((size, size)).sum(0) % 2).float().expand(1, 3, -1, -1)
    ramp = torch.linspace(0, 1, size).expand(1, 3, size, -1)
    made_up = [
        board,
        ramp,
        torch.full((1, 3, size, size), 0.3),
        torch.zeros(1, 3, size, size),
        ramp + 1e-4 * torch.rand(size, size),
    ]
    batch = torch.cat([small_photos(size), *made_up])[:, :channels]
    got, expected = ran(content, batch), local_whitening(batch, power=power)
    for one, right in zip(got, expected.numpy(), strict=True):
        assert np.abs(one - right).max() <= 1e-5 * np.abs(right).max()
    assert not got[6:8].any()


def test_an_image_with_nan_does_not_disturb_the_others(tmp_path: Path) -> None:
    classifier, images = tiny_classifier(), small_photos(12)
    images[1, 0, 3, 3] = torch.nan
    scores = ran(export_onnx(classifier, tmp_path / "tiny.onnx"), images)
    assert np.isnan(scores[1]).all()
    rest = [0, 2, 3]
    assert agrees(scores[rest], classifier.predict(images[rest]))


def test_another_runtime_reads_it_too(tmp_path: Path) -> None:
    """That of the onnx package, which is written from the specification."""
    classifier, images = tiny_classifier(), small_photos(12)[:2]
    path = export_onnx(classifier, tmp_path / "tiny.onnx")
    (scores,) = ReferenceEvaluator(str(path)).run(None, {"images": images.numpy()})  # pyright: ignore[reportGeneralTypeIssues]
    assert agrees(np.asarray(scores), classifier.predict(images))


# -- upscalers ----------------------------------------------------------------------------------------------------------


def upscaler(scale: int, low_resolution: bool, patches: tuple[int, ...] = (3, 1, 3)) -> Upscaler:
    layers = tuple(LayerConfig(6, patch, padding=False) for patch in patches)
    config = UpscalerConfig(scale, low_resolution, detail_unit=10.0)
    weights = 3 * torch.randn(6, config.outputs)
    return Upscaler(KernelModel(CKN(NetworkConfig(1, layers)), weights, torch.randn(config.outputs), per_pixel=True), config)


@pytest.mark.parametrize("scale", [2, 3, 4, 7])
@pytest.mark.parametrize("low_resolution", [True, False])
def test_an_upscaler_makes_photographs_of_any_size_larger(tmp_path: Path, scale: int, low_resolution: bool) -> None:
    model = upscaler(scale, low_resolution)
    path = export_onnx(model, tmp_path / "up.onnx")
    for name, height, width in (
        ("coffee", 40, 57),
        ("astronaut", 64, 33),
        ("chelsea", 7, 5),
        ("chelsea", 1, 1),
        ("rocket", 2, 90),
    ):
        pixels = torch.from_numpy(photo(name)[60 : 60 + height, 100 : 100 + width].copy()).permute(2, 0, 1).float()
        y = rgb_to_ycbcr(pixels)[0]
        got = ran(path, y[None, None])
        expected = model.upscale_luminance(y)
        assert expected.shape == (scale * height, scale * width)
        assert np.abs(got[0, 0] - expected.numpy()).max() < CLOSE * 100


@pytest.mark.parametrize("patches", [(1,), (3,), (5, 7)])
def test_whatever_a_network_looks_at(tmp_path: Path, patches: tuple[int, ...]) -> None:
    for low_resolution in (True, False):
        model, y = upscaler(2, low_resolution, patches), 255 * torch.rand(3, 1, 20, 15)
        got = ran(export_onnx(model, tmp_path / "up.onnx"), y)
        assert agrees(got, torch.stack([model.upscale_luminance(each)[None] for each in y[:, 0]]))


@pytest.mark.parametrize("scale", [2, 3])
def test_made_smaller_again_it_is_the_image_that_it_was(tmp_path: Path, scale: int) -> None:
    """By Pillow, far from the border, where Pillow does otherwise."""
    y = photo("coffee")[:50, :60, 1].astype(np.float32)
    got = ran(export_onnx(upscaler(scale, True), tmp_path / "up.onnx"), torch.from_numpy(y)[None, None])
    smaller = np.asarray(Image.fromarray(got[0, 0]).resize((60, 50), Image.Resampling.BICUBIC))
    assert np.abs(smaller - y)[3:-3, 3:-3].max() < 1e-3


# -- the file -----------------------------------------------------------------------------------------------------------


def test_the_file_tells_what_it_is(tmp_path: Path) -> None:
    path = export_onnx(tiny_classifier(figures={"test_error": 1.5}), tmp_path / "tiny.onnx")
    model = onnx.load(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["classes"]) == list(CLASSES)
    assert metadata["name"] == model.graph.name == "tiny"
    assert (metadata["kind"], metadata["image_size"], metadata["figures"]) == ("ImageClassifier", "12", '{"test_error": 1.5}')
    assert "from 0 to 1" in metadata["description"]
    assert model.doc_string == metadata["description"]
    assert model.producer_name == "sckn"
    session = onnxruntime.InferenceSession(str(path))
    assert [(each.name, each.shape) for each in session.get_inputs()] == [("images", ["batch", 3, 12, 12])]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [("scores", ["batch", 3])]
    session = onnxruntime.InferenceSession(str(export_onnx(tiny_upscaler(3), tmp_path / "up.onnx", name="mine")))
    properties = session.get_modelmeta().custom_metadata_map
    assert (properties["name"], properties["scale"], properties["context"]) == ("mine", "3", str(tiny_upscaler(3).reach))
    assert session.get_inputs()[0].shape == ["batch", 1, "height", "width"]
    assert session.get_outputs()[0].shape == ["batch", 1, "3 * height", "3 * width"]


def test_tiles_with_the_context_it_tells_leave_no_trace(tmp_path: Path) -> None:
    path = export_onnx(upscaler(2, False), tmp_path / "up.onnx")
    y = torch.from_numpy(photo("coffee")[:90, :30, 0].astype(np.float32))[None, None]
    context = int(onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["context"])
    assert 20 + context < 90
    whole, upper = ran(path, y), ran(path, y[:, :, : 20 + context])
    assert np.abs(upper[:, :, :40] - whole[:, :, :40]).max() < 1e-3
    assert np.abs(ran(path, y[:, :, :20])[:, :, :40] - whole[:, :, :40]).max() > 1e-2


class Own(kernels.Kernel):
    """A kernel of one's own."""

    def __call__(self, u: torch.Tensor) -> torch.Tensor:
        return u**2

    def derivative(self, u: torch.Tensor) -> torch.Tensor:
        return 2 * u


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    with pytest.raises(ValueError, match="a CKN cannot be exported: it does not say what images it takes"):
        export_onnx(classifier.model.network, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="a KernelModel cannot be exported"):
        export_onnx(classifier.model, tmp_path / "a.onnx")
    own = tiny_classifier(config=NetworkConfig(3, (LayerConfig(4, 3, kernel=Own()),)))
    with pytest.raises(ValueError, match=r"the kernel .*Own.* cannot be exported; only the kernels of sckn\.kernels can"):
        export_onnx(own, tmp_path / "a.onnx")
    assert not files_in(tmp_path)


def test_a_file_that_would_differ_is_refused(tmp_path: Path) -> None:
    content = export_onnx(tiny_classifier(), tmp_path / "a.onnx").read_bytes()
    other = tiny_classifier()
    with torch.no_grad():
        other.model.bias.add_(1e-3 * other.model.weights.abs().max())
    with pytest.raises(ValueError, match=r"would differ from the model itself by .*, and was not written"):
        _check_result(content, other, torch.rand(2, 3, 12, 12))


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tiny_classifier(), tmp_path / "model.safetensors")


def test_the_command(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "out.onnx"
    text = printed(capsys, monkeypatch, "export", checkpoint, target)
    assert text == f"{target}: {target.stat().st_size / 1e6:.1f} MB, checked with onnxruntime\n"
    assert files_in(target.parent) == {"out.onnx"}
    assert agrees(ran(target, small_photos(12)), tiny_classifier().predict(small_photos(12)))
    save(tiny_upscaler(), tmp_path / "up.safetensors")
    printed(capsys, monkeypatch, "export", tmp_path / "up.safetensors", target)
    assert onnx.load(target).graph.name == "up"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("model.safetensors", "out.pt"), "out.pt must be an ONNX file; give a name that ends in .onnx"),
        (
            ("model.safetensors", "folder.onnx"),
            "folder.onnx is a folder; give the name of a file, such as folder.onnx/model.onnx",
        ),
        (("model.safetensors", "model.safetensors"), "must be an ONNX file"),
        (
            ("model.safetensors", "model.safetensors/out.onnx"),
            "model.safetensors/out.onnx cannot be written (a file is in",
        ),
        (("network.safetensors", "out.onnx"), "a CKN cannot be exported"),
        (("nothing.safetensors", "out.onnx"), "nothing.safetensors does not exist"),
        (("folder.onnx", "out.onnx"), "folder.onnx holds no finished training"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: tuple[str, str],
    expected: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    save(tiny_classifier().model.network, tmp_path / "network.safetensors")
    before = files_in(tmp_path)
    assert expected in sentence(capsys, monkeypatch, "export", *arguments)
    assert files_in(tmp_path) == before


def test_a_full_disk_leaves_the_old_file(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")
    with files_limited_to(2000):
        text = sentence(capsys, monkeypatch, "export", checkpoint, target)
    assert text == f"{target} cannot be written (File too large); the file that was there is intact"
    assert target.read_bytes() == b"old"
    assert files_in(tmp_path) == {"out.onnx", "model.safetensors"}


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_extra_it_says_what_to_install(
    missing: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    text = sentence(capsys, monkeypatch, "export", checkpoint, tmp_path / "out.onnx")
    assert text == f"an ONNX file needs {missing}; install it with pip install 'sckn[onnx]'"
    assert files_in(tmp_path) == {"model.safetensors"}
