"""Image files, folders and standard input: an answer for each, and one that is broken does not hold up the others."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_classifier import CLASSES, tiny_classifier

from sckn import classification
from sckn.classification import Answer, classify_files
from sckn.data.pictures import read_picture

NOTHING = io.BytesIO()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images of several sizes and formats, one of them in a folder below, and three files that are none."""
    random = np.random.default_rng(0)
    (tmp_path / "below").mkdir()
    for number, name in enumerate(["a.png", "b.bmp", "c.gif", "below/d.tiff", "e.png"]):
        pixels = random.integers(0, 256, (9 + number, 15 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / ".hidden.png").write_bytes(b"passed over")
    return tmp_path


def answers(*sources: str | Path, top: int = 3, batch_size: int = 256, given: io.BytesIO = NOTHING) -> list[Answer]:
    return list(classify_files(tiny_classifier(), map(str, sources), given, top=top, batch_size=batch_size))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_every_file_of_a_folder_has_its_answer(folder: Path, batch_size: int) -> None:
    found = answers(folder, batch_size=batch_size)
    names = [str(Path(answer.image).relative_to(folder)) for answer in found]
    assert names == ["a.png", "b.bmp", "below/d.tiff", "broken.png", "c.gif", "e.png", "empty.png", "notes.txt"]
    broken = [name for name, answer in zip(names, found, strict=True) if answer.problem is not None]
    assert broken == ["broken.png", "empty.png", "notes.txt"]
    for answer in found:
        if answer.problem is None:
            scores = tiny_classifier().predict(read_picture(Path(answer.image), 12)[None])[0].tolist()
            assert dict(answer.best) == pytest.approx(dict(zip(CLASSES, scores, strict=True)), abs=1e-5)
            assert [score for _, score in answer.best] == sorted((score for _, score in answer.best), reverse=True)
        else:
            assert answer.best == ()
            assert "\n" not in answer.problem


def test_so_many_classes_as_asked_for(folder: Path) -> None:
    assert [len(answers(folder / "a.png", top=top)[0].best) for top in (1, 2, 3, 50)] == [1, 2, 3, 3]
    with pytest.raises(ValueError, match="top must be a whole number of at least 1, got 0"):
        answers(folder / "a.png", top=0)


def test_standard_input_is_an_image(folder: Path) -> None:
    (expected,) = answers(folder / "e.png")
    first, second = answers("-", folder / "e.png", given=io.BytesIO((folder / "e.png").read_bytes()))
    assert (first.image, first.best) == ("-", second.best)
    assert dict(first.best) == pytest.approx(dict(expected.best), abs=1e-5)
    assert [answer.problem for answer in answers("-")] == ["there is nothing on standard input"]
    assert answers("-", given=io.BytesIO(b"text"))[0].problem == "not an image of a known format"


def test_standard_input_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MOST_BYTES", 10)
    (answer,) = answers("-", given=io.BytesIO((folder / "e.png").read_bytes()))
    assert answer.problem == "there are too many bytes"


def test_what_is_no_file_is_named_and_the_others_are_done(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe")
    found = answers(tmp_path / "none", tmp_path / "pipe", tmp_path / "nowhere.png", folder / "a.png", f"{tmp_path}/a.png/b")
    assert [answer.problem for answer in found] == [
        "there are no files in this folder",
        "it is no plain file",
        "it does not exist",
        None,
        "it does not exist",
    ]


def test_for_json(folder: Path) -> None:
    good, bad = answers(folder / "a.png", folder / "notes.txt", top=1)
    assert good.to_dict() == {
        "image": str(folder / "a.png"),
        "best": [{"class": good.best[0][0], "score": round(good.best[0][1], 6)}],
    }
    assert bad.to_dict() == {"image": str(folder / "notes.txt"), "problem": "not an image of a known format"}
