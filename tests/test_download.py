"""Downloads from a server that runs beside the tests."""

import hashlib
import os
import resource
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep

import pytest

from sckn.data import download as module
from sckn.data.download import download
from sckn.data.official import OfficialFile

CONTENT = bytes(range(256)) * 10_000


class Handler(BaseHTTPRequestHandler):
    """What comes back depends on the name that is asked for."""

    def do_GET(self) -> None:
        match self.path.strip("/"):
            case "whole":
                self.answer(CONTENT)
            case "moved":
                self.send_response(302)
                self.send_header("Location", "/whole")
                self.end_headers()
            case "to_a_file":
                self.send_response(302)
                self.send_header("Location", "file:///etc/hostname")
                self.end_headers()
            case "round_and_round":
                self.send_response(302)
                self.send_header("Location", "/round_and_round")
                self.end_headers()
            case "changed":
                self.answer(CONTENT[:-1] + b"x")
            case "short":
                self.answer(CONTENT[:1000])
            case "long":
                self.answer(CONTENT * 3)
            case "broken":
                self.answer(CONTENT[: len(CONTENT) // 2], length=len(CONTENT))
            case "stalled":
                self.answer(CONTENT[:1000], length=len(CONTENT))
                sleep(1)
            case "no_http":
                self.wfile.write(b"hello\n")
            case "busy":
                self.send_error(503)
            case _:
                self.send_error(404)

    def answer(self, content: bytes, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name is that of the base class)
        """Nothing is printed."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def file_at(address: str) -> OfficialFile:
    return OfficialFile(address, len(CONTENT), hashlib.md5(CONTENT).hexdigest())


@pytest.mark.parametrize("name", ["whole", "moved"])
def test_a_file_comes_whole(name: str, site: str, tmp_path: Path) -> None:
    """Into a folder that need not be there, and what an interrupted download left there is removed."""
    folder = tmp_path / "new" / "folder"
    assert download(file_at(f"{site}/{name}"), folder) == folder / name
    assert (folder / name).read_bytes() == CONTENT
    (folder / f".{name}.abcd1234").write_bytes(b"left over")
    (folder / name).write_bytes(b"old")
    download(file_at(f"{site}/{name}"), folder)
    assert (folder / name).read_bytes() == CONTENT
    assert os.listdir(folder) == [name]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere", r"/nowhere cannot be fetched \(404 Not Found\); check the network and try again"),
        ("busy", r"/busy cannot be fetched \(503 Service Unavailable\); check the network and try again"),
        ("changed", r"gave another file than the official one \(another MD5 checksum\); it was not kept, try again"),
        ("short", r"gave another file than the official one \(1000 bytes, expected 2560000\); it was not kept, try again"),
        ("long", r"gave another file than the official one \(\d+ bytes, expected 2560000\); it was not kept, try again"),
        ("broken", r"gave another file than the official one \(1280000 bytes, expected 2560000\); it was not kept"),
        ("no_http", r"/no_http cannot be fetched \(hello\); check the network"),
        ("to_a_file", r"/to_a_file cannot be fetched \(302 .*file:///etc/hostname.*\); check"),
        ("round_and_round", r"/round_and_round cannot be fetched \(302 .*infinite loop.*\); check"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_leaves_nothing(name: str, complaint: str, site: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        download(file_at(f"{site}/{name}"), tmp_path)
    assert str(caught.value).startswith(site)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_failed_download_leaves_the_file_that_was_there(site: str, tmp_path: Path) -> None:
    (tmp_path / "changed").write_bytes(b"mine")
    with pytest.raises(ValueError, match="another file"):
        download(file_at(f"{site}/changed"), tmp_path)
    assert (tmp_path / "changed").read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["changed"]


def test_a_server_that_stalls_is_not_waited_for(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    with pytest.raises(ValueError, match=r"/stalled cannot be fetched \(.*timed out\); check the network and try again"):
        download(file_at(f"{site}/stalled"), tmp_path)
    assert os.listdir(tmp_path) == []


def test_no_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match=rf"http://127.0.0.1:{port}/x cannot be fetched \(.*refused.*\); check the network"):
        download(file_at(f"http://127.0.0.1:{port}/x"), tmp_path)


def no_such_name(*_: object, **__: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    with pytest.raises(ValueError, match=r"cannot be fetched \(.*Name or service not known\); check the network and try again"):
        download(file_at("http://example.org/x"), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Writing more than this into a file is an error like that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(site: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"whole cannot be written \(File too large\); nothing was left there"):
        download(file_at(f"{site}/whole"), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_is_one_sentence(site: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/whole cannot be written \(.+\); choose a folder"):
        download(file_at(f"{site}/whole"), tmp_path / "file")
