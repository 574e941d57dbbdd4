"""Each committed result is what its experiment in experiments/ says, as it stands there."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sckn.results import read_result
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.training.experiment import Experiment

ROOT = Path(__file__).parents[1]
PAIRS = [
    (experiment, ROOT / "results" / f"{experiment.stem}.json")
    for experiment in sorted(ROOT.glob("experiments/*.toml"))
    if (ROOT / "results" / f"{experiment.stem}.json").is_file()
]


def differences(written: Any, measured: Any, place: str = "") -> list[str]:
    """Settings that a result has otherwise, or has not."""
    if isinstance(written, dict) and isinstance(measured, dict):
        return [each for name in written for each in differences(written[name], measured.get(name), f"{place}.{name}")]
    if isinstance(written, list) and isinstance(measured, list) and len(written) == len(measured):
        pairs = enumerate(zip(written, measured, strict=True))
        return [each for index, (one, other) in pairs for each in differences(one, other, f"{place}.{index}")]
    return [] if written == measured else [f"{place}: {written} in the experiment, {measured} in the result"]


@pytest.mark.parametrize(("experiment", "result"), PAIRS, ids=[result.stem for _, result in PAIRS])
def test_a_result_is_of_the_settings_in_its_experiment(experiment: Path, result: Path) -> None:
    settings = tomllib.loads(experiment.read_text())
    kind = UpscalingExperiment if is_upscaling_experiment(experiment) else Experiment
    network = kind.from_toml(experiment).network.to_dict()
    measured = read_result(result)["config"]
    # of a layer the result has all settings that there were when it was measured
    named = {name for layer in settings["network"]["layers"] for name in layer}
    named |= set(settings["network"].get("every_layer", {}))
    layers = [{name: layer[name] for name in named} for layer in network["layers"]]
    settings["network"] = {"in_channels": network["in_channels"], "layers": layers}
    assert differences(settings, measured) == []


def test_most_experiments_have_a_result() -> None:
    assert len(PAIRS) >= 16
