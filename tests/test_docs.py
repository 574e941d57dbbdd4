"""The pages of docs/ are made without a warning, need nothing from elsewhere, and their links lead somewhere; examples run."""

import importlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml
from sphinx.util.inventory import InventoryFile
from test_cli import own_signals  # noqa: F401  (a fixture)

import sckn
from sckn import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXT = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}


class Resources(HTMLParser):
    """What a browser fetches for a page by itself, and the equations in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.equations = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.equations += tag == "math"
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.fetched.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.fetched.append(str(given["href"]))


def test_the_pages(tmp_path: Path) -> None:
    """In one test: they take a while to make."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    made = subprocess.run([*command, str(DOCS), str(tmp_path / "pages")], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    pages = {path.relative_to(tmp_path / "pages").as_posix(): path for path in (tmp_path / "pages").rglob("*.html")}
    assert {name.replace(".md", ".html") for name in TEXT} <= set(pages)
    equations = 0
    for name, path in pages.items():
        found = Resources()
        found.feed(path.read_text())
        equations += found.equations
        assert not [address for address in found.fetched if re.match(r"\w+:|//", address)], name
        for address in found.fetched:
            assert (path.parent / address.split("?")[0]).is_file(), (name, address)
    assert equations > 50
    assert not [
        path
        for path in (tmp_path / "pages").rglob("*.css")
        if re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text())
    ]
    described = names_in(tmp_path / "pages" / "objects.inv")
    asked_for = {target for text in TEXT.values() for target in re.findall(r"\{py:\w+\}`([\w.]+)`", text)}
    assert len(asked_for) > 40
    assert asked_for <= described
    public = {f"{thing.__module__}.{thing.__qualname__}" for thing in public_things()}
    assert public <= described


def names_in(inventory: Path) -> set[str]:
    content = InventoryFile.loads(inventory.read_bytes(), uri="")
    return {name for kind, entries in content.data.items() if kind.startswith("py:") for name in entries}


def public_things() -> list[Any]:
    """All that `import sckn` offers, but for modules and the version."""
    things = [getattr(sckn, name) for name in sckn.__all__]
    return [thing for thing in things if inspect.isclass(thing) or inspect.isfunction(thing)]


def test_each_equation_has_its_function() -> None:
    """Between an equation with a number and the next, or the next heading, a function or class of ours is named."""
    parts = re.split(r"^\$\$ \(\w+\)$", TEXT["method.md"], flags=re.MULTILINE)[1:]
    assert len(parts) > 10
    for part in parts:
        upto = re.split(r"^## ", part, flags=re.MULTILINE)[0]
        targets = re.findall(r"\{py:(?:func|class|meth)\}`([\w.]+)`", upto)
        assert targets, part[:100]
        for target in targets:
            assert resolved(target) is not None


def resolved(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for attribute in parts[count:]:
            thing = getattr(thing, attribute)
        return thing
    return None


def test_every_result_can_be_repeated() -> None:
    for path in (ROOT / "results").glob("*.json"):
        assert f"`results/{path.name}`" in TEXT["guides/reproduce.md"]


def test_every_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def noted(name: str, *, constructor: Callable[..., None], **settings: Any) -> Any:
        names.append(name)
        return subcommand(name, constructor=constructor, **settings)

    subcommand = tyro.conf.subcommand
    monkeypatch.setattr(tyro.conf, "subcommand", noted)
    monkeypatch.setattr(tyro, "cli", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["sckn", "demo"])
    cli.main()
    assert names == re.findall(r"^\| `sckn (\w+)` \|", TEXT["guides/commands.md"], flags=re.MULTILINE)


# -- examples -----------------------------------------------------------------------------------------------------------

EXAMPLES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "digits_without_labels": lambda found: found["accuracies"]["features"] > found["accuracies"]["pixels"] + 0.05,
    "digits_with_labels": lambda found: found["errors"][True] < 0.6 * found["errors"][False] < 15,
    "kernel_between_images": lambda found: found["gaps"] == sorted(found["gaps"], reverse=True) and found["gaps"][-1] < 0.02,
    "layer_in_pytorch": lambda found: found["accuracy"] > 0.8,
    "upscaler_from_one_photo": lambda found: found["ours"].psnr > found["bicubic"].psnr + 0.2,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_what_it_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert EXAMPLES[name](found)
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_every_example_is_in_the_gallery() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == set(EXAMPLES) == set(re.findall(r"literalinclude\} \.\./examples/(\w+)\.py", TEXT["gallery.md"]))


# -- what contributors use ----------------------------------------------------------------------------------------------


def test_hooks_run_what_make_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    pinned = {line.split("==")[0] for line in (ROOT / "requirements.txt").read_text().splitlines()}
    makefile = (ROOT / "Makefile").read_text()
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].split() for hook in repository["hooks"]]
    for program, *words in entries:
        assert program.startswith(".venv/bin/")
        name = Path(program).name
        assert name in pinned
        assert f"$(RUN)/{name} {words[0]}" in makefile
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    assert [Path(entry[0]).name for entry in entries] == ["ruff", "ruff", "pyright"]


def test_every_extra_is_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "requirements.txt").read_text().splitlines()}
    wanted = {re.split(r"[\[><=;]", name)[0].strip().lower() for names in extras.values() for name in names} - {"sckn"}
    assert wanted <= pinned
