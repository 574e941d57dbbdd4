"""Wheel and source distribution are built, and installed into an environment that has what they ask for and nothing else."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from made_up_data import write_image
from packaging.requirements import Requirement
from PIL import Image
from tiny_classifier import tiny_classifier

from sckn import __version__, save

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def build(folder: Path, into: Path, *kinds: str) -> None:
    """With hatchling, as pip does it."""
    targets = [word for kind in kinds for word in ("-t", kind)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(into), *targets], cwd=folder, check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both."""
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder, "sdist", "wheel")
    return folder


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of each file, but for the list of files itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist() if not entry.filename.endswith("RECORD")}


def needed(package: Distribution, known: set[str]) -> Iterator[Distribution]:
    """What a package asks for, and what that asks for, as it is in this environment."""
    for text in package.requires or ():
        requirement = Requirement(text)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and requirement.name not in known:
            known.add(requirement.name)
            found = distribution(requirement.name)
            yield found
            yield from needed(found, known)


@pytest.fixture(scope="module")
def programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel in it."""
    home = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(home, with_pip=True)
    (wheel,) = built.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([home / "bin" / "python", *install, wheel], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (ours,) = Distribution.discover(name="sckn", path=[str(site)])
    for package in needed(ours, set()):
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    return home / "bin"


def run(*command: str | Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_source_distribution_gives_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/conf.py", "examples", "tests", "experiments"):
        assert (unpacked / name).exists(), name
    build(unpacked, tmp_path / "again", "wheel")
    (first,), (second,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    assert contents(first) == contents(second)
    assert {name.split("/")[0] for name in contents(first)} == {"sckn", f"sckn-{__version__}.dist-info"}


def test_it_works_with_nothing_but_what_it_asks_for(programs: Path, tmp_path: Path) -> None:
    told = run(programs / "sckn", "--version", folder=tmp_path)
    assert told.stdout == f"sckn {__version__}\n", told.stderr
    place = run(programs / "python", "-c", "import sckn; print(sckn.__file__)", folder=tmp_path)
    assert Path(place.stdout.strip()).is_relative_to(programs.parent)
    absent = run(programs / "python", "-c", "import skimage", folder=tmp_path)
    assert absent.returncode == 1  # the environment is what it says
    save(tiny_classifier(), tmp_path / "model.safetensors")
    write_image(tmp_path / "photo.png", "red")
    answer = run(programs / "sckn", "classify", "model.safetensors", "photo.png", folder=tmp_path)
    assert answer.stdout.startswith("photo.png: "), answer.stderr
    refused = run(programs / "sckn", "export", "model.safetensors", "model.onnx", folder=tmp_path)
    assert refused.stderr == "sckn: an ONNX file needs onnx; install it with pip install 'sckn[onnx]'\n"


def test_its_models_make_a_photograph_larger(programs: Path, tmp_path: Path) -> None:
    photo = ROOT / "sckn" / "pictures" / "cat.png"
    told = run(programs / "sckn", "upscale", photo, "-o", "large.png", "--scale", "2", "--fast", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    with Image.open(photo) as small, Image.open(tmp_path / "large.png") as large:
        assert large.size == (2 * small.width, 2 * small.height)


def test_it_shows_all_parts_of_the_demonstration(programs: Path, tmp_path: Path) -> None:
    told = run(programs / "sckn", "demo", "--output", "shown", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "left out" not in told.stdout
    assert "made larger: PSNR" in told.stdout
    assert (tmp_path / "shown" / "report.html").stat().st_size > 100_000
