"""The report of an upscaler's training: one file that needs nothing else, from whatever the run folder holds."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import own_signals  # noqa: F401  (a fixture)
from test_report import ONE_PIXEL, Page
from test_superres_commands import TOML, write_photo_of
from test_using_models import printed, sentence
from tiny_upscaler import tiny_upscaler

from sckn import load
from sckn.superres.experiment import UpscalingExperiment
from sckn.superres.imresize import imresize
from sckn.superres.photos import read_luminance
from sckn.superres.report import write_upscaling_report
from sckn.superres.scores import set_figures
from sckn.superres.side_by_side import crops, three_forms
from sckn.superres.training import run_upscaling
from sckn.training import runs

CPU = torch.device("cpu")
HEADINGS = [
    "superres-tiny",
    "Photographs held out",
    "Learning curves",
    "Details",
    "Filters of the first layer",
    "Settings",
    "Code and machine",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of a tiny upscaler, with curves that take no time, and its data."""
    folder = tmp_path_factory.mktemp("upscaling")
    for number, name in enumerate(("train/a.png", "train/b.png", "val/c.png", "test/d.png")):
        write_photo_of(folder / "data" / name, number)
    (folder / "tiny.toml").write_text(TOML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "draw_curves", lambda records, path, title: path.write_bytes(ONE_PIXEL.getvalue()))
        experiment = replace(UpscalingExperiment.from_toml(folder / "tiny.toml"), validation_photos=2)
        run_upscaling(experiment, folder / "data", CPU, folder / "run")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


def test_a_training_leaves_a_report_that_needs_nothing_else(finished: Path) -> None:
    page = Page(finished / "run" / "report.html")
    assert page.open == []
    assert page.headings == HEADINGS
    assert page.fetched == []
    assert len(page.pictures) == 1 + 2 + 1  # curves, details of both photographs, filters
    for picture in page.pictures:
        with Image.open(io.BytesIO(picture)) as image:
            image.load()
    figures = json.loads((finished / "run" / "report.json").read_text())
    for quality in (figures["validation"], figures["bicubic"]):
        assert f"\n{quality['psnr']:.2f}\n{quality['ssim']:.4f}\n" in page.text
    assert "1 epoch(s) on 2 photographs" in page.text
    assert "recipe.learning_rate\n0.1\n" in page.text


def test_the_details_are_of_the_photographs_held_out(finished: Path) -> None:
    assert sorted(path.name for path in (finished / "run" / "crops").iterdir()) == ["test-d.png", "train-b.png"]
    photo = read_luminance(finished / "data" / "train" / "b.png")
    small = imresize(photo.double(), 1 / 2)
    ours = load(finished / "run" / "model.safetensors").upscale_luminance(small)  # pyright: ignore
    with Image.open(finished / "run" / "crops" / "train-b.png") as image:
        found = np.asarray(image)[2:-2:3, :, 0].astype(int)  # each pixel is three wide, with a gap of two around
    width = photo.shape[1]
    tiles = [found[:, 2 + index * (3 * width + 2) :][:, : 3 * width : 3] for index in range(3)]
    assert np.array_equal(tiles[0], photo)
    for tile, expected in zip(tiles[1:], (imresize(small, 2), ours), strict=True):
        assert np.abs(tile - expected.clamp(0, 255).numpy()).max() <= 1


def test_a_detail_is_where_interpolation_loses_most() -> None:
    photo = torch.full((200, 300), 100, dtype=torch.uint8)
    photo[120:130, 230:240] = torch.randint(0, 256, (10, 10), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    (content,) = crops(tiny_upscaler(), {"flat/but.png": photo}).values()
    with Image.open(io.BytesIO(content)) as image:
        truth = np.asarray(image)[2:-2:3, 2 : 2 + 3 * 96 : 3, 0]
    assert truth.shape == (96, 96)
    assert sorted(truth[truth != 100].tolist()) == sorted(photo[photo != 100].tolist())


def test_colours_are_compared_too() -> None:
    photo = torch.randint(0, 256, (3, 25, 31), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    truth, bicubic, ours = three_forms(tiny_upscaler(weight=0.0), photo, 2)
    assert torch.equal(truth, photo[:, :24, :30])
    assert bicubic.shape == ours.shape == truth.shape
    small = imresize(truth.double() / 255, 0.5).clamp(0, 1)
    for form, expected in (bicubic, imresize(small, 2)), (ours, tiny_upscaler(weight=0.0).upscale(small.float())):
        assert (form.int() - (255 * expected + 0.5).floor().clamp(0, 255)).abs().max() <= 1
    assert (bicubic.int() - truth.int()).abs().max() > 50
    assert (bicubic.int() - ours.int()).abs().max() > 10


def test_few_of_many_photographs_are_shown() -> None:
    photos = {f"{number:02d}": torch.full((12, 12), number, dtype=torch.uint8) for number in range(60)}
    assert list(crops(tiny_upscaler(), photos)) == ["00", "10", "20", "30", "40", "50"]
    assert crops(tiny_upscaler(), {}) == {}


def test_it_is_made_again_from_the_run_folder_alone(run: Path) -> None:
    before = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert write_upscaling_report(run) == run / "report.html"
    assert (run / "report.html").read_text() == before


def test_the_command_writes_it_anew(
    finished: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "report.html").read_text()
    shutil.rmtree(run / "crops")
    assert printed(capsys, monkeypatch, "report", run) == f"{run}/report.html\n"
    assert Page(run / "report.html").headings == [heading for heading in HEADINGS if heading != "Details"]
    assert printed(capsys, monkeypatch, "report", run, "--data", finished / "data") == f"{run}/report.html\n"
    assert (run / "report.html").read_text() == before
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "validation_photos": "two"}))
    text = sentence(capsys, monkeypatch, "report", run, "--data", finished / "data")
    assert text.startswith("validation_photos must be a whole number of at least 0, got 'two'")


def test_figures_on_test_sets_are_shown_once_they_are_known(run: Path) -> None:
    names = ("Set5", "Set14", "Kodak")
    figures = {
        field: {name: start + place for place, name in enumerate(names)}
        for field, start in (("psnr", 31.0), ("ssim", 0.5), ("bicubic_psnr", 41.0), ("bicubic_ssim", 0.25))
    }
    assert set(figures) == set(set_figures({}))
    (run / "scores.json").write_text(json.dumps({**figures, "x3": figures}))
    page = Page(write_upscaling_report(run))
    assert page.headings[2:4] == ["Test sets, x2", "Test sets, x3"]
    assert page.text.count("test set\nPSNR\nbicubic\nSSIM\nbicubic\n") == 2
    assert page.text.count("Set14\n32.00\n42.00\n1.5000\n1.2500\n") == 2


def test_a_training_that_is_not_finished_has_a_report_too(run: Path) -> None:
    for name in ("report.json", "model.safetensors", "curves.png", "metrics.jsonl"):
        (run / name).unlink()
    page = Page(write_upscaling_report(run))
    assert page.headings == [HEADINGS[0], "Settings", "Code and machine"]
    assert "The training has not come to its end yet." in page.text


def test_without_photographs_held_out_there_are_no_figures(run: Path) -> None:
    figures = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**figures, "validation": None, "bicubic": None}))
    assert "No photographs were held out." in Page(write_upscaling_report(run)).text


DAMAGED = ("report.json", "scores.json", "model.safetensors")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", ""),
        ("config.json", "[]"),
        *((name, text) for name in DAMAGED for text in ("", "[]", '{"psnr": 3, "photos": 1}')),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, run: Path) -> None:
    before = (run / "report.html").read_text()
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(run / name))) as caught:
        write_upscaling_report(run)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("cannot be read") <= 1
    assert (run / "report.html").read_text() == before
