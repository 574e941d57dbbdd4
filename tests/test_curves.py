"""The picture of a training: it can be opened, shows what it is given, and asks for matplotlib in one sentence."""

import builtins
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sckn.extras import MissingPackageError
from sckn.training.curves import draw_curves

pytest.importorskip("matplotlib")


def records(count: int = 5, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "epoch": epoch,
            "objective": 0.5 * 0.8**epoch,
            "train_error": 20.0 / (1 + epoch),
            "validation_error": 25.0 / (1 + epoch / 2),
            "accepted": True,
            "learning_rate": 0.1,
            "active_fraction": 1 - epoch / 10,
            **changes,
        }
        for epoch in range(count)
    ]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[[list[dict[str, Any]]], np.ndarray]:
    def draw(epochs: list[dict[str, Any]]) -> np.ndarray:
        return pixels(draw_curves(epochs, tmp_path / "curves.png", "a training"))

    return draw


def without(package: str) -> Callable[..., Any]:
    """An import that does not find this package."""
    original = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *args, **kwargs)

    return importing


def test_the_picture_can_be_opened(tmp_path: Path) -> None:
    path = draw_curves(records(), tmp_path / "folder" / "curves.png", "a training")
    assert path == tmp_path / "folder" / "curves.png"
    assert os.listdir(path.parent) == ["curves.png"]
    image = pixels(path)
    assert min(image.shape[:2]) > 400
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 10


def test_the_same_data_give_the_same_picture(drawn: Callable[..., np.ndarray]) -> None:
    assert np.array_equal(drawn(records()), drawn(records()))


def test_every_curve_is_seen(drawn: Callable[..., np.ndarray]) -> None:
    before = drawn(records())
    for name in ("objective", "train_error", "validation_error", "learning_rate", "active_fraction"):
        changed = records()
        changed[2][name] *= 0.5
        assert not np.array_equal(drawn(changed), before), name


def test_epochs_that_were_undone_are_marked_and_change_no_curve(drawn: Callable[..., np.ndarray]) -> None:
    """Red is used for nothing else."""

    def red(image: np.ndarray) -> int:
        r, g, b = image.astype(int).transpose(2, 0, 1)
        return int(((r > 180) & (g < 160) & (b < 160) & (abs(g - b) < 10)).sum())

    undone, wild = records(), records()
    undone[3]["accepted"] = False
    wild[3] |= {"accepted": False, "objective": 1e6, "train_error": 90.0, "validation_error": 90.0}
    assert red(drawn(records())) == 0
    assert red(drawn(undone)) > 100
    assert np.array_equal(drawn(undone), drawn(wild))


def test_values_that_are_missing_are_left_out(drawn: Callable[..., np.ndarray]) -> None:
    shorter = records()
    del shorter[2]["train_error"]
    expected = drawn(shorter)
    assert not np.array_equal(expected, drawn(records()))
    for missing in (None, math.nan, math.inf):
        gap = records()
        gap[2]["train_error"] = missing
        assert np.array_equal(drawn(gap), expected), missing


@pytest.mark.parametrize(
    "epochs",
    [
        records(1),
        records(3, validation_error=None),
        records(3, train_error=None, validation_error=None),
        records(3, objective=None),
        records(3, objective=0.0, learning_rate=0.0),  # not on a logarithmic scale
        records(3, accepted=False),
        [{"epoch": 0, "accepted": True}],
    ],
)
def test_data_with_holes_are_drawn_without_a_warning(drawn: Callable[..., np.ndarray], epochs: list[dict[str, Any]]) -> None:
    assert drawn(epochs).size  # warnings are errors here


def test_a_title_is_not_a_formula(tmp_path: Path) -> None:
    path = draw_curves(records(), tmp_path / "curves.png", r"lambda-2^-1 $\broken{ $")
    assert pixels(path).size


def test_no_epochs_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no epochs to draw"):
        draw_curves([], tmp_path / "curves.png", "nothing")
    assert not list(tmp_path.iterdir())


def test_the_program_keeps_its_own_backend(tmp_path: Path) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    before = mpl.get_backend()
    mpl.use("svg")
    try:
        draw_curves(records(), tmp_path / "curves.png", "a training")
        assert mpl.get_backend() == "svg"
        assert plt.get_fignums() == []
    finally:
        mpl.use(before)


def test_a_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", without("matplotlib"))
    with pytest.raises(MissingPackageError, match=r"needs matplotlib; install it with pip install 'sckn\[plots\]'"):
        draw_curves(records(), tmp_path / "curves.png", "a training")
    assert not list(tmp_path.iterdir())


def test_a_failing_disk_leaves_the_last_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw_curves(records(), tmp_path / "curves.png", "a training")
    before = path.read_bytes()

    def full(file: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"curves\.png cannot be written \(No space left on device\)"):
        draw_curves(records(8), path, "a training")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["curves.png"]
