"""The report of a run: one file that needs nothing else, from whatever the run folder holds."""

import base64
import builtins
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_cli import own_signals  # noqa: F401  (a fixture)
from test_curves import without
from train_tiny import striped

from sckn import LayerConfig, NetworkConfig, cli
from sckn.training import experiment as experiments
from sckn.training import runs
from sckn.training.experiment import Experiment
from sckn.training.recipe import Recipe
from sckn.training.report import write_report
from sckn.training.run_files import find_classifier
from sckn.training.with_labels import run_with_labels

CPU = torch.device("cpu")
NETWORK = NetworkConfig(3, (LayerConfig(6, 3, subsampling=3), LayerConfig(5, 1)))
RECIPE = Recipe(epochs=1, batch_size=32, learning_rate=0.05, solver_tolerance=1e-2)
TINY = Experiment("tiny", "cifar10", NETWORK, RECIPE, seeds=(10, 9), patches=500, iterations=3, lambda_exponents=(2, 10))
ONE_PIXEL = io.BytesIO()
Image.new("RGB", (1, 1)).save(ONE_PIXEL, "PNG")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds, with curves that take no time."""
    folder = tmp_path_factory.mktemp("report") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
        patch.setattr(runs, "draw_curves", lambda records, path, title: path.write_bytes(ONE_PIXEL.getvalue()))
        run_with_labels(TINY, Path("data"), CPU, folder)
    return folder


class Page(HTMLParser):
    """What a page shows: its text, headings, pictures, and all that it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text, self.headings, self.pictures, self.fetched, self.open = "", [], [], [], []
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action"):
                found = re.fullmatch(r"data:image/png;base64,(\S+)", value or "")
                (self.pictures if found else self.fetched).append(base64.b64decode(found[1]) if found else value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if self.open and self.open[-1] != "style":
            self.text += data + "\n"


HEADINGS = [
    "tiny",
    "Figures",
    "Validation error of each lambda",
    "Learning curves",
    "Confusion on the test set",
    "Filters of the first layer",
    "Patches to which filters of the upper layers respond most",
    "Settings",
    "Code and machine",
]


def test_a_training_leaves_a_report_that_needs_nothing_else(finished: Path) -> None:
    page = Page(finished / "report.html")
    assert page.open == []
    assert page.headings == HEADINGS
    assert page.fetched == []
    assert "@import" not in (finished / "report.html").read_text()
    assert "url(" not in (finished / "report.html").read_text()
    assert len(page.pictures) == 2 + 1 + 1  # curves of each seed, filters, patches of the second layer
    for picture in page.pictures:
        with Image.open(io.BytesIO(picture)) as image:
            image.load()
    for seed in json.loads((finished / "report.json").read_text()):
        assert f"{seed['test_error']:.2f} %" in page.text
        assert f"{seed['train_error']:.2f} %" in page.text
        assert all(f"{error:.2f} %" in page.text for error in seed["validation_errors"].values())
    assert "network.layers[2].filters\n5\n" in page.text
    assert "recipe.learning_rate\n0.05\n" in page.text


def test_the_model_of_a_run_is_that_of_its_first_seed(finished: Path) -> None:
    expected = finished / "seed-9" / "final" / "classifier.safetensors"
    assert find_classifier(finished) == find_classifier(finished / "seed-9") == find_classifier(expected.parent) == expected
    assert find_classifier(finished / "seed-10") == finished / "seed-10" / "final" / "classifier.safetensors"
    assert find_classifier(finished / "seed-10" / "lambda-2^2") is None
    evaluation = json.loads((expected.parent / "evaluation.json").read_text())
    (report,) = (seed for seed in json.loads((finished / "report.json").read_text()) if seed["seed"] == 9)
    assert evaluation["error"] == report["test_error"]
    assert f"seed-9: {evaluation['wrong']} of 60 test images are wrong" in (finished / "report.html").read_text()


def test_it_is_made_again_from_the_run_folder_alone(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = (run / "report.html").read_text()
    (run / "report.html").unlink()
    (run / ".report.html.abcd1234.html").write_text("of a process that was killed")
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_text() == before
    assert not list(run.glob(".report*"))
    # and with the data if the pictures are gone
    shutil.rmtree(run / "seed-9" / "final" / "strongest-patches")
    write_report(run)
    assert "sckn report RUN --data DIR adds them" in (run / "report.html").read_text()
    write_report(run, striped(150, 0))
    assert (run / "report.html").read_text() == before


def test_curves_are_drawn_where_they_are_missing(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "seed-9" / "final" / "curves.png").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without("matplotlib"))
        page = Page(write_report(run))
    assert page.headings == HEADINGS
    assert len(page.pictures) == 3
    assert page.text.count("seed-9, final: drawing curves needs matplotlib; install it with pip install 'sckn[plots]'") == 1
    page = Page(write_report(run))
    assert len(page.pictures) == 4
    assert "matplotlib" not in page.text


def test_the_command_writes_it_anew(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(run / "seed-9" / "final" / "strongest-patches")
    (run / "report.html").unlink()
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    monkeypatch.setattr(sys, "argv", ["sckn", "report", str(run), "--data", "data", "--device", "cpu"])
    cli.main()
    assert capsys.readouterr() == (f"{run}/report.html\n", "")
    assert (run / "report.html").read_text() == (finished / "report.html").read_text()


def test_a_run_that_is_not_finished_has_a_report_too(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "report.json").unlink()
    for seed in ("seed-9", "seed-10"):
        shutil.rmtree(run / seed / "final")
    page = Page(write_report(run))
    assert page.headings == [HEADINGS[0], "Learning curves", "Settings", "Code and machine"]
    assert "The training has not come to its end yet." in page.text
    assert len(page.pictures) == 2  # of the two lambdas tried with the first seed


def test_text_is_no_markup(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "name": "<b>&amp;", "</table>": "<script>"}))
    page = Page(write_report(run))
    assert page.headings == ["<b>&amp;", *HEADINGS[1:]]
    assert '</table>\n"<script>"\n' in page.text


def test_of_many_classes_the_mistakes_are_shown(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    confusion = [[int(i == j) + 3 * (i == 4 and j == 7) for j in range(50)] for i in range(50)]
    content = {"classes": [f"<{i}>" for i in range(50)], "confusion": confusion}
    (run / "seed-9" / "final" / "evaluation.json").write_text(json.dumps(content))
    page = Page(write_report(run))
    assert "class\ntaken for\nimages\n" in page.text
    assert "<4>\n<7>\n3\n" in page.text


DAMAGED = ("report.json", "seed-9/final/evaluation.json", "seed-9/final/classifier.safetensors")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", ""),
        ("config.json", "[]"),
        *((name, text) for name in DAMAGED for text in ("", "[{}]", '{"classes": 3}')),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = (run / "report.html").read_text()
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(run / name))) as caught:
        write_report(run)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("cannot be read") <= 1
    assert (run / "report.html").read_text() == before


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="is no run folder; expected one that sckn train has made"):
            write_report(folder)
    assert list(tmp_path.iterdir()) == []
