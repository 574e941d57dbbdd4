"""Models by name: where they are looked for, and what is said where they are not."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import skimage
from hatchling.builders.wheel import WheelBuilder
from PIL import Image
from tiny_classifier import CLASSES, tiny_classifier

from sckn import CheckpointError, ImageClassifier, Upscaler, load, save, shipped
from sckn.demo.photo import PHOTO
from sckn.results import read_result
from sckn.shipped import SHIPPED, find_shipped
from sckn.superres.evaluation import measure_upscaling
from sckn.superres.photos import read_luminance

ROOT = Path(__file__).parents[1]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders in the place of those of the package and the repository."""
    for folder in ("package", "repository/models", "one", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "repository" / "pyproject.toml").write_text("")
    monkeypatch.setattr(shipped, "IN_PACKAGE", tmp_path / "package")
    monkeypatch.setattr(shipped, "IN_REPOSITORY", tmp_path / "repository" / "models")
    monkeypatch.delenv("SCKN_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("folder", ["package", "repository/models", "other"])
def test_a_model_is_found_by_its_name(folder: str, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCKN_MODELS", os.pathsep.join([str(places / "one"), str(places / "other")]))
    save(tiny_classifier(), places / folder / "cifar10.safetensors", half=True)
    model = load("cifar10")
    assert isinstance(model, ImageClassifier)
    assert model.classes == CLASSES


def test_folders_come_in_their_order(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCKN_MODELS", str(places / "one"))
    folders = [places / "one", places / "package", places / "repository" / "models"]
    for folder in reversed(folders):
        (folder / "a-model.safetensors").write_text("")
        assert find_shipped("a-model") == folder / "a-model.safetensors"


def test_a_file_comes_before_a_model_of_that_name_and_that_before_a_folder(places: Path) -> None:
    save(tiny_classifier(), places / "package" / "cifar10.safetensors")
    (places / "cifar10").mkdir()  # data, perhaps
    assert isinstance(load("cifar10"), ImageClassifier)
    (places / "cifar10").rmdir()
    save(tiny_classifier().model, places / "cifar10")
    assert not isinstance(load("cifar10"), ImageClassifier)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_that_is_not_here_is_named_with_what_to_do(name: str, places: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^the model {name} is not here; ") as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert "models/cifar10-512.safetensors from the repository" in SHIPPED["cifar10-512"]


@pytest.mark.parametrize("name", ["another", "../package/cifar10", "/etc/passwd", "", ".", "cifar10\n"])
def test_other_names_are_paths(name: str, places: Path) -> None:
    (places / "package" / "cifar10.safetensors").write_text("")
    assert find_shipped(name) is None
    with pytest.raises(
        CheckpointError, match=r"expected a checkpoint written by sckn\.save, or the name of a model|not a whole"
    ):
        load(name)


def test_beside_an_installed_package_is_no_repository(places: Path) -> None:
    (places / "repository" / "models" / "cifar10-512.safetensors").write_text("")
    assert find_shipped("cifar10-512") is not None
    (places / "repository" / "pyproject.toml").unlink()
    assert find_shipped("cifar10-512") is None


def test_the_wheel_has_the_models_and_the_picture_of_the_package_and_no_others() -> None:
    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert "sckn/models/README.md" in files
    assert "sckn/shipped.py" in files
    assert {"sckn/pictures/cat.png", "sckn/pictures/README.md"} <= files
    assert not [name for name in files if name.startswith("models/")]


# the result that it is of, the most megabytes that it may have
CLASSIFIERS = {"cifar10": ("cifar10-128", 5.0), "cifar10-512": ("cifar10-512", 22.0)}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_shipped_classifier_is_that_of_its_result(name: str) -> None:
    experiment, megabytes = CLASSIFIERS[name]
    file = find_shipped(name)
    assert file is not None
    assert file.stat().st_size <= megabytes * 1e6
    result = read_result(ROOT / "results" / f"{experiment}.json")
    classifier = load(name)
    assert isinstance(classifier, ImageClassifier)
    assert classifier.experiment == result["config"]
    assert classifier.figures["test_error"] == result["runs"][0]["test_error"]
    # the card's figure was measured with this file on a CPU
    measured = re.search(r"This file: test error ([\d.]+) %", file.with_suffix(".md").read_text())
    assert measured is not None
    assert abs(float(measured[1]) - result["runs"][0]["test_error"]) <= 0.1


# Their PSNR on the photograph of the demonstration when their cards were written.
UPSCALERS = {
    "superres-x2": 36.840,
    "superres-x3": 33.680,
    "superres-x4": 32.093,
    "superres-x2-fast": 36.724,
    "superres-x3-fast": 33.607,
    "superres-x4-fast": 32.064,
}


@pytest.mark.parametrize("name", UPSCALERS)
def test_a_shipped_upscaler_is_that_of_its_result(name: str) -> None:
    file = find_shipped(name)
    assert file is not None
    result, upscaler = read_result(ROOT / "results" / f"{name}.json"), load(name)
    assert isinstance(upscaler, Upscaler)
    settings = result["config"]
    assert (upscaler.scale, upscaler.config.low_resolution) == (settings["scale"], settings["low_resolution"])
    assert upscaler.model.network.config.to_dict() == settings["network"]
    # the card's figures were measured with this file on a CPU
    card = file.with_suffix(".md").read_text()
    for test_set, psnr in result["psnr"].items():
        measured = re.search(rf"^\| {test_set} \| ([\d.]+) \|", card, flags=re.MULTILINE)
        assert measured is not None
        assert abs(float(measured[1]) - psnr) <= 0.01


@pytest.mark.parametrize("name", UPSCALERS)
def test_a_shipped_upscaler_does_better_than_interpolation(name: str) -> None:
    """On a photograph that it did not learn from."""
    upscaler = load(name)
    assert isinstance(upscaler, Upscaler)
    photo = read_luminance(PHOTO)
    found, plain = (measure_upscaling(photo, upscaler.scale, by) for by in (upscaler.upscale_luminance, None))
    assert found.psnr > plain.psnr + 0.5
    assert found.ssim > plain.ssim
    assert found.psnr == pytest.approx(UPSCALERS[name], abs=0.01), "not its figures any more: score and ship it anew"


def test_shipped_upscalers_are_small() -> None:
    files = [file for file in map(find_shipped, shipped.UPSCALERS) if file is not None]
    assert len(files) == len(shipped.UPSCALERS) == len(UPSCALERS)
    assert sum(file.stat().st_size for file in files) <= 10e6


def test_the_classifier_knows_a_cat() -> None:
    classifier = load("cifar10")
    assert isinstance(classifier, ImageClassifier)
    photo = Image.fromarray(skimage.data.chelsea()).resize((32, 32), Image.Resampling.BOX)
    scores = classifier.predict(np.asarray(photo).transpose(2, 0, 1)[None])
    assert classifier.classes[int(scores.argmax())] == "cat"
