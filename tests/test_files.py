"""Files are written whole or not at all."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sckn.files import append_line, remove_leftovers, written_whole


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


def test_folders_that_were_made_for_a_file_that_failed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(RuntimeError), written_whole(tmp_path / "mine" / "new" / "newer" / "a.txt"):
        raise RuntimeError
    assert names(tmp_path / "mine") == []


def test_a_folder_into_which_another_wrote_meanwhile_stays(tmp_path: Path) -> None:
    def fail(temporary: Path) -> None:
        (temporary.parent / "of somebody else").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError), written_whole(tmp_path / "new" / "a.txt") as temporary:
        fail(temporary)
    assert names(tmp_path / "new") == ["of somebody else"]


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


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Writing more is an error like that of a full disk, as Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "a.bin"
    if existed:
        path.write_bytes(b"old")

    def write() -> None:
        with written_whole(path) as temporary:
            temporary.write_bytes(bytes(1_000_000))

    left = "the file that was there is intact" if existed else "nothing was left there"
    with files_limited_to(4096), pytest.raises(OSError, match=rf"a\.bin cannot be written \(File too large\); {left}$"):
        write()
    assert names(tmp_path) == (["a.bin"] if existed else [])
    if existed:
        assert path.read_bytes() == b"old"


def test_what_is_renamed_is_on_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content, then the name, then the folder that holds the name."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def watched_sync(file: Any) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size} bytes")
        sync(file)

    def watched_replace(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with written_whole(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
    assert done == ["file of 5 bytes", "rename", "folder"]
    done.clear()
    append_line(tmp_path / "lines.txt", "one")
    append_line(tmp_path / "lines.txt", "two")
    assert done == ["file of 4 bytes", "folder", "file of 8 bytes"]


@pytest.mark.parametrize("existed", [True, False])
def test_a_disk_that_fails_at_the_last_moment_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """Some file systems find out that they are full when the content is brought to the disk."""
    path = tmp_path / "a.txt"
    if existed:
        path.write_text("old")

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write() -> None:
        with written_whole(path) as temporary:
            temporary.write_text("new")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"a\.txt cannot be written \(No space left on device\)") as caught:
        write()
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == (["a.txt"] if existed else [])
    if existed:
        assert path.read_text() == "old"


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def only_files(file: Any) -> None:
        if isinstance(file, int):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(file)

    monkeypatch.setattr(os, "fsync", only_files)
    with written_whole(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    append_line(path, "one")
    append_line(path, "zwölf")
    assert path.read_text(encoding="utf-8") == "one\nzwölf\n"
    assert names(tmp_path) == ["lines.txt"]


def test_a_line_that_does_not_fit_leaves_the_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    append_line(path, "one")
    with files_limited_to(4096), pytest.raises(OSError, match="File too large"):
        append_line(path, "x" * 5000)
    assert path.read_text() == "one\n"
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from sckn.files import written_whole
with written_whole(Path({str(tmp_path / "a.txt")!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    others = ["a.txt", ".a.txt.swp", ".a.txt", "a.txt.abcdefgh.txt", ".b.txt.abcdefgh.txt", ".a.txt.abcdefgh.json"]
    for name in others:
        (tmp_path / name).write_text("mine")
    remove_leftovers(tmp_path / "a.txt")
    assert names(tmp_path) == sorted(others)
