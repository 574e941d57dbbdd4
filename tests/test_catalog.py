"""What `sckn data` tells and fetches."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from made_up_data import md5, pack, small, with_checksums, write_binary, write_image, write_python, write_svhn

from sckn import cli
from sckn.data import catalog
from sckn.data.catalog import OFFICIAL, DatasetName, take_inventory
from sckn.data.cifar_files import CIFAR10, CIFAR100
from sckn.data.official import OfficialFile
from sckn.training.experiment import READERS


def test_every_data_set_of_an_experiment_is_in_the_catalog() -> None:
    assert list(get_args(DatasetName)) == list(READERS)
    assert {*OFFICIAL, "folder"} == set(READERS)


def test_the_official_files() -> None:
    files = [version.archive for cifar in (CIFAR10, CIFAR100) for version in cifar.versions]
    files += [catalog.TRAIN, catalog.TEST, catalog.EXTRA]
    assert len({file.md5 for file in files}) == len({file.name for file in files}) == 7
    md5s = [file.md5 for file in files]
    md5s += [batch.md5 for cifar in (CIFAR10, CIFAR100) for version in cifar.versions for batch in version.batches if batch.md5]
    assert len(set(md5s)) == len(md5s) == 21
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in md5s)
    assert [file.name for file in files[:2]] == ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"]


def test_nothing_there(tmp_path: Path) -> None:
    for cifar, inventory in (
        (CIFAR10, take_inventory("cifar10", tmp_path / "nowhere")),
        (CIFAR100, take_inventory("cifar100", tmp_path / "nowhere")),
    ):
        archive = cifar.versions[0].archive
        assert (inventory.found, inventory.missing, inventory.downloads) == ((), (archive.name,), (archive,))
    inventory = take_inventory("svhn", tmp_path)
    assert inventory.missing == ("train_32x32.mat", "test_32x32.mat")
    assert (inventory.downloads, inventory.optional) == ((catalog.TRAIN, catalog.TEST), (catalog.EXTRA,))


def test_unpacked_files_whole_and_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_binary(small(CIFAR10, 5), tmp_path)
    known = with_checksums(small(CIFAR10, 5), tmp_path)
    monkeypatch.setattr(catalog, "CIFAR10", known)
    inventory = take_inventory("cifar10", tmp_path)
    names = [batch.name for batch in known.versions[0].batches]
    assert inventory.found == tuple(f"{place / name}  0.0 MB, official checksum" for name in names)
    assert (inventory.missing, inventory.downloads) == ((), ())
    (place / "data_batch_2.bin").write_bytes(bytes(3_000_000))
    (place / "data_batch_4.bin").unlink()
    inventory = take_inventory("cifar10", tmp_path)
    assert inventory.found[1] == f"{place / 'data_batch_2.bin'}  3.0 MB, NOT the official checksum (remove it to get it anew)"
    assert inventory.missing == (str(place / "data_batch_4.bin"),)
    assert inventory.downloads == (known.versions[0].archive,)


def test_files_without_a_known_checksum(tmp_path: Path) -> None:
    place = write_binary(small(CIFAR100, 5), tmp_path)
    inventory = take_inventory("cifar100", tmp_path)
    assert inventory.found[0] == f"{place / 'train.bin'}  0.0 MB, no official checksum known"


def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(write_python(small(CIFAR100, 5), tmp_path / "elsewhere"), tmp_path / "cifar-100-python.tar.gz")
    for path in (tmp_path, archive):
        inventory = take_inventory("cifar100", path)
        assert inventory.found == (f"{archive}  0.0 MB, NOT the official checksum (remove it to get it anew)",)
        assert (inventory.missing, inventory.downloads) == ((), ())
    monkeypatch.setattr(catalog, "CIFAR100", with_checksums(CIFAR100, tmp_path))
    assert take_inventory("cifar100", tmp_path).found == (f"{archive}  0.0 MB, official checksum",)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path, (5, 5, 5))
    (tmp_path / "test_32x32.mat").unlink()
    monkeypatch.setattr(catalog, "TRAIN", replace(catalog.TRAIN, md5=md5(tmp_path / "train_32x32.mat")))
    inventory = take_inventory("svhn", tmp_path)
    assert [line.split("MB, ")[1] for line in inventory.found] == [
        "official checksum",
        "NOT the official checksum (remove it to get it anew)",
    ]
    assert (inventory.missing, inventory.downloads, inventory.optional) == (("test_32x32.mat",), (catalog.TEST,), ())


def test_folders_of_images(tmp_path: Path) -> None:
    for name, count in (("cat", 5), ("dog", 10)):
        for i in range(count):
            write_image(tmp_path / name / f"{i}.png", 0)
    inventory = take_inventory("folder", tmp_path)
    assert inventory.title == "2 classes, 12 files to train with, 3 to test"
    assert inventory.found == ("cat: 4 files to train with, 1 to test", "dog: 8 files to train with, 2 to test")
    with pytest.raises(ValueError, match="is no folder of images"):
        take_inventory("folder", tmp_path / "cat")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["sckn", "data", *map(str, arguments)])
    cli.main()


def test_the_command_tells_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = write_binary(small(CIFAR10, 5), tmp_path)
    (place / "test_batch.bin").unlink()
    run(monkeypatch, "--data", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cifar10: CIFAR-10, 50,000 training and 10,000 test images of 10 classes"
    assert lines[1] == f"  found    {place / 'data_batch_1.bin'}  0.0 MB, NOT the official checksum (remove it to get it anew)"
    assert lines[6:9] == [
        f"  missing  {place / 'test_batch.bin'}",
        "  get      https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz  170.1 MB",
        f"           or: sckn data cifar10 --data {tmp_path} --download",
    ]
    assert lines[9].startswith("cifar100: CIFAR-100, ")
    assert "  optional http://ufldl.stanford.edu/housenumbers/extra_32x32.mat  1,329.3 MB" in lines
    assert lines[-1].startswith("folder: any folder with one sub-folder a class")


def test_the_command_downloads_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []

    def fetch(file: OfficialFile, folder: Path) -> None:
        fetched.append(file.name)
        (folder / file.name).write_bytes(b"x")

    monkeypatch.setattr("sckn.commands.data.fetch", fetch)
    run(monkeypatch, "svhn", "--data", tmp_path, "--download")
    assert fetched == ["train_32x32.mat", "test_32x32.mat"]
    output = capsys.readouterr().out
    assert "missing" not in output
    assert output.count("  found ") == 2
    run(monkeypatch, "svhn", "--data", tmp_path, "--download", "--extra")
    run(monkeypatch, "svhn", "--data", tmp_path, "--download", "--extra")
    assert fetched == ["train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--download"], "say which data set to download: sckn data cifar10, cifar100 or svhn, with --download"),
        (["folder", "--download"], "say which data set to download: sckn data cifar10, cifar100 or svhn, with --download"),
        (["svhn", "--extra"], "--extra goes with sckn data svhn --download; leave it out"),
        (["cifar10", "--download", "--extra"], "--extra goes with sckn data svhn --download; leave it out"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="1"):
        run(monkeypatch, *arguments, "--data", tmp_path)
    assert capsys.readouterr() == ("", f"sckn: {sentence}\n")
