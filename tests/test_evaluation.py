"""The protocol: what is cropped, rounded and averaged; with the real photographs, the figures that the paper prints."""

import json
import math
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sckn.superres.evaluation import evaluate_upscaling, measure_upscaling
from sckn.superres.imresize import imresize
from sckn.superres.quality import psnr, ssim

ROOT = Path(__file__).parents[1]
PHOTOS = os.environ.get("SCKN_SUPERRES_DATA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two small pictures, one in colours and one grey, whose sides are no multiples of 2 or 3."""
    random = np.random.RandomState(0)
    for name, shape in (("a.png", (31, 25, 3)), ("b.png", (40, 29))):
        coarse = Image.fromarray(random.randint(0, 256, shape).astype(np.uint8))
        coarse.resize((shape[1] // 4, shape[0] // 4)).resize((shape[1], shape[0])).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_the_steps_of_the_protocol(folder: Path) -> None:
    truth = torch.from_numpy(np.array(Image.open(folder / "b.png")))
    cropped = truth[:39, :27]
    shrunk = imresize(cropped.double(), 1 / 3)
    assert shrunk.shape == (13, 9)
    result = imresize(shrunk, 3).round().clamp(0, 255)[3:-3, 3:-3]
    quality = measure_upscaling(truth, 3)
    assert quality.psnr == psnr(result, cropped[3:-3, 3:-3])
    assert quality.ssim == ssim(result, cropped[3:-3, 3:-3])


def test_a_folder_is_judged_beside_bicubic(folder: Path) -> None:
    seen: list[Tensor] = []

    def nearest(small: Tensor) -> Tensor:
        seen.append(small)
        return small.repeat_interleave(2, 0).repeat_interleave(2, 1)

    report = evaluate_upscaling(folder, 2, nearest)
    assert [image.name for image in report.images] == ["a.png", "b.png"]
    assert [tuple(small.shape) for small in seen] == [(15, 12), (20, 14)]
    assert all(small.dtype == torch.float64 and not torch.equal(small, small.round()) for small in seen)
    assert report.quality.psnr < report.bicubic.psnr
    assert report.quality.psnr == pytest.approx(sum(image.quality.psnr for image in report.images) / 2)
    lines = report.table().splitlines()
    assert len(lines) == 4
    assert f"{report.quality.psnr:.2f}" in lines[-1]
    content = report.to_dict()
    assert content["mean"]["bicubic"] == {"psnr": report.bicubic.psnr, "ssim": report.bicubic.ssim}
    assert content["images"][0]["name"] == "a.png"
    assert evaluate_upscaling(folder, 2).quality == report.bicubic


def test_equal_images_give_valid_json(tmp_path: Path) -> None:
    Image.new("L", (20, 20), 90).save(tmp_path / "flat.png")
    report = evaluate_upscaling(tmp_path, 2)
    assert report.quality.psnr == math.inf
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["mean"]["quality"] == {"psnr": None, "ssim": 1.0}


def test_what_cannot_be_judged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the method made"):
        evaluate_upscaling(folder, 2, lambda small: small)
    with pytest.raises(ValueError, match="scale must be a whole number of at least 2"):
        evaluate_upscaling(folder, 1)
    Image.new("L", (5, 50)).save(folder / "narrow.png")
    with pytest.raises(ValueError, match=r"narrow\.png has 5 x 50 pixels, too few"):
        evaluate_upscaling(folder, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        evaluate_upscaling(tmp_path / "empty", 2)
    with pytest.raises(ValueError, match="is not a folder"):
        evaluate_upscaling(tmp_path / "nowhere", 2)


@pytest.mark.skipif(PHOTOS is None, reason="SCKN_SUPERRES_DATA does not name the folder of Set5, Set14 and Kodak")
def test_the_twelve_figures_of_the_paper() -> None:
    printed = runpy.run_path(str(ROOT / "experiments" / "bicubic.py"))["PRINTED"]
    for (scale, name), figures in printed.items():
        measured = evaluate_upscaling(Path(str(PHOTOS)) / name, scale).bicubic
        assert (round(measured.psnr, 2), round(measured.ssim, 4)) == figures
