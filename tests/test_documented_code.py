"""All code in README.md, CONTRIBUTING.md and docs/ is run, or where it needs what is not here, is at least read by its parser.

A block that needs a data set, a GPU or much time has a line such as `<!-- needs: data, gpu -->` above it. The others run page
by page, from top to bottom, in a folder with the few files that pages speak of, and with tiny models under the names of those
that come with sckn.
"""

import ast
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro
from PIL import Image
from test_cli import own_signals  # noqa: F401  (a fixture)
from tiny_classifier import tiny_classifier
from tiny_upscaler import tiny_upscaler
from torch.distributed.run import get_args_parser

from sckn import cli, save
from sckn.shipped import UPSCALERS
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.training.experiment import Experiment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- needs: ([\w, ]+) -->\n)?```([^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# What other programs do is theirs, and not done in a test.
ELSEWHERE = {"curl", "git", "pre-commit"}


@dataclass(frozen=True)
class Block:
    """Code in a page; `needs` is empty if it can be run."""

    page: Path
    line: int
    language: str
    needs: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [(match, text.count("\n", 0, match.start(2)) + 1) for match in FENCE.finditer(text)]
    return [
        Block(page, line, match[2], match[1] or "", match[3])
        for match, line in found
        if not match[2].startswith("{")  # a directive of Sphinx
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.code.splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def test_blocks_are_found_and_say_what_they_are() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh", "toml"}, [
        block.place for block in BLOCKS if block.language not in ("python", "sh", "toml")
    ]
    needs = {need.strip() for block in BLOCKS if block.needs for need in block.needs.split(",")}
    assert needs == {"data", "gpu", "time"}
    runnable = [block for block in BLOCKS if not block.needs]
    assert len(runnable) > len(BLOCKS) / 2


# -- what is only read --------------------------------------------------------------------------------------------------


def read_by_the_parser(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own parser takes the arguments and calls the command, which does nothing; a mistake ends the program."""
    called, subcommand = [], tyro.conf.subcommand

    def only_read(name: str, *, constructor: Callable[..., None], **settings: Any) -> Any:
        @wraps(constructor)
        def nothing(*_: object, **__: object) -> None:
            called.append(name)

        return subcommand(name, constructor=nothing, **settings)

    monkeypatch.setattr(tyro.conf, "subcommand", only_read)
    monkeypatch.setattr(sys, "argv", ["sckn", *words])
    cli.main()
    assert called == words[:1] or words == ["--version"]


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = words
    if program == "sckn":
        read_by_the_parser(arguments, monkeypatch)
        named = [ROOT / word for word in arguments if word.startswith("experiments/")]
        assert all(path.is_file() for path in named), words
    elif program == "torchrun":
        given = get_args_parser().parse_args(arguments)
        assert given.module
        assert given.training_script == "sckn"
        check_command(["sckn", *given.training_script_args], monkeypatch)
    elif program == "python":
        source = (ROOT / arguments[0]).read_text()
        options = [word.removeprefix("--") for word in arguments[1:] if word.startswith("--") and word != "--help"]
        assert all(option in source or option.replace("-", "_") in source for option in options), words
    elif program == "pip":
        assert arguments[0] == "install"
        check_packages(arguments[1:])
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), words
    else:
        assert program in ELSEWHERE, words


def check_packages(names: list[str]) -> None:
    """The extras that are named are those of the project."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in names:
        own = re.fullmatch(r"(?:sckn|\.)(?:\[([\w,]+)\])?", name)
        if own and own[1]:
            assert set(own[1].split(",")) <= set(extras), name


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "sh"], ids=lambda block: block.place)
def test_commands_are_understood(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list(commands(block))
    assert read
    for words in read:
        with monkeypatch.context() as patch:
            check_command(words, patch)


def test_a_wrong_command_would_be_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("sckn upscale photo.jpg -o large.png --scales 3", "sckn sharpen photo.jpg", "sckn train --data DIR"):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            check_command(shlex.split(line), patch)
    for line in ("make tea", "python experiments/bicubic.py --colour 3", "pip install sckn[tea]", "rm -r"):
        with pytest.raises(AssertionError):
            check_command(shlex.split(line), monkeypatch)


# -- what is run --------------------------------------------------------------------------------------------------------


@cache
def picture(seed: int, side: int = 24) -> Image.Image:
    """Noise over a colour that tells the classes of the folder apart."""
    random = np.random.default_rng(seed)
    colour = np.array([200, 60, 60]) if seed % 2 else np.array([60, 60, 200])
    return Image.fromarray(np.clip(colour + random.normal(0, 30, (side, side, 3)), 0, 255).astype(np.uint8))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages speak of: a photograph, folders of such, images in classes, models by their names, our own results."""
    folder, models = tmp_path / "work", tmp_path / "models"
    for name in ("holidays", "scans", "flowers/daisy", "flowers/tulip"):
        (folder / name).mkdir(parents=True)
    picture(0).save(folder / "photo.jpg")
    picture(1).save(folder / "holidays" / "beach.jpg")
    picture(2).save(folder / "scans" / "page.tif")
    for seed in range(40):
        picture(seed).save(folder / "flowers" / ("daisy", "tulip")[seed % 2] / f"{seed}.png")
    shutil.copytree(ROOT / "results", folder / "results")  # a copy, for trainings write there
    models.mkdir()
    save(tiny_classifier(), models / "cifar10.safetensors")
    for name in UPSCALERS:
        save(tiny_upscaler(int(name.removeprefix("superres-x")[0])), models / f"{name}.safetensors")
    monkeypatch.setenv("SCKN_MODELS", str(models))
    monkeypatch.chdir(folder)
    return folder


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which is faster than one for each; what other programs do is not done."""
    if words[0] != "sckn":
        return
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", words)
        cli.main()  # what goes wrong leaves the program, and so ends the test


def keep_experiment(block: Block, folder: Path) -> None:
    """As the file that the text tells to make, if it is an experiment that can be read as such."""
    path = folder / f"{tomllib.loads(block.code)['name']}.toml"
    path.write_text(block.code)
    kind = UpscalingExperiment if is_upscaling_experiment(path) else Experiment
    assert kind.from_toml(path).name == path.stem


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
@pytest.mark.usefixtures("capsys")
def test_the_code_of_a_page_runs(page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": "documented"}
    monkeypatch.setitem(sys.modules, "documented", type(sys)("documented"))  # dataclasses look their module up
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.code)
        if block.needs:
            continue
        if block.language == "python":
            exec(compile(block.code, block.place, "exec"), names)  # the pages are ours
        elif block.language == "toml":
            keep_experiment(block, workplace)
        else:
            for words in commands(block):
                run_command(words, monkeypatch)


def test_every_experiment_of_a_page_is_used(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.language == "toml":
            name = tomllib.loads(block.code)["name"]
            assert any(f"{name}.toml" in other.code for other in blocks(block.page) if other.language == "sh"), block.place
