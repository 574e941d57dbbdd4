"""The card of a model says what its result and its evaluation say; shipping writes both files."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_data import write_image
from test_superres_scripts import write_noise
from tiny_classifier import files_in, tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn import ImageClassifier, Upscaler, load, save
from sckn.data.folder import read_folder
from sckn.evaluation import Evaluation, evaluate
from sckn.modelcard import classifier_card, upscaler_card
from sckn.published import SETS
from sckn.superres.evaluation import evaluate_upscaling

ROOT = Path(__file__).parents[1]
EVALUATION = Evaluation(("cat", "dog", "a bird"), np.array([[40, 10, 0], [0, 50, 0], [0, 0, 0]]))


def result(**changes: Any) -> dict[str, Any]:
    network = {"layers": [{"filters": 6}, {"filters": 5}, {"filters": 4}]}
    return {
        "name": "tiny",
        "dataset": "cifar10",
        "test_error": 11.111,
        "deviation": 0.25,
        "config": {"network": network, "recipe": {"flip": False, "shift": 0}, "validation": 0.2, "lambda_exponents": [1, 2]},
        "seeds": [0, 1, 2],
        "machine": {"accelerator": "A GPU"},
        "seconds": 7200,
        "command": "sckn train experiments/tiny.toml --data DIR",
        **changes,
    }


def test_the_card_says_what_is_known() -> None:
    card = classifier_card("cifar10", tiny_classifier(), EVALUATION, result(), 1_234_567)
    parts = [
        "# cifar10\n",
        "3 classes: cat, dog, a bird.",
        'sckn.load("cifar10")',
        "1.2 MB",
        "CIFAR-10 (Krizhevsky, 2009)",
        "whitened locally (power 0.25)",
        "There is no augmentation.",
        "3 layers of 6, 5, 4 filters.",
        "`sckn train experiments/tiny.toml --data DIR` trains it, 2.0 hours on A GPU for 3 seeds.",
        "It chooses lambda on 20 % of the training set, held out. The test set is looked at once",
        "This file: test error 10.00 %, 10 of 100 images wrong; the 95 % interval is 5.52 to 17.44 %.",
        "The training, 3 seeds: 11.11 ± 0.25 % (`results/tiny.json`).",
        "| cat | 20.00 |\n| dog | 0.00 |\n| a bird | - |",
        "12 x 12 pixels",
        "## Data\n",
        "## Recipe\n",
        "## Figures\n",
        "## Limits\n",
        "## Licence\n",
    ]
    assert [part for part in parts if part not in card] == []


def test_other_trainings_read_otherwise() -> None:
    recipe = {"flip": True, "shift": 4}
    config = {**result()["config"], "recipe": recipe, "lambda_exponents": [1]}
    runs = [{"seconds": {"preparation": 1000.0, "choice of lambda": 0, "final training": 600.0, "test": 8000.0}}]
    other = result(config=config, seeds=[0], deviation=None, seconds=9600, runs=runs, machine={"accelerator": None})
    card = classifier_card("x", tiny_classifier(), EVALUATION, other, 1)
    assert "In training they are mirrored and shifted by up to 4 pixels at random." in card
    assert "10 minutes on a CPU for one seed. The test set" in card  # without preparation and test, and nothing to choose
    halving = {**config, "recipe": {**recipe, "schedule": "halving"}}
    card_of_halving = classifier_card("x", tiny_classifier(), EVALUATION, result(config=halving), 1)
    assert "It chooses the number of epochs on 20 % of the training set, held out. The test set" in card_of_halving
    assert "one seed: 11.11 %" in card


def test_a_result_of_another_training_is_refused() -> None:
    with pytest.raises(ValueError, match="comes from the experiment 'tiny', but the result is that of 'other'"):
        classifier_card("x", tiny_classifier(), EVALUATION, result(name="other"), 1)


def ship(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ship_model.py", *map(str, arguments)])
    runpy.run_path(str(ROOT / "experiments" / "ship_model.py"), run_name="__main__")


def test_shipping_writes_weights_and_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for number in range(10):
            write_image(tmp_path / "data" / name / f"{number}.png", tuple(random.integers(0, 256, 3).tolist()))
    experiment = {"dataset": "folder", "image_size": 12}
    classifier = tiny_classifier(experiment=experiment)
    save(classifier, tmp_path / "run" / "seed-0" / "final" / "classifier.safetensors")
    (tmp_path / "tiny.json").write_text(json.dumps(result(dataset="folder")))
    ship(monkeypatch, "small", *(tmp_path / name for name in ("run", "tiny.json", "data")), "--folder", tmp_path / "models")
    assert capsys.readouterr().out.startswith(f"{tmp_path}/models/small.safetensors: 0.0 MB")
    assert files_in(tmp_path / "models") == {"small.safetensors", "small.md"}
    shipped = load(tmp_path / "models" / "small.safetensors")
    assert isinstance(shipped, ImageClassifier)
    assert shipped.description() == classifier.description()
    _, test = read_folder(tmp_path / "data", 12)
    assert f"test error {evaluate(shipped, test).error:.2f} %" in (tmp_path / "models" / "small.md").read_text()


FIGURES = {
    "psnr": {"Set5": 36.125, "Set14": 32.5, "Kodak": 33.0},
    "ssim": {"Set5": 0.9512, "Set14": 0.9, "Kodak": 0.91},
    "bicubic_psnr": {"Set5": 33.66, "Set14": 30.23, "Kodak": 30.84},
    "bicubic_ssim": {"Set5": 0.9299, "Set14": 0.8689, "Kodak": 0.8684},
}


def upscaling_result(**changes: Any) -> dict[str, Any]:
    config = {
        "name": "superres-tiny",
        "scale": 2,
        "network": {"layers": [{"filters": 4}]},
        "recipe": {"epochs": 7},
        "samples": 200_000,
        "patch": 32,
        "validation_photos": 25,
    }
    quality = {"validation": {"psnr": 31.234, "ssim": 0.87654}, "bicubic": {"psnr": 29.5, "ssim": 0.8}}
    given = {**quality, "photos": 474, "name": "superres-tiny", "dataset": "bsds500", "config": config, "seeds": [0]}
    return {**result(), **given, **FIGURES, **changes}


def test_the_card_of_an_upscaler_says_what_is_known() -> None:
    card = upscaler_card("superres-x2", tiny_upscaler(), None, upscaling_result(x3=FIGURES), 1_234_567)
    parts = [
        "# superres-x2\n",
        "makes photographs 2 times larger. It works on the small image",
        'sckn.load("superres-x2")',
        "1.2 MB",
        "BSDS500 (Arbelaez et al., 2011)",
        "learned from 474 of them, 200,000 patches of 32 x 32 pixels an epoch; 25 were held out.",
        "1 layer of 4 filters. `experiments/superres-tiny.toml` has all settings;",
        "2.0 hours on A GPU for one seed. The square loss, 7 epochs.",
        "(`results/superres-tiny.json`):\n\n",
        "\n\n| test set | PSNR | bicubic | SSIM | bicubic |\n| --- | ---: | ---: | ---: | ---: |\n| Set5 ",
        "| Set5 | 36.12 | 33.66 | 0.9512 | 0.9299 |\n| Set14 | 32.50 | 30.23 | 0.9000 | 0.8689 |\n",
        "At x3, by using it twice",
        "On the photographs held out, at the end of the training: PSNR 31.23 (bicubic 29.50), SSIM 0.8765 (bicubic 0.8000).",
        "## Limits\n",
        "## Licence\n\nThe weights are under the BSD 3-Clause licence",
    ]
    assert [part for part in parts if part not in card] == []
    assert card.count("| Kodak | 33.00 |") == 2


def test_the_card_says_what_a_training_began_with() -> None:
    given = upscaling_result()
    for start, sentence in (
        ("superres-tiny-fast", "It began with the filters of `superres-tiny-fast`, whose own training is not in that time."),
        (
            {"name": "narrow", "recipe": {"epochs": 3}, "network": {"layers": [{"filters": 2}]}},
            "It began with a network that was trained first, in that time, too: 3 epochs of `narrow`, 1 layer of 2 filters.",
        ),
    ):
        begun = {**given, "config": {**given["config"], "start": start}}
        assert sentence in upscaler_card("x", tiny_upscaler(), None, begun, 1)
    assert "It began with" not in upscaler_card("x", tiny_upscaler(), None, given, 1)


def test_the_card_says_who_taught_a_network() -> None:
    given = upscaling_result()
    taught = {**given, "config": {**given["config"], "teacher": "superres-x2"}}
    assert "It learned from what `superres-x2` makes of 474 of them," in upscaler_card("x", tiny_upscaler(), None, taught, 1)


def test_the_card_says_how_patches_are_drawn_and_names_equal_layers_once() -> None:
    given = upscaling_result()
    settings = {"contrast_power": 1.0, "every_shift": True, "network": {"layers": [{"filters": 4}] * 3}}
    card = upscaler_card("x", tiny_upscaler(), None, {**given, "config": {**given["config"], **settings}}, 1)
    assert "an epoch, drawn by their contrast, with the grid of small pixels in every place; 25 were held out." in card
    assert "3 layers of 4 filters." in card
    assert not [line for line in card.splitlines() if line.endswith(" ")]


def test_an_upscaler_whose_own_file_was_measured() -> None:
    measured = {**FIGURES, "psnr": {"Set5": 36.11, "Set14": 32.4, "Kodak": 33.3}}
    unscored = {name: value for name, value in upscaling_result(validation=None, bicubic=None).items() if name not in FIGURES}
    card = upscaler_card("x", tiny_upscaler(), measured, unscored, 1)
    assert "of this file:" in card
    assert "| Set5 | 36.11 |" in card
    assert "At x3" not in card
    assert "On the photographs held out" not in card
    with pytest.raises(ValueError, match=r"results/superres-tiny\.json has no figures on the test sets yet; add them with"):
        upscaler_card("x", tiny_upscaler(), None, unscored, 1)


@pytest.fixture
def trained_upscaler(tmp_path: Path) -> Path:
    """A run folder, its result, and the test sets."""
    save(tiny_upscaler(), tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "config.json").write_text(json.dumps(upscaling_result()["config"]))
    (tmp_path / "tiny.json").write_text(json.dumps(upscaling_result()))
    for name in SETS:
        write_noise(tmp_path / "data" / name / "a.png", 40, 32)
    return tmp_path


@pytest.mark.parametrize("measured", [False, True])
def test_shipping_an_upscaler(
    measured: bool, trained_upscaler: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_upscaler
    data = [folder / "data"] if measured else []
    ship(monkeypatch, "small", folder / "run", folder / "tiny.json", *data, "--folder", folder / "models")
    assert capsys.readouterr().out.startswith(f"{folder}/models/small.safetensors: 0.0 MB")
    assert files_in(folder / "models") == {"small.safetensors", "small.md"}
    shipped = load(folder / "models" / "small.safetensors")
    assert isinstance(shipped, Upscaler)
    assert shipped.config == tiny_upscaler().config
    assert torch.equal(shipped.model.weights, tiny_upscaler().model.weights)
    filters, trained = (each.model.network.kernel_layers[0].filters for each in (shipped, tiny_upscaler()))
    assert torch.equal(filters, trained.half().float())
    quality = evaluate_upscaling(folder / "data" / "Set14", 2, shipped.upscale_luminance).quality
    figure = quality.psnr if measured else FIGURES["psnr"]["Set14"]
    assert f"| Set14 | {figure:.2f} |" in (folder / "models" / "small.md").read_text()


def test_what_cannot_be_shipped_leaves_nothing(trained_upscaler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained_upscaler
    places = [folder / "run", folder / "tiny.json"]
    (folder / "tiny.json").write_text(json.dumps(upscaling_result(config={"scale": 3})))
    with pytest.raises(SystemExit, match="the result is of other settings than"):
        ship(monkeypatch, "small", *places, "--folder", folder / "models")
    save(tiny_classifier(), folder / "run" / "classifier.safetensors")
    with pytest.raises(SystemExit, match="holds a classifier, whose figures are measured on its data set; give the folder"):
        ship(monkeypatch, "small", *places, "--folder", folder / "models")
    with pytest.raises(SystemExit, match="has no finished model"):
        ship(monkeypatch, "small", folder / "data", folder / "tiny.json", "--folder", folder / "models")
    assert not (folder / "models").exists()
