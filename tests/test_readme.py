"""The README says what is true: its table is that of results/ (its code is run by test_documented_code.py)."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tables_are_those_of_the_results(tmp_path: Path) -> None:
    with_tables = runpy.run_path(str(ROOT / "experiments" / "readme_tables.py"))["with_tables"]
    assert "| sckn, 9 layers of 128 filters | 11." in README
    assert with_tables(README, ROOT / "results") == README, "run python experiments/readme_tables.py"
    assert "sckn, 9 layers of 128" not in with_tables(README, tmp_path)  # no result, no row


def test_the_map_names_every_module() -> None:
    described = set(re.findall(r"`sckn/(\w+)(?:\.py|/)`", README))
    modules = {path.stem for path in (ROOT / "sckn").iterdir() if path.name != "__init__.py" and path.suffix in (".py", "")}
    assert described == modules - {"__pycache__"}


@pytest.mark.parametrize("package", ["data", "demo", "export", "fused", "superres", "training", "web"])
def test_the_map_names_every_module_of_the_larger_packages(package: str) -> None:
    described = set(re.findall(r"`(\w+\.py)`", README))
    assert {path.name for path in (ROOT / "sckn" / package).glob("*.py")} - {"__init__.py"} <= described
