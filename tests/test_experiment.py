"""Experiments from a TOML file to a result, on a small data set that the tests make."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sckn import cli
from sckn.data.labelled import LabelledImages
from sckn.training import experiment as experiments
from sckn.training import without_labels as module
from sckn.training.experiment import Experiment
from sckn.training.without_labels import run_without_labels
from sckn.whitening import local_whitening

TOML = """
name = "tiny"
dataset = "cifar10"
seeds = [0, 1]
patches = 500
iterations = 3
lambda_exponents = [0, 4, 8]

[network]
in_channels = 3

[[network.layers]]
filters = 8
patch = 3
subsampling = 2.0
"""


def striped(count: int, seed: int) -> LabelledImages:
    """Class 0 has horizontal stripes, class 1 vertical ones, class 2 a checkerboard; all have noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    row, column = np.indices((12, 12))
    patterns = np.stack([row % 2, column % 2, (row + column) % 2])
    images = 100 * patterns[labels][:, None] + random.integers(0, 100, (count, 3, 12, 12))
    return LabelledImages(images.astype(np.uint8), labels.astype(np.int64))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


@pytest.mark.parametrize("decorrelation", ["features", "channels"])
def test_an_experiment_learns_and_repeats_itself(tiny: Path, decorrelation: str) -> None:
    settings = replace(Experiment.from_toml(tiny), decorrelation=decorrelation)
    reports = run_without_labels(settings, tiny.parent, torch.device("cpu"))
    assert [report.seed for report in reports] == [0, 1]
    assert all(report.test_error is not None and report.test_error < 20 for report in reports)  # guessing gives 67
    again = run_without_labels(settings, tiny.parent, torch.device("cpu"))
    assert [report.validation_errors for report in again] == [report.validation_errors for report in reports]
    assert [report.test_error for report in again] == [report.test_error for report in reports]


def test_the_test_set_is_not_looked_at_for_validation(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Experiment.from_toml(tiny)
    with_test = run_without_labels(settings, tiny.parent, torch.device("cpu"))
    spoilt = LabelledImages(np.zeros((60, 3, 12, 12), np.uint8), np.zeros(60, np.int64))
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), spoilt))
    other = run_without_labels(settings, tiny.parent, torch.device("cpu"))
    assert [report.validation_errors for report in other] == [report.validation_errors for report in with_test]
    assert [report.lambda_exponent for report in other] == [report.lambda_exponent for report in with_test]


def recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """The arguments given by position to a function of the module, call by call; it still does its work."""
    calls: list[tuple[Any, ...]] = []
    function = getattr(module, name)

    def wrapped(*arguments: Any, **settings: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **settings)

    monkeypatch.setattr(module, name, wrapped)
    return calls


def test_lambda_is_per_sample_of_the_set_fitted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last model sees all 150 images, so its lambda is 2^i/150; the choice was made with 120 of them."""
    choices, fits = recorded(monkeypatch, "validation_errors"), recorded(monkeypatch, "fit_linear")
    reports = run_without_labels(Experiment.from_toml(tiny), tiny.parent, torch.device("cpu"))
    assert [(len(features), kept) for features, _, kept, _ in choices] == [(150, 120)] * 2
    for report, (features, targets, regularization) in zip(reports, fits, strict=True):
        assert len(features) == len(targets) == 150
        assert regularization == 2.0**report.lambda_exponent / 150


def test_each_seed_holds_out_other_images(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All images are told apart by their labels, which are all different here; no model is fitted."""
    train, orders = striped(150, 0), []

    def shuffled(_features: Tensor, labels: Tensor, *_: Any, **__: Any) -> dict[int, float]:
        orders.append(labels.tolist())
        return {0: 0.0}

    numbered = LabelledImages(train.images, np.arange(150))
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (numbered, numbered))
    monkeypatch.setattr(module, "validation_errors", shuffled)
    for seeds in ((0, 1), (0,)):
        run_without_labels(replace(Experiment.from_toml(tiny), seeds=seeds), tiny.parent, torch.device("cpu"), test=False)
    assert orders[0] == orders[2]
    held_out = [set(order[120:]) for order in orders[:2]]
    assert len(held_out[0] & held_out[1]) < 20  # 6 of 30 by chance
    assert all(sorted(order) == list(range(150)) and order != list(range(150)) for order in orders)


@pytest.mark.parametrize("power", [0.0, 0.1, 0.25, 0.5])
def test_images_are_whitened_with_the_power_of_the_experiment(
    tiny: Path, power: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, encoded = recorded(monkeypatch, "fit_unsupervised"), recorded(monkeypatch, "encode")
    settings = replace(Experiment.from_toml(tiny), seeds=(0,), whitening_power=power)
    run_without_labels(settings, tiny.parent, torch.device("cpu"))
    for images, seen in ((striped(150, 0).images, trained[0][1]), (striped(60, 1).images, encoded[1][1])):
        parts = torch.from_numpy(images).double() / 255
        expected = local_whitening(parts, power=power) if power else parts
        torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_command_writes_the_contract_of_a_result(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tiny.parent / "results"
    monkeypatch.setattr(sys, "argv", ["sckn", "train", str(tiny), "--data", "here", "--results", str(results)])
    cli.main()
    result = json.loads((results / "tiny.json").read_text())
    expected = {
        "name",
        "dataset",
        "test_error",
        "deviation",
        "config",
        "seeds",
        "code_version",
        "machine",
        "seconds",
        "command",
    }
    assert expected | {"command"} <= set(result)
    assert result["test_error"] == pytest.approx(np.mean([run["test_error"] for run in result["runs"]]), abs=1e-3)
    assert result["deviation"] == pytest.approx(np.std([run["test_error"] for run in result["runs"]], ddof=1), abs=1e-3)
    assert result["config"]["network"]["layers"][0]["filters"] == 8


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = 3 =", "is not valid TOML"),
        ('name = "x"', "lacks dataset, network"),
        (TOML.replace("patches", "pathces"), "unknown settings: pathces"),
        (TOML.replace("cifar10", "imagenet"), "dataset must be 'cifar10' or 'cifar100' or 'svhn' or 'folder', got 'imagenet'"),
        (TOML.replace("filters = 8", "filters = 0"), "filters must be a whole number"),
        (TOML.replace("filters = 8", "fitlers = 8"), "layer 1 of the network has unknown settings: fitlers; the settings are"),
        (TOML.replace("filters = 8\n", ""), "layer 1 of the network lacks filters; the settings are dropout, epsilon, filters"),
        (TOML.replace("seeds = [0, 1]", "seeds = [1, 1]"), "seeds must differ from each other, got [1, 1]"),
        (TOML[: TOML.index("[[network")] + "layers = 3", "layers is a list of tables, one a layer, got 3"),
        (TOML.replace("iterations = 3", 'decorrelation = "all"'), "decorrelation must be"),
        (TOML.replace("iterations = 3", "validation = 1.5"), "validation must be"),
        (TOML.replace("iterations = 3", "selection_epochs = 3"), "selection_epochs belongs to experiments with a recipe"),
        (TOML.replace("iterations = 3", "tolerance = 0.5") + "[recipe]", "tolerance has no effect beside a recipe"),
        (TOML.replace("iterations = 3", "extra = true"), "extra has no effect on the data set 'cifar10'; remove it"),
        (TOML.replace("iterations = 3", "image_size = 20"), "image_size has no effect on the data set 'cifar10'; remove it"),
        (TOML.replace("iterations = 3", 'extra = "yes"').replace("cifar10", "svhn"), "extra must be true or false, got 'yes'"),
        (TOML.replace("iterations = 3", "image_size = 3").replace("cifar10", "folder"), "of at least 4, got 3"),
        (TOML.replace("iterations = 3", "image_size = 0").replace("cifar10", "folder"), "image_size must be a whole number"),
        (TOML + "[recipe]\nepocs = 3", "unknown settings: epocs"),
        (TOML + "[recipe]\nmomentum = 1.5", "momentum must be a number of at least 0 and below 1"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    tiny: Path, text: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(text)
    monkeypatch.setattr(sys, "argv", ["sckn", "train", str(tiny), "--data", "here", "--results", str(tiny.parent / "results")])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    error = capsys.readouterr().err
    assert complaint in error
    assert error.startswith("sckn: ")
    assert error.count("\n") == 1
    assert not (tiny.parent / "results").exists()


@pytest.mark.parametrize(
    ("dataset", "setting", "own"),
    [("cifar100", "", {}), ("svhn", "extra = true", {"extra": True}), ("folder", "image_size = 9", {"image_size": 9})],
)
def test_settings_of_a_data_set_reach_its_reader(
    dataset: str, setting: str, own: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are settings of no other."""
    given: list[dict[str, Any]] = []

    def reader(folder: Path, **settings: Any) -> tuple[LabelledImages, LabelledImages]:
        given.append(settings)
        return striped(10, 0), striped(10, 1)

    monkeypatch.setitem(experiments.READERS, dataset, reader)
    (tmp_path / "tiny.toml").write_text(TOML.replace("cifar10", dataset).replace("iterations = 3", setting))
    settings = Experiment.from_toml(tmp_path / "tiny.toml")
    experiments.read_data(settings, tmp_path)
    assert given == [own]
    assert {name: value for name, value in settings.to_dict().items() if name in ("extra", "image_size")} == own


def test_an_experiment_on_a_folder_of_images(tmp_path: Path) -> None:
    """Stripes of three kinds in files; one file is no image."""
    images = striped(120, 0)
    for number, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        folder = tmp_path / "images" / ("across", "along", "both")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number:03}.png")
    (tmp_path / "images" / "along" / "notes.txt").write_text("not an image")
    (tmp_path / "tiny.toml").write_text(TOML.replace("cifar10", "folder").replace("seeds = [0, 1]", "image_size = 12"))
    with pytest.warns(UserWarning, match=r"1 of 121 images .*along/notes\.txt \(not an image of a known format\)"):
        (report,) = run_without_labels(Experiment.from_toml(tmp_path / "tiny.toml"), tmp_path / "images", torch.device("cpu"))
    assert report.test_error is not None
    assert report.test_error < 20


def test_a_missing_data_set_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    monkeypatch.setattr(sys, "argv", ["sckn", "train", str(path), "--data", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert "nowhere does not exist: expected data_batch_1.bin" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].glob("experiments/cifar10-*.toml")), ids=lambda path: path.stem
)
def test_the_experiments_that_ship_are_valid(path: Path) -> None:
    assert Experiment.from_toml(path).name == path.stem
