"""The demonstration: what it finds is true, its page needs nothing else, and what is missing does not hold up the rest."""

import io
import math
import os
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from test_cli import own_signals  # noqa: F401  (a fixture)
from test_documented_code import check_command
from test_report import Page
from test_using_models import printed, sentence
from tiny_upscaler import tiny_upscaler

from sckn import LayerConfig, NetworkConfig, Recipe, save, shipped
from sckn.commands import demo as demo_command
from sckn.demo import demonstration, digits, photo
from sckn.demo.curves import learning_curves
from sckn.demo.demonstration import DemoReport, run_demo
from sckn.demo.digits import DigitsReport, learn_digits, read_digits
from sckn.demo.photo import PHOTO, upscale_photo
from sckn.superres.consistency import least_image
from sckn.superres.evaluation import measure_upscaling
from sckn.superres.photos import read_luminance
from sckn.training.state import EpochRecord

HEADINGS = [
    "What sckn does",
    "A photograph",
    "Its classes",
    "Made larger",
    "Digits",
    "Learning curves",
    "Confusion on the test set",
    "Filters of the first layer",
]


@dataclass(frozen=True)
class Shown:
    """What was told, found and written."""

    told: list[str]
    report: DemoReport
    page: Page


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an upscaler under the name of the one that the demonstration asks for."""
    folder = tmp_path_factory.mktemp("models")
    save(tiny_upscaler(), folder / "superres-x2.safetensors")
    return folder


@pytest.fixture(scope="module")
def shown(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """All of it, with a smaller network and a shorter training."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCKN_MODELS", str(models))
        make_small(patch)
        report = run_demo(tmp_path_factory.mktemp("demo") / "new" / "folder", told.append)
    return Shown(told, report, Page(report.page))


def make_small(patch: pytest.MonkeyPatch) -> None:
    layers = LayerConfig(6, 3, subsampling=2), LayerConfig(8, 3, subsampling=2)
    settings = {"PATCHES": 1000, "EXPONENTS": (0, 4), "RECIPE": Recipe(epochs=2), "RECIPE_EXPONENTS": (0, 6)}
    for name, value in {"NETWORK": NetworkConfig(1, layers), **settings}.items():
        patch.setattr(digits, name, value)


def with_digits_of(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs time is not done again."""
    monkeypatch.setattr(demonstration, "learn_digits", lambda say, seed: shown.report.digits)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_all_parts_and_needs_nothing_else(shown: Shown) -> None:
    assert shown.page.open == []
    assert shown.page.headings == HEADINGS
    assert shown.page.fetched == []
    text = shown.report.page.read_text()
    assert not re.search(r"https?:|@import|url\(|<script|<link", text)
    assert os.listdir(shown.report.page.parent) == ["report.html"]
    sizes = [Image.open(io.BytesIO(picture)).size for picture in shown.page.pictures]
    detail = (3 * (2 + 3 * 96) + 2, 3 * 96 + 4)  # three of 96 x 96, each pixel three wide, white between them
    assert sizes[:3] == [(451, 300), detail, (3 * (2 + 450) + 2, 304)]
    assert len(sizes) == 4  # the filters
    assert text.count("<svg") == text.count("</svg>") == 2  # the curves


def test_the_page_tells_what_was_found(shown: Shown) -> None:
    report, text = shown.report, shown.page.text
    assert report.classes is not None
    assert report.classes[0][0] == "cat"
    assert len(report.classes) == 3
    assert all(f"\n{name}\n{score:.2f}\n" in text for name, score in report.classes)
    assert report.upscaled is not None
    assert f"bicubic interpolation\n{report.upscaled.bicubic_psnr:.2f}\n" in text
    assert f"superres-x2\n{report.upscaled.psnr:.2f}\n" in text
    errors = [report.digits.pixels_error, report.digits.without_labels_error, report.digits.with_labels.error]
    assert [float(number) for number in re.findall(r"([\d.]+) %\n", text)[:3]] == [round(error, 2) for error in errors]
    assert any("898" in line and "899" in line for line in shown.told)
    assert any("6 and 8 filters" in line for line in shown.told)


def test_the_curves_can_be_read_by_their_axes() -> None:
    errors = [(9.0, 12.5), (4.0, 6.25), (1.5, 5.75), (0.25, 5.5)]
    history: list[EpochRecord] = [
        {"epoch": epoch, "objective": 2.0**-epoch, "train_error": train, "validation_error": validation, "accepted": True}
        for epoch, (train, validation) in enumerate(errors)
    ]
    pictures = [ET.fromstring(picture) for picture in re.findall(r"<svg.*?</svg>", learning_curves(history))]
    names = ("objective",), ("train_error", "validation_error")
    for picture, drawn in zip(pictures, names, strict=True):
        numbers = [text for text in picture.iter("text") if text.get("text-anchor") == "end" and text.get("x") == "42.0"]
        (bottom, low), *_, (top, high) = [(float(text.get("y", "")) - 4, float(text.text or "")) for text in numbers]
        assert low == 0
        for line, name in zip(picture.iter("polyline"), drawn, strict=True):
            points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
            assert np.diff([x for x, _ in points]) == pytest.approx([340 / 3] * 3, abs=0.11)
            found = [high * (bottom - y) / (bottom - top) for _, y in points]
            assert found == pytest.approx([record[name] for record in history], abs=0.001 * high)


def test_curves_of_epochs_that_were_undone_or_not_finite_have_gaps() -> None:
    records = [{"epoch": 0, "objective": 1.0, "accepted": True}, {"epoch": 1, "objective": 2.0, "accepted": False}]
    text = learning_curves([*records, {"epoch": 2, "objective": math.inf, "accepted": True}])
    (line, *_) = re.findall(r'points="([^"]*)"', text)
    assert line == "48.0,28.0"  # the first epoch alone, at the top of the axes
    assert learning_curves([]).count("<svg") == 2


# -- the digits -------------------------------------------------------------------------------------------------------


def test_the_confusion_is_that_of_the_model_on_the_other_half(shown: Shown) -> None:
    found = shown.report.digits
    _, (images, labels) = read_digits()
    with torch.no_grad():
        answers = found.model.predict(images).argmax(1)
    np.testing.assert_array_equal(found.with_labels.confusion, confusion_matrix(labels, answers))
    assert found.with_labels.confusion.sum() == 899
    assert found.with_labels.error == pytest.approx(100 * float((answers != labels).double().mean()))
    rows = re.findall(r"^(\d)\n((?:\d+\n){10})", shown.page.text, flags=re.MULTILINE)
    assert [[int(number) for number in row.split()] for _, row in rows] == found.with_labels.confusion.tolist()


def test_both_halves_together_are_the_digits() -> None:
    (images, labels), (others, other_labels) = read_digits()
    assert (len(images), len(others)) == (898, 899)
    rows = torch.cat([torch.cat([images, others]).flatten(1) * 16, torch.cat([labels, other_labels])[:, None].float()], dim=1)
    pixels, classes = load_digits(return_X_y=True)
    expected = np.column_stack([pixels, classes])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.tolist()))


def test_lambda_is_chosen_without_the_test_images(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other labels in the test half nothing is learned otherwise."""
    history = shown.report.digits.history
    assert len(history) == 3  # before the first epoch, and after each
    assert all(record["validation_error"] is not None for record in history)
    train, (images, labels) = read_digits()
    make_small(monkeypatch)
    monkeypatch.setattr(digits, "read_digits", lambda seed: (train, (images, 9 - labels)))
    again = learn_digits(lambda sentence: None)
    assert again.exponent == shown.report.digits.exponent
    assert torch.equal(again.model.weights, shown.report.digits.model.weights)
    assert again.with_labels.error > 80


@pytest.mark.slow
def test_labels_make_the_network_better_and_it_beats_the_pixels() -> None:
    found: DigitsReport = learn_digits(lambda sentence: None)
    assert found.with_labels.error <= found.without_labels_error < found.pixels_error < 10


# -- the photograph ---------------------------------------------------------------------------------------------------


def test_the_photograph_is_that_of_scikit_image(shown: Shown) -> None:
    assert photo.PHOTO.stat().st_size < 250_000
    cat = skimage.data.chelsea()
    np.testing.assert_array_equal(np.asarray(Image.open(photo.PHOTO)), cat)
    assert shown.report.upscaled is not None
    np.testing.assert_array_equal(shown.report.upscaled.truth.permute(1, 2, 0), cat[:, :450])


def test_the_figures_are_those_of_scikit_image(shown: Shown) -> None:
    """But for rounding: theirs are of the pictures in colours, ours of the luminance alone."""
    found = shown.report.upscaled
    assert found is not None
    inside = slice(2, -2)
    grey = [
        np.rint(skimage.color.rgb2ycbcr(form.permute(1, 2, 0).numpy())[inside, inside, 0])
        for form in (found.truth, found.bicubic, found.ours)
    ]
    for form, expected in zip(grey[1:], (found.bicubic_psnr, found.psnr), strict=True):
        psnr = skimage.metrics.peak_signal_noise_ratio(grey[0], form, data_range=255)
        assert psnr == pytest.approx(expected, abs=0.1)
    assert abs(found.psnr - found.bicubic_psnr) > 0.2


def test_a_model_that_adds_nothing_gives_what_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tiny_upscaler(weight=0.0), tmp_path / "superres-x2.safetensors")
    monkeypatch.setenv("SCKN_MODELS", str(tmp_path))
    found = upscale_photo()
    expected = measure_upscaling(read_luminance(PHOTO), 2, lambda small: least_image(small, 2)).psnr
    assert found.psnr == pytest.approx(expected, abs=1e-3)
    assert expected > found.bicubic_psnr + 0.2


# -- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_models_that_are_missing_or_damaged_are_told_and_left_out(
    damaged: bool, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_digits_of(shown, monkeypatch)
    monkeypatch.setattr(shipped, "IN_PACKAGE", tmp_path / "models")
    monkeypatch.setattr(shipped, "IN_REPOSITORY", tmp_path / "nowhere" / "models")
    monkeypatch.delenv("SCKN_MODELS", raising=False)
    if damaged:
        (tmp_path / "models").mkdir()
        for name in ("cifar10", "superres-x2"):
            (tmp_path / "models" / f"{name}.safetensors").write_bytes(b"no model")
    told: list[str] = []
    report = run_demo(tmp_path / "demo", told.append)
    assert (report.classes, report.upscaled) == (None, None)
    left_out = [line for line in told if line.startswith("this part is left out: ")]
    assert len(left_out) == 2
    for line, name in zip(left_out, ("cifar10", "superres-x2"), strict=True):
        assert name in line
        assert "\n" not in line
    assert Page(report.page).headings == [heading for heading in HEADINGS if heading not in ("Its classes", "Made larger")]


def test_a_place_that_cannot_be_used_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    told = sentence(capsys, monkeypatch, "demo", "--output", tmp_path / "file" / "below")
    assert told == f"{tmp_path}/file is not a folder; choose another place with --output"
    (tmp_path / "full" / "report.html").mkdir(parents=True)
    told = sentence(capsys, monkeypatch, "demo", "--output", tmp_path / "full")
    assert told == f"{tmp_path}/full/report.html is a folder; choose another place for the report with --output"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for one who is not root
    told = sentence(capsys, monkeypatch, "demo", "--output", tmp_path / "new" / "folder")
    assert told == f"nothing may be written into {tmp_path}; choose another folder with --output"
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_work_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(say: Callable[[str], None], seed: int) -> DigitsReport:
        raise ValueError("the digits are gone")

    monkeypatch.setattr(demonstration, "learn_digits", fail)
    monkeypatch.setattr(demonstration, "upscale_photo", lambda: None)
    with pytest.raises(ValueError, match="the digits are gone"):
        run_demo(tmp_path / "demo", lambda line: None)
    assert os.listdir(tmp_path) == []


# -- the program ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upscaler", [False, True])
def test_the_program_names_three_commands_that_there_are(
    upscaler: bool, shown: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = shown.report if upscaler else replace(shown.report, upscaled=None)
    monkeypatch.setattr("sckn.commands.demo.run_demo", lambda output, say: report)
    text = printed(capsys, monkeypatch, "demo")
    assert f"All of it, with pictures: {report.page}\n" in text
    assert ("made larger: PSNR" in text) == upscaler
    commands = [shlex.split(line) for line in text.partition("Next:\n")[2].splitlines()]
    assert len(commands) == 3
    for words in commands:
        with monkeypatch.context() as patch:
            check_command(["sckn", *words[1:]], patch)
    assert any(words[1] == "upscale" for words in commands) == upscaler
    assert all(Path(word).is_file() for words in commands for word in words if word.endswith("cat.png"))


def test_the_program_is_named_as_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for called, found, expected in (
        (".venv/bin/sckn", None, ".venv/bin/sckn"),
        (".venv/bin/sckn", "/usr/bin/sckn", "sckn"),
        ("/somewhere/sckn/__main__.py", None, "sckn"),
    ):
        monkeypatch.setattr("sys.argv", [called, "demo"])
        monkeypatch.setattr("shutil.which", lambda name, found=found: found)
        assert demo_command._program() == expected
