"""Super-resolution at the command line: training, evaluation, and all that can be given wrong."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.data import camera
from test_cli import outcome, own_signals  # noqa: F401  (a fixture)
from test_using_models import printed, sentence
from tiny_classifier import files_in, tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn import Upscaler, load, save
from sckn.processes import Processes
from sckn.superres.consistency import least_image
from sckn.superres.evaluation import evaluate_upscaling
from sckn.superres.imresize import imresize

TOML = """
name = "superres-tiny"
dataset = "bsds500"
scale = 2
patch = 14
samples = 100
validation_photos = 1
validation_samples = 20
kmeans_samples = 50
patches = 500
iterations = 2
network = { in_channels = 1, layers = [{ filters = 6, patch = 3, padding = false }] }
recipe = { epochs = 1, batch_size = 50, learning_rate = 0.1, loss = "square", active_set = false }
"""


def write_photo_of(path: Path, number: int) -> None:
    """A crop of a photograph."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(camera()[100 + 40 * number : 148 + 40 * number, 60:120]).save(path)


@pytest.fixture
def experiment(tmp_path: Path) -> list[str]:
    """Arguments of `sckn` that train on four tiny photographs."""
    for number, name in enumerate(("train/a.png", "train/b.png", "val/c.png", "test/d.png")):
        write_photo_of(tmp_path / "data" / name, number)
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    places = {"--data": "data", "--run": "run", "--results": "results"}
    return ["train", str(path), *(word for option, name in places.items() for word in (option, str(tmp_path / name)))]


def test_an_upscaler_is_trained_and_evaluated(
    experiment: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, monkeypatch, *experiment).splitlines()
    result = json.loads((tmp_path / "results" / "superres-tiny.json").read_text())
    assert result["config"]["scale"] == 2
    assert result["seeds"] == [0]
    assert result["seconds"] > 0
    assert lines[-2].startswith(f"held out: PSNR {result['validation']['psnr']:.2f} (bicubic {result['bicubic']['psnr']:.2f})")
    assert lines[-1] == f"written to {tmp_path}/results/superres-tiny.json; the model is {tmp_path}/run/model.safetensors"
    model = load(tmp_path / "run" / "model.safetensors")
    assert isinstance(model, Upscaler)

    arguments = ["evaluate", tmp_path / "run", "--data", tmp_path / "data" / "train"]
    found = json.loads(printed(capsys, monkeypatch, *arguments, "--json"))
    expected = evaluate_upscaling(tmp_path / "data" / "train", 2, model.upscale_luminance)
    assert found == {"model": str(tmp_path / "run"), **expected.to_dict()}
    text = printed(capsys, monkeypatch, *arguments, "--scale", "2")
    assert text.startswith(f"{tmp_path}/run at x2 on {tmp_path}/data/train\n")
    assert text.endswith(expected.table() + "\n")

    assert "go on with it" in sentence_at_the_end(capsys, monkeypatch, *experiment)
    assert "written to" in printed(capsys, monkeypatch, *experiment, "--resume")


def test_another_factor_than_the_model_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's way to x3: twice x2, here by a model that says nothing, then 3/4."""
    write_photo_of(tmp_path / "Set1" / "a.png", 0)
    file = save(tiny_upscaler(weight=0.0), tmp_path / "x2.safetensors")
    found = json.loads(printed(capsys, monkeypatch, "evaluate", file, "--data", tmp_path / "Set1", "--scale", "3", "--json"))
    report = evaluate_upscaling(
        tmp_path / "Set1",
        3,
        lambda small: imresize(least_image(least_image(small, 2), 2), 0.75),
    )
    assert found["scale"] == 3
    assert found["mean"]["quality"]["psnr"] == pytest.approx(report.quality.psnr, abs=0.02)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--validation-only"], "photographs held out alone judge the training of an upscaler; leave out --validation-only"),
        (["--results", "tiny.toml"], "tiny.toml is not a folder; choose another place with --results"),
        (["--data", "empty"], "empty does not hold BSDS500: expected its folders train, val, test"),
        (["--device", "cuda"], "there is no CUDA device here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_goes_wrong_in_training_is_one_sentence(
    options: list[str],
    expected: str,
    experiment: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    before = files_in(tmp_path)
    arguments = [word for index, word in enumerate(experiment) if options[0] not in experiment[max(index - 1, 0) : index + 1]]
    text = sentence_at_the_end(capsys, monkeypatch, *arguments, *options)
    assert text.startswith(expected)
    assert files_in(tmp_path) == before


def test_an_upscaler_trains_in_one_process(
    experiment: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.commands.train.joined_processes", lambda _: nullcontext(Processes(0, 2)))
    assert "trains an upscaler, in one process; start it without torchrun" in sentence(capsys, monkeypatch, *experiment)


def sentence_at_the_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> str:
    """The one sentence on standard error; what was printed before it does not matter."""
    assert outcome(monkeypatch, *map(str, arguments)) == 1
    error = capsys.readouterr().err
    assert error.startswith("sckn: ")
    assert error.count("\n") == 1
    return error.removeprefix("sckn: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x2", "--data", "photos", "--dataset", "svhn"], "x2 is an upscaler and knows no classes; leave out --dataset"),
        (
            ["x2", "--data", "photos", "--batch-size", "3", "--picture", "a.png"],
            "x2 is an upscaler and knows no classes; leave out --picture and --batch-size",
        ),
        (["x2", "--data", "photos", "--scale", "1"], "scale must be a whole number of at least 2, got 1"),
        (["x2", "--data", "photos", "--scale", "20"], "photos/a.png has 24 x 16 pixels, too few to be judged at scale 20"),
        (["x2", "--data", "nowhere"], "nowhere is not a folder; expected one with images"),
        (["x2", "--data", "empty"], "empty holds no images"),
        (["classifier", "--data", "photos", "--scale", "2"], "classifier is a classifier and makes nothing larger; leave out"),
        (["superres-x2", "--data", "photos"], "the model superres-x2 is not here; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_goes_wrong_in_evaluation_is_one_sentence(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCKN_MODELS", raising=False)
    monkeypatch.setattr("sckn.shipped.IN_PACKAGE", tmp_path / "empty")
    monkeypatch.setattr("sckn.shipped.IN_REPOSITORY", tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((16, 24), np.uint8)).save(tmp_path / "photos" / "a.png")
    save(tiny_upscaler(), "x2")
    save(tiny_classifier(), "classifier")
    before = files_in(tmp_path)
    assert sentence(capsys, monkeypatch, "evaluate", *arguments).startswith(expected)
    assert files_in(tmp_path) == before


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Upscalers by name for x2 and x3, and a fast one whose network says nothing; the current folder has a photograph."""
    for name, model in (("x2", tiny_upscaler()), ("x3", tiny_upscaler(3)), ("x2-fast", tiny_upscaler(weight=0.0))):
        save(model, tmp_path / "models" / f"superres-{name}.safetensors")
    monkeypatch.setenv("SCKN_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    write_photo_of(tmp_path / "photo.png", 0)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "scale", "weight", "factor"),
    [
        ([], 2, 3.0, 2.0),
        (["--scale", "1.5"], 2, 3.0, 1.5),
        (["--scale", "2.5"], 3, 3.0, 2.5),
        (["--fast"], 2, 0.0, 2.0),
        (["--model", "superres-x3"], 3, 3.0, 3.0),
        (["--model", "models/superres-x2.safetensors", "--scale", "3"], 2, 3.0, 3.0),
        (["--scale", "2", "--tile", "20", "--memory", "0.1", "--device", "cpu"], 2, 3.0, 2.0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_photograph_is_made_larger(
    options: list[str],
    scale: int,
    weight: float,
    factor: float,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, monkeypatch, "upscale", "photo.png", "-o", "large.png", *options)
    width, height = round(60 * factor), round(48 * factor)
    assert text == f"large.png: {width} x {height} pixels\n"
    with Image.open("photo.png") as photo, Image.open("large.png") as large:
        expected = tiny_upscaler(scale, weight).upscale(np.asarray(photo), factor)
        assert np.abs(np.asarray(large).astype(int) - expected).max() <= 1
    assert files_in(models) == {"models", "photo.png", "large.png"}


def test_a_broken_photograph_does_not_hold_up_the_others(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate("abc"):
        write_photo_of(models / "photos" / f"{name}.png", number)
    (models / "photos" / "b.png").write_bytes(b"no photograph")
    assert outcome(monkeypatch, "upscale", "photos", "nowhere.jpg", "-o", "large") == 1
    output = capsys.readouterr()
    assert output.out.splitlines() == ["large/a.png: 120 x 96 pixels", "large/c.png: 120 x 96 pixels"]
    assert output.err.splitlines() == [
        "sckn: photos/b.png cannot be read as an image (not an image of a known format); give a whole one, of a single picture",
        "sckn: nowhere.jpg does not exist; expected an image",
        "sckn: 2 of 4 photos could not be made larger",
    ]
    assert files_in(models / "large") == {"a.png", "c.png"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.png", "-o", "large.png"], "nowhere.png does not exist; expected an image"),
        (["broken.png", "-o", "large.png"], "broken.png cannot be read as an image (not an image of a known format)"),
        (["photo.png", "-o", "photo.png"], "photo.png is a photograph to be read and would be overwritten"),
        (
            ["photo.png", "-o", "photo.png/large.png"],
            "photo.png/large.png cannot be written (a file is in the place",
        ),
        (["photo.png", "-o", "large.gif"], "large.gif should end in one of .bmp"),
        (["-o", "large.png"], "there are no photographs to make larger"),
        (["photo.png", "-o", "large.png", "--scale", "1"], "scale must be a number above 1, got 1.0"),
        (["photo.png", "-o", "large.png", "--scale", "nan"], "scale must be a number above 1, got nan"),
        (["photo.png", "-o", "large.png", "--scale", "5"], "the model superres-x4 is not here; install sckn again, or train"),
        (["photo.png", "-o", "large.png", "--scale", "2.5", "--fast"], "the model superres-x3-fast is not here; "),
        (["photo.png", "-o", "large.png", "--fast", "--model", "superres-x2"], "--fast chooses among the models of sckn"),
        (["photo.png", "-o", "large.png", "--model", "classifier"], "classifier holds a classifier, but an upscaler"),
        (["photo.png", "-o", "large.png", "--tile", "0"], "tile must be a whole number of at least 1, got 0"),
        (["photo.png", "-o", "large.png", "--memory", "0"], "memory must be a number above 0, got 0.0"),
        (["photo.png", "-o", "large.png", "--memory", "1e-6"], "a memory of 1e-06 GiB is too little for this model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_goes_wrong_in_upscaling_is_one_sentence(
    arguments: list[str], expected: str, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.shipped.IN_PACKAGE", models / "nowhere")
    monkeypatch.setattr("sckn.shipped.IN_REPOSITORY", models / "nowhere")
    (models / "broken.png").write_bytes(b"no photograph")
    save(tiny_classifier(), "classifier")
    before = files_in(models)
    assert sentence(capsys, monkeypatch, "upscale", *arguments).startswith(expected)
    assert files_in(models) == before
