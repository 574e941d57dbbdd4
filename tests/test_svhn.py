"""SVHN's files, made up with scipy's writer, which shares nothing with our reader."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_data import md5, write_svhn
from scipy.io import savemat

from sckn.data import svhn
from sckn.data.svhn import read_svhn

ignored = pytest.mark.filterwarnings("ignore:.* not as handed out by the official site")


@ignored
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("counts", [(7, 5, 3), (1, 1, 1), (2, 4, 300)])
def test_images_and_labels_are_those_of_the_files(compressed: bool, counts: tuple[int, ...], tmp_path: Path) -> None:
    held = write_svhn(tmp_path, counts, do_compression=compressed)
    train, test = read_svhn(tmp_path)
    assert (len(train.labels), len(test.labels)) == counts[:2]
    for part, values in zip((train, test), held, strict=False):
        for i in range(len(part.labels)):
            np.testing.assert_array_equal(part.images[i].transpose(1, 2, 0), values["X"][:, :, :, i])
        assert part.labels.tolist() == [0 if label == 10 else label for label in values["y"].ravel()]
        assert (part.images.dtype, part.labels.dtype, part.images.flags.c_contiguous) == (np.uint8, np.int64, True)
        assert part.classes == tuple("0123456789")
    more, _ = read_svhn(tmp_path, extra=True)
    assert len(more.labels) == counts[0] + counts[2]
    np.testing.assert_array_equal(more.images[: counts[0]], train.images)
    np.testing.assert_array_equal(more.images[-1].transpose(1, 2, 0), held[2]["X"][..., -1])


@ignored
def test_labels_may_be_stored_as_floating_point(tmp_path: Path) -> None:
    (held, _) = write_svhn(tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"other": {"a": 1}, "y": held["y"].astype(float), "X": held["X"]})
    assert read_svhn(tmp_path)[0].labels.tolist() == (held["y"].ravel() % 10).tolist()


def test_official_checksums_are_silent_and_others_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path)
    with pytest.warns(UserWarning, match=r"train_32x32\.mat and 1 more there are not as handed out"):
        read_svhn(tmp_path)
    for name in ("TRAIN", "TEST"):
        file = getattr(svhn, name)
        monkeypatch.setattr(svhn, name, replace(file, md5=md5(tmp_path / file.name)))
    read_svhn(tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    with pytest.raises(
        ValueError, match=r"does not hold SVHN: expected extra_32x32\.mat there; .*--download --extra, or from http"
    ):
        read_svhn(tmp_path, extra=True)
    (tmp_path / "train_32x32.mat").unlink()
    with pytest.raises(ValueError, match=r"does not hold SVHN: expected train_32x32\.mat there; .*--download, or from http"):
        read_svhn(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere does not exist: expected train_32x32\.mat and test_32x32\.mat there"):
        read_svhn(tmp_path / "nowhere")


IMAGES, LABELS = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"y": LABELS}, "has other images than expected: an array X of bytes (32, 32, 3, n), found none"),
        ({"X": IMAGES}, "has other labels than expected: an array y of shape (4, 1), found none"),
        ({"X": IMAGES[..., 0], "y": LABELS}, "found uint8 (32, 32, 3)"),
        ({"X": IMAGES[:16], "y": LABELS}, "found uint8 (16, 32, 3, 4)"),
        ({"X": IMAGES.transpose(3, 0, 1, 2), "y": LABELS}, "found uint8 (4, 32, 32, 3)"),
        ({"X": IMAGES.astype(np.int16), "y": LABELS}, "found int16 (32, 32, 3, 4)"),
        ({"X": IMAGES[..., :0], "y": LABELS}, "X in it is no array of real numbers"),
        ({"X": IMAGES * 1j, "y": LABELS}, "X in it is no array of real numbers"),
        ({"X": {"a": 1}, "y": LABELS}, "X in it is no array of real numbers"),
        ({"X": "text", "y": LABELS}, "X in it is no array of real numbers"),
        ({"X": IMAGES, "y": LABELS[:3]}, "an array y of shape (4, 1), found (3, 1)"),
        ({"X": IMAGES, "y": LABELS.reshape(2, 2)}, "an array y of shape (4, 1), found (2, 2)"),
        ({"X": IMAGES, "y": LABELS * 0}, "holds the label 0, expected 1 to 10"),
        ({"X": IMAGES, "y": LABELS * 11}, "holds the label 11, expected 1 to 10"),
        ({"X": IMAGES, "y": LABELS * 1.5}, "holds the label 1.5, expected 1 to 10"),
        ({"X": IMAGES, "y": LABELS * np.nan}, "holds the label nan, expected 1 to 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_file_of_something_else_is_named(values: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    write_svhn(tmp_path)
    savemat(tmp_path / "test_32x32.mat", values, do_compression=True)
    with pytest.raises(ValueError, match="download it again from http") as caught:
        read_svhn(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/test_32x32.mat ")
    assert complaint in str(caught.value)
