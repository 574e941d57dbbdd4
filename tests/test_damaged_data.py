"""Five hundred damaged inputs: each gives one clear error, or a warning that counts and names what is wrong; none a
traceback, a hang or code that runs.

Files have their checksums here, so that a byte flipped in a pixel is a warning. Images have none: for a flip in one of them
the last test only asks that nothing worse happens than an image that is left out.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from alarm import within
from hostile_pickles import running_code, wasting_memory_or_time
from made_up_data import md5, pack, small, with_checksums, write_binary, write_image, write_python, write_svhn
from PIL import Image
from scipy.io import savemat

from sckn.data import svhn
from sckn.data.cifar import read_cifar
from sckn.data.cifar_files import CIFAR10, CIFAR100, Cifar
from sckn.data.folder import read_folder
from sckn.data.svhn import read_svhn

RECORDS = 3
Damage = Callable[[bytes, np.random.Generator], bytes]


def cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: random.integers(len(content))]


def flip(content: bytes, random: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for place in random.choice(len(content), random.integers(1, 4), replace=False):
        damaged[place] ^= 1 << random.integers(8)
    return bytes(damaged)


def begin(content: bytes, random: np.random.Generator) -> bytes:
    """Flips where the structure of most formats is."""
    return flip(content[:200], random) + content[200:]


def lengthen(content: bytes, random: np.random.Generator) -> bytes:
    return content + random.bytes(int(random.integers(1, 5000)))


def repeat(content: bytes, random: np.random.Generator) -> bytes:
    start, end = sorted(random.integers(0, len(content), 2))
    return content[:end] + content[start:]


def replace_all(content: bytes, random: np.random.Generator) -> bytes:
    return random.bytes(int(random.integers(len(content))))


DAMAGES: tuple[Damage, ...] = (cut, flip, begin, lengthen, repeat, replace_all)


def outcome(read: Callable[[], object], place: Path) -> str:
    """The one sentence that says what is wrong and where, an error's or a warning's."""
    with warnings.catch_warnings(record=True) as caught, within(20):
        warnings.simplefilter("always")
        try:
            read()
            sentences = [str(warning.message) for warning in caught]
        except ValueError as error:
            sentences = [*(str(warning.message) for warning in caught if "left out" in str(warning.message)), str(error)]
    assert sentences, "the damage went unnoticed"
    assert len(sentences) == 1 or ("left out" in sentences[0] and "no readable image" in sentences[1])
    assert all(sentence.isprintable() and len(sentence) < 1000 and str(place) in sentence for sentence in sentences)
    return sentences[-1]


class Damaged:
    """A data set in one of its forms, with one file damaged at a time."""

    def __init__(self, read: Callable[[Path], object], files: list[Path]) -> None:
        self.read, self.files = read, files
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(files[0].parent)  # sound as it is

    def outcomes(self, count: int, seed: int) -> Iterator[str]:
        random = np.random.default_rng(seed)
        for number in range(count):
            path = self.files[random.integers(len(self.files))]
            content, damage = path.read_bytes(), DAMAGES[number % len(DAMAGES)]
            damaged = damage(content, random)
            while damaged == content:
                damaged = damage(content, random)
            yield self.outcome_with(path, damaged)

    def outcome_with(self, path: Path, damaged: bytes) -> str:
        content = path.read_bytes()
        other = path.with_name("damaged while the test runs")
        other.write_bytes(damaged)
        path.rename(path.with_name("sound"))
        other.rename(path)
        try:
            return outcome(partial(self.read, path.parent), path.parent)
        finally:
            path.unlink()
            path.with_name("sound").rename(path)
            assert path.read_bytes() == content


def cifar_form(cifar: Cifar, folder: Path, write: Callable[[Cifar, Path], Path], *, packed: bool) -> Damaged:
    cifar = small(cifar, RECORDS)
    place = write(cifar, folder)
    version = next(version for version in cifar.versions if version.folder == place.name)
    files = [place / batch.name for batch in version.batches]
    if packed:
        files = [pack(place, folder / version.archive.name)]
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
    return Damaged(partial(read_cifar, with_checksums(cifar, folder)), files)


@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("cifar", [CIFAR10, CIFAR100], ids=lambda cifar: cifar.key)
def test_damaged_cifar(cifar: Cifar, write: Callable[[Cifar, Path], Path], packed: bool, tmp_path: Path) -> None:
    """8 x 36 inputs."""
    form = cifar_form(cifar, tmp_path, write, packed=packed)
    sentences = list(form.outcomes(36, seed=0))
    assert len(sentences) == 36
    assert len(set(sentences)) > 3


def test_hostile_pickles_in_cifar(tmp_path: Path) -> None:
    """60 inputs, and those of test_plain_pickle.py."""
    marker = tmp_path / "marker"
    form = cifar_form(CIFAR10, tmp_path, write_python, packed=False)
    hostile = running_code(marker)
    names = np.random.default_rng(0).choice(sorted(hostile), 54, replace=False)
    wasting = sorted(wasting_memory_or_time().items(), key=lambda item: len(item[1]))[:6]
    for content in [*(hostile[name] for name in names), *(content for _, content in wasting)]:
        sentence = form.outcome_with(form.files[2], content)
        assert "unpack CIFAR-10 again" in sentence
        assert not marker.exists()


@pytest.fixture
def svhn_with_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Damaged]:
    def build(**options: bool) -> Damaged:
        write_svhn(tmp_path, (RECORDS, RECORDS), **options)
        for name in ("TRAIN", "TEST"):
            file = getattr(svhn, name)
            monkeypatch.setattr(svhn, name, replace(file, md5=md5(tmp_path / file.name)))
        return Damaged(read_svhn, [tmp_path / svhn.TRAIN.name, tmp_path / svhn.TEST.name])

    return build


@pytest.mark.parametrize("compressed", [True, False])
def test_damaged_svhn(compressed: bool, svhn_with_checksums: Callable[..., Damaged]) -> None:
    """2 x 36 inputs."""
    assert len(list(svhn_with_checksums(do_compression=compressed).outcomes(36, seed=0))) == 36


def test_svhn_of_another_shape(svhn_with_checksums: Callable[..., Damaged], tmp_path: Path) -> None:
    """20 inputs."""
    form, random = svhn_with_checksums(), np.random.default_rng(0)
    for number in range(20):
        shape = tuple(random.integers(1, 40, number % 5 + 1))
        values = {"X": random.integers(0, 256, shape).astype([np.uint8, float][number % 2]), "y": np.ones((shape[-1], 1))}
        savemat(tmp_path / "other.mat", values, do_compression=number % 3 == 0)
        assert "has other images" in form.outcome_with(form.files[0], (tmp_path / "other.mat").read_bytes())


FORMATS = ("png", "jpeg", "gif", "bmp", "tiff", "webp")


def image_folder(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for number, form in enumerate(FORMATS * 2):
        path = folder / "train" / "ab"[number % 2] / f"{number}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    write_image(folder / "test" / "a" / "1.png", (1, 2, 3))
    return folder


def test_a_folder_with_one_broken_image(tmp_path: Path) -> None:
    """60 inputs: images that are cut, or something else altogether."""
    folder, random = image_folder(tmp_path), np.random.default_rng(0)
    files = sorted((folder / "train").rglob("*.*"))
    for number in range(60):
        path = files[number % len(files)]
        content = path.read_bytes()
        path.write_bytes([cut(content[: len(content) // 2], random), replace_all(content, random), b""][number // 20])
        sentence = outcome(lambda: read_folder(folder, 8), folder)
        path.write_bytes(content)
        assert sentence.startswith(f"1 of 13 images in {folder} cannot be read and are left out: {path.relative_to(folder)} (")


def test_flips_in_images_do_no_harm(tmp_path: Path) -> None:
    """120 more inputs, of which some are images still."""
    folder, random = image_folder(tmp_path), np.random.default_rng(0)
    files, left_out = sorted((folder / "train").rglob("*.*")), 0
    for number in range(120):
        path = files[number % len(files)]
        content = path.read_bytes()
        path.write_bytes(DAMAGES[1 + number % 2](content, random))
        with warnings.catch_warnings(), within(20):
            warnings.simplefilter("ignore")
            train, _ = read_folder(folder, 8)
        path.write_bytes(content)
        assert len(train.labels) + len(train.skipped) == 12
        left_out += len(train.skipped)
    assert left_out > 20
