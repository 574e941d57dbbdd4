"""The card of a model says what its result and its evaluation say; shipping writes both files."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_data import write_image
from tiny_classifier import files_in, tiny_classifier

from sckn import ImageClassifier, load, save
from sckn.data.folder import read_folder
from sckn.evaluation import Evaluation, evaluate
from sckn.modelcard import model_card

ROOT = Path(__file__).parents[1]
EVALUATION = Evaluation(("cat", "dog", "a bird"), np.array([[40, 10, 0], [0, 50, 0], [0, 0, 0]]))


def result(**changes: Any) -> dict[str, Any]:
    network = {"layers": [{"filters": 6}, {"filters": 5}, {"filters": 4}]}
    return {
        "name": "tiny",
        "dataset": "cifar10",
        "test_error": 11.111,
        "deviation": 0.25,
        "config": {"network": network, "recipe": {"flip": False, "shift": 0}, "validation": 0.2},
        "seeds": [0, 1, 2],
        "machine": {"accelerator": "A GPU"},
        "seconds": 7200,
        "command": "sckn train experiments/tiny.toml --data DIR",
        **changes,
    }


def test_the_card_says_what_is_known() -> None:
    card = model_card("cifar10", tiny_classifier(), EVALUATION, result(), 1_234_567)
    parts = [
        "# cifar10\n",
        "3 classes: cat, dog, a bird.",
        "sckn.load('cifar10')",
        "1.2 MB",
        "CIFAR-10 (Krizhevsky, 2009)",
        "whitened locally (power 0.25)",
        "There is no augmentation.",
        "3 layers of 6, 5, 4 filters.",
        "`sckn train experiments/tiny.toml --data DIR` trains it, 2.0 hours on A GPU for 3 seeds.",
        "chooses lambda on 20 % of the training set",
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
    config = {**result()["config"], "recipe": recipe}
    other = result(config=config, seeds=[0], deviation=None, seconds=600, machine={"accelerator": None})
    card = model_card("x", tiny_classifier(), EVALUATION, other, 1)
    assert "In training they are mirrored and shifted by up to 4 pixels at random." in card
    assert "10 minutes on a CPU for one seed" in card
    assert "one seed: 11.11 %" in card


def test_a_result_of_another_training_is_refused() -> None:
    with pytest.raises(ValueError, match="comes from the experiment 'tiny', but the result is that of 'other'"):
        model_card("x", tiny_classifier(), EVALUATION, result(name="other"), 1)


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
    places = [str(tmp_path / name) for name in ("run", "tiny.json", "data")]
    monkeypatch.setattr(sys, "argv", ["ship_model.py", "small", *places, "--folder", str(tmp_path / "models")])
    runpy.run_path(str(ROOT / "experiments" / "ship_model.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{tmp_path}/models/small.safetensors: 0.0 MB")
    assert files_in(tmp_path / "models") == {"small.safetensors", "small.md"}
    shipped = load(tmp_path / "models" / "small.safetensors")
    assert isinstance(shipped, ImageClassifier)
    assert shipped.description() == classifier.description()
    _, test = read_folder(tmp_path / "data", 12)
    assert f"test error {evaluate(shipped, test).error:.2f} %" in (tmp_path / "models" / "small.md").read_text()
