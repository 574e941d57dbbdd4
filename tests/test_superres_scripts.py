"""The scripts on super-resolution: scores on the paper's test sets, details side by side, the picture of the README."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_upscaler import tiny_upscaler

from sckn import save
from sckn.published import SETS
from sckn.superres.evaluation import evaluate_upscaling
from sckn.superres.imresize import imresize
from sckn.superres.scores import score_upscaler

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXPERIMENTS / script), run_name="__main__")


def write_noise(path: Path, width: int, height: int) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.RandomState(0).randint(0, 256, (height // 4, width // 4, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image.save(path)
    return np.asarray(image)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run folder with a result, and the test sets."""
    for name in SETS:
        write_noise(tmp_path / "data" / name / "a.png", 40, 32)
    config = {"name": "superres-tiny", "scale": 2}
    save(tiny_upscaler(), tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    (tmp_path / "results").mkdir()
    result = {"name": "superres-tiny", "config": config, "seeds": [0], "code_version": "1", "validation": {"psnr": 30.0}}
    (tmp_path / "results" / "superres-tiny.json").write_text(json.dumps(result))
    return tmp_path


def test_scores_are_added_to_the_result_of_the_training(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["--data", trained / "data", "--results", trained / "results"]
    before = json.loads((trained / "results" / "superres-tiny.json").read_text())
    run(monkeypatch, "score_superres.py", trained / "run", *places)
    after = json.loads((trained / "results" / "superres-tiny.json").read_text())
    scores = score_upscaler(tiny_upscaler(), trained / "data", progress=False)
    scored = after.pop("scored")
    assert after == {**before, **scores}
    assert set(scored) == {"code_version", "machine", "seconds", "command"}
    quality = evaluate_upscaling(trained / "data" / "Set14", 2, tiny_upscaler().upscale_luminance).quality
    assert after["psnr"]["Set14"] == pytest.approx(quality.psnr, abs=1e-4)
    assert after["ssim"]["Set14"] == pytest.approx(quality.ssim, abs=1e-6)
    assert set(after["x3"]) == {"psnr", "ssim", "bicubic_psnr", "bicubic_ssim"}
    assert json.loads((trained / "run" / "scores.json").read_text()) == scores  # for its report


def test_only_a_model_for_two_is_used_for_three(trained: Path) -> None:
    assert "x3" not in score_upscaler(tiny_upscaler(3), trained / "data", progress=False)


def test_a_result_of_other_settings_is_left_alone(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (trained / "run" / "config.json").write_text('{"name": "superres-tiny", "scale": 3}')
    before = (trained / "results" / "superres-tiny.json").read_bytes()
    places = ["--data", trained / "data", "--results", trained / "results"]
    with pytest.raises(SystemExit, match="is of other settings than"):
        run(monkeypatch, "score_superres.py", trained / "run", *places)
    with pytest.raises(ValueError, match=r"superres-other\.json cannot be read \(No such file"):
        run(monkeypatch, "score_superres.py", trained / "superres-other.safetensors", *places)
    assert (trained / "results" / "superres-tiny.json").read_bytes() == before


# As the photographs of the paper are.
SIZES = {"baby": (512, 512), "bird": (288, 288), "butterfly": (256, 256), "comic": (250, 361), "kodim09": (512, 768)}


def test_details_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    details = runpy.run_path(str(EXPERIMENTS / "crops.py"))["DETAILS"]
    photos = {
        detail.photo: write_noise(tmp_path / detail.photo, *SIZES.get(Path(detail.photo).stem, (768, 512)))
        for detail in details
    }
    assert len(photos) == 9
    model = save(tiny_upscaler(3, weight=0.0), tmp_path / "x3.safetensors")
    run(monkeypatch, "crops.py", model, "--data", tmp_path, "--output", tmp_path / "crops", "--zoom", "1")
    assert {path.stem for path in (tmp_path / "crops").iterdir()} == {f"{Path(photo).stem}-x3" for photo in photos}
    with Image.open(tmp_path / "crops" / "butterfly-x3.png") as image:
        found = np.asarray(image)
    # 255 x 255 pixels, of which 40 and 100, 20 and 120 are cut off; a gap of two between
    height, width = 255 - 20 - 120, 255 - 40 - 100
    assert found.shape == (height + 4, 3 * width + 8, 3)
    truth, bicubic, ours = (found[2:-2, 2 + i * (width + 2) :][:, :width].astype(int) for i in range(3))
    photo = photos["Set5/butterfly.png"][:255, :255]
    assert np.array_equal(truth, photo[120:235, 40:155])
    small = imresize(torch.from_numpy(photo.copy()).permute(2, 0, 1).double(), 1 / 3).clamp(0, 255)
    expected = (imresize(small, 3) + 0.5).floor().clamp(0, 255).permute(1, 2, 0).numpy()[120:235, 40:155]
    assert np.abs(bicubic - expected).max() <= 1
    expected = 255 * tiny_upscaler(3, weight=0.0).upscale((small / 255).float()).permute(1, 2, 0).numpy()[120:235, 40:155]
    assert np.abs(ours - expected).max() <= 1
    assert np.square(ours - truth).mean() < np.square(bicubic - truth).mean()


def test_a_photograph_too_small_for_its_detail_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_noise(tmp_path / "Set5" / "baby.png", 120, 120)
    model = save(tiny_upscaler(3), tmp_path / "x3.safetensors")
    with pytest.raises(ValueError, match=r"Set5/baby\.png has 120 x 120 pixels, which leaves nothing of its detail"):
        run(monkeypatch, "crops.py", model, "--data", tmp_path, "--output", tmp_path / "crops")
    assert not (tmp_path / "crops").exists()


def panels(path: Path, script: dict[str, Any], zoom: int) -> list[np.ndarray]:
    """The four details of the picture, (h, w, 3), each of their pixels once; that it is `zoom` wide is checked."""
    with Image.open(path) as image:
        picture = np.asarray(image).astype(int)
    _, rows, columns = script["DETAIL"]
    height, width, gap = rows.stop - rows.start, columns.stop - columns.start, script["GAP"]
    assert picture.shape == (height * zoom + 2 * gap, 4 * (width * zoom + gap) + gap, 3)
    found = [picture[gap:-gap, gap + i * (width * zoom + gap) :][:, : width * zoom] for i in range(4)]
    once = [panel[::zoom, ::zoom] for panel in found]
    assert all(np.array_equal(panel, small.repeat(zoom, 0).repeat(zoom, 1)) for panel, small in zip(found, once, strict=True))
    return once


def test_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(EXPERIMENTS / "before_after.py"))
    run(monkeypatch, "before_after.py", "--output", tmp_path / "picture.png")
    small, bicubic, ours, truth = panels(tmp_path / "picture.png", script, zoom=3)
    with Image.open(script["PHOTO"]) as photo:
        pixels = np.asarray(photo.convert("RGB"))[:, :450]  # a multiple of 3
    assert np.array_equal(truth, pixels[script["DETAIL"][1:]])

    less = imresize(torch.from_numpy(pixels.copy()).permute(2, 0, 1).double(), 1 / 3)
    rows, columns = (slice(side.start // 3, side.stop // 3) for side in script["DETAIL"][1:])
    assert np.abs(small[::3, ::3] - less[:, rows, columns].permute(1, 2, 0).numpy()).max() <= 0.51
    assert np.array_equal(small, small[::3, ::3].repeat(3, 0).repeat(3, 1))  # whole squares

    errors = [np.square(panel - truth).mean() for panel in (small, bicubic, ours)]
    assert errors[2] < 0.8 * errors[1] < 0.8 * errors[0]

    shown = panels(script["PICTURE"], script, zoom=3)
    again = "run python experiments/before_after.py"
    assert all(np.abs(a - b).max() <= 2 for a, b in zip(shown, (small, bicubic, ours, truth), strict=True)), again
    assert script["PICTURE"].stat().st_size < 400_000


def test_before_and_after_of_another_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(EXPERIMENTS / "before_after.py"))
    model = save(tiny_upscaler(2, weight=0.0), tmp_path / "x2.safetensors")
    run(monkeypatch, "before_after.py", "--model", model, "--output", tmp_path / "picture.png", "--zoom", "1")
    _, bicubic, ours, truth = panels(tmp_path / "picture.png", script, zoom=1)
    assert np.abs(ours - bicubic).max() > 2
    assert np.square(ours - truth).mean() < np.square(bicubic - truth).mean()  # without weights, but what is certain is right
