"""Folders of images with one sub-folder a class."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from alarm import within
from made_up_data import write_image
from PIL import Image

from sckn.data.folder import read_folder

COLORS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def write_classes(folder: Path, counts: Iterable[int] = (10, 10, 10)) -> Path:
    """One colour a class."""
    for (name, color), count in zip(COLORS.items(), counts, strict=True):
        for i in range(count):
            write_image(folder / name / f"{i:02}.png", color)
    return folder


def test_classes_sizes_and_colours(tmp_path: Path) -> None:
    train, test = read_folder(write_classes(tmp_path), image_size=5)
    for part, count in ((train, 24), (test, 6)):
        assert (part.images.shape, part.images.dtype) == ((count, 3, 5, 5), np.uint8)
        assert (part.labels.dtype, part.classes, part.skipped) == (np.int64, ("blue", "green", "red"), ())
        for image, label in zip(part.images, part.labels, strict=True):
            assert image.reshape(3, -1).T.tolist() == [list(COLORS[part.classes[label]])] * 25
        assert np.bincount(part.labels).tolist() == [count // 3] * 3


def numbered(folder: Path, count: int) -> Path:
    """Two classes of images that are told apart by their red."""
    for name in ("a", "b"):
        for i in range(count):
            write_image(folder / name / f"{i:03}.png", (i, 0, 0))
    return folder


def test_without_a_test_folder_a_fifth_is_drawn_always_the_same(tmp_path: Path) -> None:
    folder = numbered(tmp_path, 50)
    train, test = read_folder(folder, 1)
    again = read_folder(folder, 1)[1]
    np.testing.assert_array_equal(test.images, again.images)
    for label in (0, 1):
        held_out, kept = (part.images[part.labels == label, 0, 0, 0].tolist() for part in (test, train))
        assert sorted(held_out + kept) == list(range(50))
        assert (len(held_out), held_out == sorted(held_out)) == (10, True)
        assert held_out != list(range(0, 50, 5))
        assert max(held_out) > 30 > 20 > min(held_out)


def test_an_image_that_breaks_does_not_change_the_test_set(tmp_path: Path) -> None:
    folder = numbered(tmp_path, 20)
    before = read_folder(folder, 1)
    (folder / "a" / f"{before[0].images[0, 0, 0, 0]:03}.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 40 images"):
        after = read_folder(folder, 1)
    np.testing.assert_array_equal(before[1].images, after[1].images)
    np.testing.assert_array_equal(before[0].images[1:], after[0].images)


@pytest.mark.parametrize("name", ["test", "val"])
def test_train_and_test_folders_are_the_two_sets(name: str, tmp_path: Path) -> None:
    write_classes(tmp_path / "train", (4, 3, 2))
    write_classes(tmp_path / name, (1, 0, 2))
    train, test = read_folder(tmp_path, 2)
    assert np.bincount(train.labels).tolist() == [4, 3, 2]
    assert np.bincount(test.labels).tolist() == [1, 0, 2]  # the classes are numbered as in training
    assert train.classes == test.classes == ("blue", "green", "red")


def test_of_test_and_val_the_first_is_the_test_set(tmp_path: Path) -> None:
    for name, count in (("train", 4), ("val", 3), ("test", 2)):
        write_classes(tmp_path / name, (count, count, count))
    assert len(read_folder(tmp_path, 2)[1].labels) == 6


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "test", "truck"):
        write_image(tmp_path / name / "1.png", (1, 2, 3))
        write_image(tmp_path / name / "2.png", (1, 2, 3))
    assert read_folder(tmp_path, 2)[0].classes == ("test", "train", "truck")


def test_a_class_of_the_test_set_alone_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "test")
    write_image(tmp_path / "test" / "violet" / "1.png", (1, 2, 3))
    with pytest.raises(ValueError, match=r"test has the class violet, which .*train lacks; add it there"):
        read_folder(tmp_path)


def broken(folder: Path) -> list[str]:
    """Files in a class that are no images, in many ways."""
    place = folder / "green"
    good = (place / "00.png").read_bytes()
    (place / "empty.png").touch()
    (place / "text.jpg").write_text("no image")
    (place / "cut.png").write_bytes(good[:-30])
    (place / "below").mkdir()
    (place / "below" / "no header.png").write_bytes(good[8:])
    write_image(place / "postscript.eps", (1, 2, 3))
    write_image(place / "floating.tiff", 0.5, mode="F")
    Image.new("1", (20_000, 5_000)).save(place / "large.png")
    Image.new("1", (20_000, 20_000)).save(place / "very large.png")
    return [
        "below/no header.png",
        "cut.png",
        "empty.png",
        "floating.tiff",
        "large.png",
        "postscript.eps",
        "text.jpg",
        "very large.png",
    ]


def test_what_cannot_be_read_is_left_out_counted_and_named(tmp_path: Path) -> None:
    write_classes(tmp_path)
    names = broken(tmp_path)
    with pytest.warns(UserWarning, match="cannot be read") as caught:
        train, test = read_folder(tmp_path)
    (warning,) = caught
    assert str(warning.message).startswith(f"8 of 38 images in {tmp_path} cannot be read and are left out: green/")
    assert str(warning.message).endswith(" and 3 more")
    assert "\n" not in str(warning.message)
    skipped = sorted(train.skipped + test.skipped)
    assert [line.split(" (")[0] for line in skipped] == [f"green/{name}" for name in names]
    reasons = {line.split(" (")[0].removeprefix("green/"): line.split(" (", 1)[1] for line in skipped}
    assert reasons["text.jpg"] == reasons["postscript.eps"] == "not an image of a known format)"
    assert reasons["large.png"] == "20000 x 5000 pixels are too many)"
    assert reasons["floating.tiff"] == "pixels of the kind F have no known range)"
    assert len(train.labels) + len(test.labels) == 30


def test_hidden_files_pipes_and_rings_are_passed_over(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / "red" / ".DS_Store").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "red" / ".cache").mkdir()
    (tmp_path / "red" / ".cache" / "x.png").touch()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "red" / "ring").symlink_to(tmp_path)
    (tmp_path / "red" / "gone.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "red" / "pipe.png")
    with within(20):
        train, test = read_folder(tmp_path)
    assert len(train.labels) + len(test.labels) == 30


def test_strange_names_stay_on_one_line(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / "red" / "two\nlines.png").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/red/no \xff text.png")).touch()
    with pytest.warns(UserWarning, match="2 of 32") as caught:
        read_folder(tmp_path)
    assert str(caught[0].message).isprintable()


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda folder: None, "is no folder of images: expected two or more sub-folders"),
        (lambda folder: write_image(folder / "a" / "1.png", 0), "is no folder of images: expected two or more sub-folders"),
        (lambda folder: write_image(folder / "1.png", 0), "is no folder of images: expected two or more sub-folders"),
        (lambda folder: write_classes(folder / "train"), "is no folder of images: expected two or more sub-folders"),
        (
            lambda folder: write_classes(folder, (3, 0, 3)) and (folder / "green").mkdir(),
            "no readable image of the class green",
        ),
        (lambda folder: write_classes(folder, (1, 1, 1)), "no readable image to test with"),
    ],
)
def test_folders_of_nothing_are_told(build: object, complaint: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert callable(build)
    build(folder)
    with pytest.raises(ValueError, match=complaint) as caught:
        read_folder(folder)
    assert str(caught.value).startswith(str(folder))


def test_nothing_readable_is_an_error_beside_the_warning(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i in range(5):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{i}.png").write_bytes(b"no image")
    with (
        pytest.warns(UserWarning, match="10 of 10 images"),
        pytest.raises(ValueError, match="no readable image of the class a; expected two or more images in each class"),
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize("size", [0, -1, 1.5, "32", True, None])
def test_sizes_that_are_none_are_refused(size: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="image_size must be a whole number of at least 1"):
        read_folder(tmp_path, size)  # pyright: ignore[reportArgumentType]


def test_a_size_beyond_the_memory_is_told(tmp_path: Path) -> None:
    write_classes(tmp_path)
    with pytest.raises(ValueError, match="24 images of 100000000 x 100000000 pixels do not fit into the memory; set a smaller"):
        read_folder(tmp_path, 10**8)


def test_pillows_own_warnings_are_not_passed_on(tmp_path: Path) -> None:
    write_classes(tmp_path)
    image = Image.new("P", (4, 4))
    image.putpalette([1, 2, 3] * 256)
    image.save(tmp_path / "red" / "palette.png", transparency=bytes(256))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_folder(tmp_path)[0].skipped == ()
