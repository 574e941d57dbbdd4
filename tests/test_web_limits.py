"""Limits of `sckn serve`: each is told in a sentence with the right status, and nothing is left of what was refused."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from serving import SLOW, Running, encoded, form_data, patiently, photograph, received, serving

from sckn.commands import serve as command
from sckn.web.limits import Limits

OPTIONS = {"upload": 1, "upload-seconds": 2, "input": 1.5, "output": 12, "queue": 2, "seconds": 6, "patience": 1, "keep": 2}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
    with serving(tmp_path_factory.mktemp("strict"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def long_work() -> bytes:
    """A photograph on which the slow model works for longer than the limit."""
    return encoded(photograph(1150, 1150), "JPEG", quality=60)


def idle(server: Running, seconds: float = 20) -> bool:
    """Whether there is soon nothing to do and nothing kept."""
    for _ in patiently(seconds):
        if server.get("/api/health").json == {"status": "ok", "waiting": 0, "running": 0} and not server.files():
            return True
    return False


def test_bytes_of_an_upload(strict: Running) -> None:
    answer = strict.upload(b"x" * 1_500_000)
    assert answer.status == 413
    assert answer.problem == "the upload is too large; at most 1 MiB are taken here"
    assert strict.upload(b"x" * 1_500_000, path="/api/classify").status == 413


def test_bytes_of_an_upload_that_does_not_tell_its_size(strict: Running) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as visitor:
        visitor.sendall(
            b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        head = b'--b\r\nContent-Disposition: form-data; name="photo"; filename="f"\r\n\r\n'
        for piece in (head, *[b"x" * 100_000] * 15, b"\r\n--b--\r\n"):
            visitor.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        visitor.sendall(b"0\r\n\r\n")
        answer = received(visitor)
    assert answer.status == 413
    assert answer.problem == "the upload is too large; at most 1 MiB are taken here"


def test_time_of_an_upload(strict: Running) -> None:
    body, kind = form_data(b"x" * 10_000, {}, name="f", field="photo", kind="image/png")
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as visitor:
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        visitor.sendall(head.encode() + body[:500])
        answer = received(visitor)
    assert answer.status == 408
    assert answer.problem == "the upload took more than 2 seconds; choose a smaller file"
    assert idle(strict)


def test_a_visitor_who_leaves_in_the_midst_of_an_upload(strict: Running) -> None:
    body, kind = form_data(b"x" * 100_000, {}, name="f", field="photo", kind="image/png")
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as visitor:
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        visitor.sendall(head.encode() + body[:50_000])
    assert idle(strict)


def test_pixels_of_a_photo(strict: Running) -> None:
    content = encoded(photograph(1500, 1100), "JPEG")
    for path in ("/api/jobs", "/api/classify"):
        answer = strict.upload(content, path=path)
        assert answer.status == 413
        assert answer.problem == (
            "the image has 1500 x 1100 pixels, and at most 1.5 megapixels are read here; choose a smaller one"
        )
    assert idle(strict)


def test_pixels_of_a_result(strict: Running) -> None:
    content = encoded(photograph(1200, 1200), "JPEG")
    answer = strict.upload(content, **SLOW)
    assert answer.status == 413
    assert answer.problem.startswith("1200 x 1200 pixels become 3600 x 3600, and results here have at most 12 megapixels")
    with strict.job(content, scale=2) as job:
        assert strict.get(f"/api/jobs/{job}").status == 200


def test_time_of_the_work(strict: Running, long_work: bytes) -> None:
    with strict.job(long_work, **SLOW) as job:
        status = strict.wait(job)
        assert status["state"] == "failed"
        assert status["problem"] == "the work took more than 6 seconds; choose fast, or a smaller photo"
        answer = strict.get(f"/api/jobs/{job}/result")
        assert (answer.status, answer.problem) == (409, status["problem"])
    with strict.job(encoded(photograph(40, 40))) as job:
        assert strict.wait(job)["state"] == "done"


def test_length_of_the_line(strict: Running, long_work: bytes) -> None:
    assert idle(strict)
    with strict.job(long_work, **SLOW) as first:
        for _ in patiently(20):
            if strict.get(f"/api/jobs/{first}").json["state"] == "running":
                break
        small = encoded(photograph(20, 20))
        with strict.job(small) as second, strict.job(small) as third:
            assert [strict.get(f"/api/jobs/{job}").json["ahead"] for job in (first, second, third)] == [0, 1, 2]
            answer = strict.upload(small)
            assert answer.status == 503
            assert answer.problem == "2 photos are waiting here already; try again in a while"
            assert int(answer.headers["Retry-After"]) > 0
            strict.ask("DELETE", f"/api/jobs/{first}")
            assert strict.wait(second)["state"] == strict.wait(third)["state"] == "done"
    assert idle(strict)


def test_work_that_nobody_asks_about_is_stopped(strict: Running, long_work: bytes) -> None:
    job = strict.start(long_work, **SLOW)
    assert idle(strict, 5.5)  # before the time of the work is over
    assert strict.get(f"/api/jobs/{job}").status == 404


def test_who_closes_the_events_stops_the_work(strict: Running, long_work: bytes) -> None:
    job = strict.start(long_work, **SLOW)
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as visitor:
        visitor.sendall(f"GET /api/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        for _ in patiently(2):  # longer than its patience
            assert strict.get("/api/health").json != {"status": "ok", "waiting": 0, "running": 0}
        assert b'"state":"running"' in visitor.recv(100_000)
    assert idle(strict)
    assert strict.get(f"/api/jobs/{job}").status == 404


def test_a_result_that_is_not_fetched_vanishes(strict: Running) -> None:
    job = strict.start(encoded(photograph(40, 40)))
    assert strict.wait(job)["state"] == "done"
    assert strict.files()
    for _ in patiently(10):
        if not strict.files():
            break
    assert strict.files() == []
    assert strict.get(f"/api/jobs/{job}").status == 404


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["upload", "upload_seconds", "input", "output", "queue", "seconds", "patience", "keep", "memory"]
)
def test_limits_are_numbers_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a (whole )?number"):
        Limits(**{name: 0})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"port": 99999}, r"^port must be a number from 0 to 65535, got 99999$"),
        ({"host": "no.such.host.invalid"}, r"^no\.such\.host\.invalid port 8000 cannot be listened at .*; choose another"),
        ({"workers": 0}, "^workers must be a whole number of at least 1, got 0$"),
    ],
)
def test_mistakes_are_told_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        command.serve(**settings)


def test_a_port_that_is_taken(strict: Running) -> None:
    with pytest.raises(ValueError, match=f"^127.0.0.1 port {strict.port} cannot be listened at .*Address already in use"):
        command.serve(port=strict.port)


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*missing: str) -> str:
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name in missing else name)
        with pytest.raises(ValueError, match=r"pip install 'sckn\[web\]'$") as caught:
            command.serve()
        return str(caught.value)

    assert without("uvicorn") == "sckn serve needs uvicorn; install it with pip install 'sckn[web]'"
    assert without("fastapi", "python_multipart").startswith("sckn serve needs fastapi, python-multipart; install")
