"""Results hold all that is needed to get them again, and name the code by its sources."""

import compileall
import importlib.util
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sckn
from sckn.results import add_to_result, code_version, machine, write_result


def written(folder: Path, **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "name": "nameless",
        "dataset": "cifar10",
        "figures": {"test_error": [20.5, 20.25], "sizes": {"features": 4608}},
        "config": {"filters": [64, 256], "whitening": True},
        "seeds": [0, 1],
        "seconds": 12.3456,
        "command": "sckn run x.toml",
    }
    return write_result(folder, **{**fields, **changes})


def strict(text: str) -> dict[str, Any]:
    """JSON as the standard has it, without Python's NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_all_is_there(tmp_path: Path) -> None:
    path = written(tmp_path, name="cifar10-small")
    assert path == tmp_path / "cifar10-small.json"
    content = strict(path.read_text())
    assert content == {
        "name": "cifar10-small",
        "dataset": "cifar10",
        "test_error": [20.5, 20.25],
        "sizes": {"features": 4608},
        "config": {"filters": [64, 256], "whitening": True},
        "seeds": [0, 1],
        "code_version": code_version(),
        "machine": machine(),
        "seconds": 12.35,
        "command": "sckn run x.toml",
    }


def test_it_reads_well(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert text.endswith("}\n")
    assert '\n  "dataset": "cifar10",\n' in text


def test_the_machine_is_this_one() -> None:
    found = machine()
    assert found["cores"] == os.cpu_count()
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert found["torch"] == torch.__version__
    assert found["processor"] == platform.machine()
    assert (found["accelerator"] is not None) == torch.cuda.is_available()


def test_a_folder_is_made_and_an_old_result_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "results"
    written(folder, seconds=1.0)
    path = written(folder, seconds=2.0)
    assert json.loads(path.read_text())["seconds"] == 2.0
    assert os.listdir(folder) == ["nameless.json"]


def test_what_json_cannot_hold_leaves_the_old_result(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_text()
    with pytest.raises(TypeError):
        written(tmp_path, figures={"test_error": torch.tensor(1.0)})
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["nameless.json"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_is_refused(tmp_path: Path, bad: float) -> None:
    """A figure that is none; and NaN is no JSON, so other programs could not read the file."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        written(tmp_path, figures={"test_error": bad})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("key", ["name", "dataset", "config", "seeds", "code_version", "machine", "seconds", "command"])
def test_a_figure_cannot_hide_a_field(tmp_path: Path, key: str) -> None:
    """Neither may the figure silently win over the field, nor be lost."""
    with pytest.raises(ValueError, match=key):
        written(tmp_path, figures={"test_error": 1.0, key: "mine"})
    assert os.listdir(tmp_path) == []


def copied(folder: Path) -> Path:
    """A copy of the package with its sources alone."""
    package = folder / "sckn"
    shutil.copytree(Path(sckn.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def version_of(package: Path) -> str:
    """What the copy says of itself."""
    spec = importlib.util.spec_from_file_location("copied_results", package / "results.py")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.code_version is not code_version
    return copy.code_version()


def test_the_code_version_depends_on_the_sources_and_on_nothing_else(tmp_path: Path) -> None:
    package = copied(tmp_path)
    first = version_of(package)
    assert first == code_version()  # not on the place
    assert first.startswith(sckn.__version__ + ", sources sha256:")
    compileall.compile_dir(package, quiet=2)
    assert len(list(package.rglob("*.pyc"))) > 5
    (package / "notes.txt").write_text("no source")
    os.utime(package / "kernels.py", (0, 0))
    assert version_of(package) == first


def test_the_code_version_changes_with_the_sources(tmp_path: Path) -> None:
    package = copied(tmp_path)
    versions = [version_of(package)]
    with (package / "kernels.py").open("a") as file:
        file.write("# one comment more\n")
    versions.append(version_of(package))
    (package / "data" / "cifar.py").rename(package / "data" / "cifar11.py")
    versions.append(version_of(package))
    (package / "training" / "unsupervised.py").unlink()
    versions.append(version_of(package))
    (package / "new.py").touch()
    versions.append(version_of(package))
    assert len(set(versions)) == len(versions)


def test_figures_are_added_to_a_result(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"name": "one", "psnr": 1, "config": {"a": 2}}))
    assert add_to_result(path, {"psnr": 3, "ssim": 4}) == path
    assert json.loads(path.read_text()) == {"name": "one", "psnr": 3, "config": {"a": 2}, "ssim": 4}
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        add_to_result(path, {"psnr": float("nan")})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, r"cannot be read \(No such file"), ("{", "cannot be read"), ("[]", "is not a result")],
)
def test_what_is_no_result_gets_no_figures(content: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        add_to_result(path, {"psnr": 3})
