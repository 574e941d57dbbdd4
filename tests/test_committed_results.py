"""Each committed result is what its experiment in experiments/ says, as it stands there, and holds what a result is to hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from sckn.network import NetworkConfig
from sckn.published import CLASSIFICATION, SUPERRES_PSNR, Measured
from sckn.results import read_result
from sckn.superres.experiment import UpscalingExperiment, is_about_upscaling
from sckn.training.experiment import Experiment
from sckn.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "results").glob("*.json"))
# Those in the paper's tables have an experiment of their name.
SHOWN = {
    figure.result
    for table in (CLASSIFICATION, SUPERRES_PSNR)
    for group in table.groups
    for row in group
    for figure in row.figures
    if isinstance(figure, Measured)
}
OF_EXPERIMENTS = [path for path in RESULTS if path.stem in SHOWN]
# Settings that there were, and the value with which they changed nothing.
RETIRED = {"contrast_floor": 0.0}


def kind_of(settings: dict[str, Any]) -> type[Experiment | UpscalingExperiment]:
    return UpscalingExperiment if is_about_upscaling(settings) else Experiment


def with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """All settings that there are now: those that there were not when it was measured are at defaults, which change nothing."""
    known = {name: value for name, value in settings.items() if RETIRED.get(name) != value}
    config: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    config["network"] = NetworkConfig.from_dict(config["network"])
    if config.get("recipe") is not None:
        config["recipe"] = Recipe.from_dict(config["recipe"])
    return kind_of(settings)(**config).to_dict()


@pytest.mark.parametrize("result", OF_EXPERIMENTS, ids=[path.stem for path in OF_EXPERIMENTS])
def test_a_result_is_of_the_settings_in_its_experiment(result: Path) -> None:
    measured = read_result(result)["config"]
    settings = kind_of(measured).from_toml(ROOT / "experiments" / f"{result.stem}.toml").to_dict()
    assert json.loads(json.dumps(with_defaults(measured))) == json.loads(json.dumps(settings))


def test_every_result_of_an_experiment_is_in_a_table() -> None:
    of_data_sets = [path.stem for path in RESULTS if path.stem.split("-")[0] in ("cifar10", "svhn", "superres")]
    assert set(of_data_sets) - {"superres-bicubic"} == {path.stem for path in OF_EXPERIMENTS}


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_a_result_keeps_the_contract(path: Path) -> None:
    fields = {"name", "dataset", "config", "seeds", "code_version", "machine", "seconds", "command"}
    result = json.loads(path.read_text())
    assert fields <= set(result)
    assert result["name"] == path.stem
