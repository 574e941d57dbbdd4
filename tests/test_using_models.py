"""What can be done with a trained model at the command line: real programs on tiny data, and all that can be given wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up_data import write_image
from PIL import Image
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix
from test_cli import outcome, own_signals  # noqa: F401  (a fixture)
from test_interruption import experiment
from tiny_classifier import CLASSES, files_in, tiny_classifier
from train_tiny import striped

from sckn import cli, save, shipped
from sckn.checkpoint import load_classifier
from sckn.training import experiment as experiments

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, str(Path(__file__).with_name("train_tiny.py"))]


def program(*arguments: str | Path, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """`sckn` as a program of its own; matplotlib is not needed here, and slow."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TINY_WITHOUT_CURVES": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run([*PROGRAM, *map(str, arguments)], input=given, capture_output=True, env=environment, timeout=300)


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> str:
    """What `sckn` prints in this process if nothing goes wrong."""
    monkeypatch.setattr(sys, "argv", ["sckn", *map(str, arguments)])
    cli.main()
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> str:
    """The one sentence in which something ends that goes wrong."""
    assert outcome(monkeypatch, *map(str, arguments)) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sckn: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("sckn: ").rstrip()


@pytest.fixture
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))


def test_a_model_is_trained_evaluated_and_used_by_the_program(tmp_path: Path) -> None:
    """In one test: programs take long to start."""
    (tmp_path / "tiny.toml").write_text(experiment(epochs=1))
    run, results = tmp_path / "run", tmp_path / "results"
    done = program("train", tmp_path / "tiny.toml", "--data", "none", "--run", run, "--results", results)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "drawing curves needs matplotlib; install it with" in (run / "report.html").read_text()
    check_evaluation(run)
    check_classification(run, tmp_path / "images")


def check_evaluation(trained: Path) -> None:
    """Its figures are those of the training, and of other libraries."""
    (report,) = json.loads((trained / "report.json").read_text())
    done = program("evaluate", trained, "--data", "none", "--json", "--batch-size", "7")
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert (found["model"], found["name"], found["dataset"], found["images"]) == (str(trained), "tiny", "cifar10", 60)
    assert found["error"] == report["test_error"]
    test, classifier = striped(60, 1), load_classifier(trained / "seed-0" / "final" / "classifier.safetensors")
    answers = classifier.predict(test.images).argmax(1).numpy()
    assert found["confusion"] == confusion_matrix(test.labels, answers, labels=range(3)).tolist()
    interval = binomtest(found["wrong"], 60).proportion_ci(method="wilson")
    assert found["interval"] == pytest.approx([100 * interval.low, 100 * interval.high])
    figures = {"test_error": report["test_error"], "test_images": 60, "train_error": report["train_error"], "seed": 0}
    assert classifier.figures == {**figures, "lambda_exponent": report["lambda_exponent"], "epochs": report["epochs"]}
    assert classifier.experiment == json.loads((trained / "config.json").read_text())


def check_classification(trained: Path, images: Path) -> None:
    images.mkdir()
    test = striped(4, 1)
    for number, image in enumerate(test.images[:3]):
        Image.fromarray(image.transpose(1, 2, 0)).save(images / f"{number}.png")
    (images / "broken.png").write_bytes(b"no image")
    done = program("classify", trained, "-", images, "nowhere", "--json", "--top", "2", given=(images / "2.png").read_bytes())
    assert done.returncode == 1
    wanted = "give a whole image in BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP"
    assert done.stderr.decode().splitlines() == [
        f"sckn: {images}/broken.png cannot be read: not an image of a known format; {wanted}",
        f"sckn: nowhere cannot be read: it does not exist; {wanted}",
        "sckn: 2 of 6 images cannot be read",
    ]
    found = json.loads(done.stdout)["images"]
    assert [image["image"] for image in found] == [
        "-",
        *(f"{images}/{name}.png" for name in "012"),
        f"{images}/broken.png",
        "nowhere",
    ]
    scores = load_classifier(trained / "seed-0" / "final" / "classifier.safetensors").predict(test.images[[2, 0, 1, 2]]).numpy()
    for image, expected in zip(found, scores, strict=False):
        assert [int(best["class"]) for best in image["best"]] == np.argsort(-expected)[:2].tolist()
        assert [best["score"] for best in image["best"]] == pytest.approx(-np.sort(-expected)[:2], abs=1e-4)


@pytest.mark.usefixtures("tiny_data")
def test_evaluation_as_text_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = save(tiny_classifier(), tmp_path / "classifier.safetensors")
    text = printed(capsys, monkeypatch, "evaluate", file, "--data", "none", "--picture", tmp_path / "confusion.png")
    assert text.startswith("tiny on cifar10\ntest error ")
    assert "\ntaken for   cat   dog a bir\n" in text
    with Image.open(tmp_path / "confusion.png") as image:
        assert image.format == "PNG"


def test_a_model_is_used_by_its_name_on_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes are matched by name; a folder of the model's name, of data perhaps, does not stand in its way."""
    save(tiny_classifier(), tmp_path / "models" / "cifar10.safetensors", half=True)
    monkeypatch.setenv("SCKN_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        write_image(tmp_path / "cifar10" / "dog" / f"{number}.png", (20 * number, 0, 0))
        write_image(tmp_path / "cifar10" / "cat" / f"{number}.png", (0, 20 * number, 9))
    arguments = ["evaluate", "cifar10", "--data", "cifar10", "--dataset", "folder", "--json"]
    found = json.loads(printed(capsys, monkeypatch, *arguments))
    assert (found["dataset"], found["images"], tuple(found["classes"])) == ("folder", 4, CLASSES)
    assert found["class_errors"]["a bird"] is None
    lines = printed(capsys, monkeypatch, "classify", "cifar10", "cifar10/dog", "--top", "1").splitlines()
    assert len(lines) == 10
    assert lines[3].startswith("cifar10/dog/3.png: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["evaluate", "nowhere", "--data", "here"],
            "nowhere does not exist; expected a checkpoint written by sckn.save, or the name",
        ),
        (["evaluate", "empty", "--data", "here"], "empty holds no finished training; expected the run folder"),
        (["evaluate", "cifar10-512", "--data", "here"], "the model cifar10-512 is not here; it is too large for the package"),
        (["evaluate", "model", "--data", "here"], "model holds a network with a linear model alone, which knows no classes"),
        (["evaluate", "classifier", "--data", "here"], "here does not exist: expected data_batch_1.bin"),
        (
            ["evaluate", "nameless", "--data", "here"],
            "nameless does not tell which data set it was trained on; say with --dataset",
        ),
        (["evaluate", "strange", "--data", "here"], "dataset must be 'cifar10' or"),
        (["evaluate", "classifier", "--data", "here", "--picture", "a.jpg"], "a.jpg must be a PNG file"),
        (["classify", "classifier"], "there are no images to classify"),
        (["classify", "classifier", "-", "-"], "there is one image on standard input; give - once"),
        (["classify", "classifier", "a.png"], "a.png cannot be read: it does not exist; give a whole image in BMP"),
        (["classify", "classifier", "text"], "text cannot be read: not an image of a known format; give a whole image"),
        (["classify", "classifier", "a.png", "--top", "0"], "top must be a whole number of at least 1, got 0"),
        (["classify", "text", "a.png"], "text is not a whole .safetensors file"),
        (["tables", "psnr"], "there is no table 'psnr'; there is classification, superres-psnr, superres-ssim"),
        (["tables", "--results", "nowhere"], "nowhere is no folder"),
        (["report", "empty"], "empty is no run folder"),
        (["report", "nowhere", "--data", "here"], "nowhere is no run folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_goes_wrong_is_one_sentence(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCKN_MODELS", raising=False)
    monkeypatch.setattr(shipped, "IN_REPOSITORY", tmp_path)  # as where sckn is installed
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no model")
    classifier = tiny_classifier()
    save(classifier, "classifier")
    save(classifier.model, "model")
    save(tiny_classifier(experiment={}), "nameless")
    save(tiny_classifier(experiment={"dataset": "imagenet"}), "strange")
    before = files_in(tmp_path)
    assert sentence(capsys, monkeypatch, *arguments).startswith(expected)
    assert files_in(tmp_path) == before


def test_standard_input_may_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As daemons start programs: it is needed for - alone."""
    classifier = save(tiny_classifier(), tmp_path / "classifier")
    image = tmp_path / "image.png"
    Image.fromarray(striped(1, 0).images[0].transpose(1, 2, 0)).save(image)
    monkeypatch.setattr(sys, "stdin", None)
    assert printed(capsys, monkeypatch, "classify", classifier, image).startswith(f"{image}: ")
    told = sentence(capsys, monkeypatch, "classify", classifier, "-")
    assert told.startswith("the image on standard input cannot be read: there is nothing on standard input; give ")


@pytest.mark.parametrize(("options", "begin"), [([], "Test error in percent"), (["--format", "latex"], r"\begin{table}")])
def test_tables_are_printed(
    options: list[str], begin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tables", *options, "--results", str(ROOT / "results")]
    text = printed(capsys, monkeypatch, *arguments)
    assert text.startswith(begin)
    assert "10.20" in text
    assert "37.07" in text
    assert "0.9580" in text
    assert text == printed(capsys, monkeypatch, *arguments, "classification", "superres-psnr", "superres-ssim")
