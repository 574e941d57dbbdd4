"""The README says what is true: its table is that of results/ (its code is run by test_documented_code.py)."""

import json
import re
from pathlib import Path

import pytest

from sckn.network import NetworkConfig
from sckn.training.experiment import Experiment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ROW = r"^\| (cifar10-\S+) \| [^|]* \| ([\d.]+)(?: ± ([\d.]+))? \| [^|]* \| (\d+) \| (\d+) \|$"
ROWS = re.findall(ROW, README, flags=re.MULTILINE)


@pytest.mark.parametrize(("name", "error", "deviation", "seeds", "seconds"), ROWS)
def test_the_table_is_that_of_the_results(name: str, error: str, deviation: str, seeds: str, seconds: str) -> None:
    result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    assert error == f"{result['test_error']:.2f}"
    assert deviation == ("" if result["deviation"] is None else f"{result['deviation']:.2f}")
    assert int(seeds) == len(result["seeds"])
    assert seconds == f"{result['seconds']:.0f}"


def test_every_result_is_in_the_table_and_has_its_experiment() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(path.stem for path in (ROOT / "results").glob("cifar10-*.json"))
    assert all((ROOT / "experiments" / f"{row[0]}.toml").exists() for row in ROWS)


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_results_are_those_of_the_experiments_as_they_stand(name: str) -> None:
    settings = Experiment.from_toml(ROOT / "experiments" / f"{name}.toml").to_dict()
    config = json.loads((ROOT / "results" / f"{name}.json").read_text())["config"]
    # settings that a layer did not have then are at their defaults, which change nothing
    config["network"] = NetworkConfig.from_dict(config["network"]).to_dict()
    assert json.loads(json.dumps(settings)) == json.loads(json.dumps(config))


def test_the_map_names_every_module() -> None:
    described = set(re.findall(r"`sckn/(\w+)(?:\.py|/)`", README))
    modules = {path.stem for path in (ROOT / "sckn").iterdir() if path.name != "__init__.py" and path.suffix in (".py", "")}
    assert described == modules - {"__pycache__"}


def test_committed_results_keep_the_contract() -> None:
    fields = {"name", "dataset", "config", "seeds", "code_version", "machine", "seconds", "command"}
    for path in (ROOT / "results").glob("*.json"):
        result = json.loads(path.read_text())
        assert fields <= set(result), path.name
        assert result["name"] == path.stem
