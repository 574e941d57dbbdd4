"""The README says what is true: its table is that of results/ (its code is run by test_documented_code.py)."""

import json
import re
import runpy
from pathlib import Path

import pytest

from sckn.network import NetworkConfig
from sckn.published import CLASSIFICATION, Measured
from sckn.training.experiment import Experiment
from sckn.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = sorted(path.stem for data in ("cifar10", "svhn") for path in (ROOT / "results").glob(f"{data}-*.json"))


def test_the_tables_are_those_of_the_results(tmp_path: Path) -> None:
    with_tables = runpy.run_path(str(ROOT / "experiments" / "readme_tables.py"))["with_tables"]
    assert "| sckn, 9 layers of 128 filters | 11." in README
    assert with_tables(README, ROOT / "results") == README, "run python experiments/readme_tables.py"
    assert "sckn, 9 layers of 128" not in with_tables(README, tmp_path)  # no result, no row


def test_every_result_is_in_the_table_and_has_its_experiment() -> None:
    figures = [figure for rows in CLASSIFICATION.groups for row in rows for figure in row.figures]
    assert set(RESULTS) <= {figure.result for figure in figures if isinstance(figure, Measured)}
    assert all((ROOT / "experiments" / f"{name}.toml").exists() for name in RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_the_experiments_as_they_stand(name: str) -> None:
    settings = Experiment.from_toml(ROOT / "experiments" / f"{name}.toml").to_dict()
    config = json.loads((ROOT / "results" / f"{name}.json").read_text())["config"]
    # settings that there were not then are at their defaults, which change nothing
    config["network"] = NetworkConfig.from_dict(config["network"]).to_dict()
    if config.get("recipe") is not None:
        config["recipe"] = Recipe.from_dict(config["recipe"]).to_dict()
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
