"""The folder for files of visitors: nothing stays, whatever becomes of the server."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sckn.web import private_folder as module
from sckn.web.private_folder import private_folder

# The module by itself imports nothing of sckn, so that this is quick.
HOLD = f"""
import runpy
with runpy.run_path({module.__file__!r})["private_folder"]() as folder:
    (folder / "a photo").write_text("private")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_gone_at_the_end(place: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "some").mkdir()
        (folder / "some" / "photo").write_text("private")
        with private_folder() as other:  # which leaves alone what is in use
            assert other != folder
            assert (folder / "some" / "photo").exists()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with private_folder():
            assert (left / "a photo").exists()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert (left / "a photo").exists()
    (place / "another").mkdir()
    with private_folder() as folder:
        assert {path.name for path in place.iterdir()} == {folder.name, "another"}
