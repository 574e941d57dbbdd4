"""Files are written whole or not at all."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sckn.files import written_whole


def names(folder: Path) -> list[str]:
    """All that is in a folder, hidden files too."""
    return sorted(os.listdir(folder))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere: act as nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with written_whole(path) as temporary:
        temporary.write_text("whole")
        assert temporary.parent == tmp_path  # the same file system, so that renaming is atomic
        assert not path.exists()
    assert path.read_text() == "whole"
    assert names(tmp_path) == ["a.txt"]


def test_an_existing_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a long old content")
    with written_whole(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "a long old content"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_who_has_the_old_file_open_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open() as reader:
        with written_whole(path) as temporary:
            temporary.write_text("new")
        assert reader.read() == "old"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existed", [True, False])
def test_an_exception_leaves_what_there_was(tmp_path: Path, existed: bool, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    if existed:
        path.write_text("old")

    def fail() -> None:
        with written_whole(path) as temporary:
            temporary.write_text("half of i")
            raise error("my own words")

    with pytest.raises(error, match="my own words"):
        fail()
    assert names(tmp_path) == (["a.txt"] if existed else [])
    if existed:
        assert path.read_text() == "old"


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "a.txt"
    with written_whole(path) as temporary:
        temporary.write_text("x")
    assert path.read_text() == "x"
    assert names(path.parent) == ["a.txt"]


def test_the_suffix_is_kept_for_writers_that_add_it(tmp_path: Path) -> None:
    with written_whole(tmp_path / "a.npy") as temporary:
        np.save(temporary, np.arange(3))
    assert names(tmp_path) == ["a.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(3))


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o027, 0o640)])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    with umask(mask):
        with written_whole(tmp_path / "a.txt") as temporary:
            temporary.write_text("x")
        (tmp_path / "plain.txt").write_text("as the system does it")
        assert os.umask(mask) == mask  # it is left as it was
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "plain.txt").stat().st_mode) == mode


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with written_whole(path) as first, written_whole(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert path.read_text() == "first"  # the outer block ends last
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("below", ["a.txt", "deeper/a.txt"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, below: str) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")

    def write() -> None:
        with written_whole(blocked / below):
            pytest.fail("nothing can be written here")

    with pytest.raises(OSError, match=rf"blocked/{below} cannot be written \(.+\); choose a folder"):
        write()
    assert blocked.read_text() == "a file"
    assert names(tmp_path) == ["blocked"]


@pytest.mark.parametrize("below", ["a.txt", "new/a.txt"])
def test_a_read_only_folder_is_named(below: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path, which only its owner may enter
        folder = Path(name)
        folder.chmod(0o555)

        def write() -> None:
            with written_whole(folder / below):
                pytest.fail("nothing can be written here")

        with without_privileges(), pytest.raises(OSError, match=rf"{below} cannot be written \(Permission denied\); choose"):
            write()
        folder.chmod(0o755)
        assert names(folder) == []


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.mkdir()

    def write() -> None:
        with written_whole(path) as temporary:
            temporary.write_text("x")

    with pytest.raises(OSError, match=r"a\.txt cannot be written"):
        write()
    assert names(tmp_path) == ["a.txt"]
    assert names(path) == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sckn.files import written_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing past the limit is then an error like a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with written_whole(Path(sys.argv[1])) as temporary:
        temporary.write_bytes(bytes(1_000_000))
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "a.bin"
    if existed:
        path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert f"{path} cannot be written (File too large)" in done.stdout
    assert names(tmp_path) == (["a.bin"] if existed else [])
    if existed:
        assert path.read_bytes() == b"old"
