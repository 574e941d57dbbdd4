"""`sckn serve` as programs see it: a real server, real sockets."""

import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder
from PIL import Image, ImageOps
from serving import MISSING, ROOT, SLOW, Running, encoded, form_data, patiently, photograph, serving
from tiny_classifier import CLASSES, tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn.data.pictures import read_picture
from sckn.web.app import STATIC


def difference(one: Image.Image, other: Image.Image) -> int:
    """The largest, in grey levels."""
    assert (one.size, one.mode) == (other.size, other.mode)
    return int(np.abs(np.asarray(one).astype(int) - np.asarray(other)).max())


# -- a job from its upload to its deletion ----------------------------------------------------------------------------


@pytest.mark.parametrize(("quality", "weight"), [("quality", 3.0), ("fast", 0.0)])
def test_the_result_is_that_of_the_model(server: Running, quality: str, weight: float) -> None:
    photo = photograph()
    with server.job(encoded(photo), scale=2, quality=quality, name="holiday.png") as job:
        status = server.wait(job)
        assert (status["state"], status["width"], status["height"]) == ("done", 600, 400)
        assert status["file_name"] == "holiday-x2.png"
        assert status["tiles_done"] == status["tiles"] > 5
        expected = tiny_upscaler(2, weight).upscale(photo, progress=False)
        assert difference(server.result(job), expected) <= 1
        assert difference(tiny_upscaler(2, 3.0 - weight).upscale(photo, progress=False), expected) > 5  # the models differ


def test_a_deleted_job_is_gone_with_its_files(server: Running) -> None:
    job = server.start(encoded(photograph()))
    server.wait(job)
    assert [path.name for path in server.files()] == ["result.png"]  # the upload is gone as soon as it is not needed
    assert server.ask("DELETE", f"/api/jobs/{job}").status == 204
    assert server.files() == []
    for method, path in [("GET", ""), ("GET", "/events"), ("GET", "/result"), ("DELETE", "")]:
        answer = server.ask(method, f"/api/jobs/{job}{path}")
        assert answer.status == 404
        assert answer.problem.startswith("there is no such job")


def test_progress_comes_as_events(server: Running) -> None:
    with server.job(encoded(photograph(200, 150)), **SLOW) as job:
        answer = server.get(f"/api/jobs/{job}/events")
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        tiles = re.findall(r'"tiles_done":(\d+)', answer.body.decode())
        assert len(set(tiles)) >= 5
        assert sorted(map(int, tiles)) == list(map(int, tiles))
        assert '"state":"done"' in answer.body.decode().strip().splitlines()[-1]


def test_ids_cannot_be_guessed(server: Running) -> None:
    jobs = [server.start(encoded(photograph(20, 20))) for _ in range(3)]
    assert len(set(jobs)) == 3
    assert all(re.fullmatch(r"[\w-]{32}", job) for job in jobs)
    for job in jobs:
        server.ask("DELETE", f"/api/jobs/{job}")


def test_a_result_can_be_had_only_when_it_is_there(server: Running) -> None:
    with server.job(encoded(photograph(600, 600)), **SLOW) as job:
        answer = server.get(f"/api/jobs/{job}/result")
        assert answer.status == 409
        assert "not done yet" in answer.problem


def test_deleting_stops_the_work_at_once(server: Running) -> None:
    job = server.start(encoded(photograph(1200, 1200)), **SLOW)
    for _ in patiently(30):
        if server.get(f"/api/jobs/{job}").json["tiles_done"]:
            break
    assert server.get("/api/health").json == {"status": "ok", "waiting": 0, "running": 1}
    start = time.monotonic()
    server.ask("DELETE", f"/api/jobs/{job}")
    assert server.get("/api/health").json["running"] == 0
    assert time.monotonic() - start < 5  # the rest would have taken longer
    assert server.files() == []
    again = server.start(encoded(photograph(50, 40)))  # by a new process
    assert server.wait(again)["state"] == "done"
    server.ask("DELETE", f"/api/jobs/{again}")


def test_a_visitor_who_leaves_before_the_answer_leaves_no_work_behind(server: Running) -> None:
    """Nobody would know the job's id, to delete it."""
    body, kind = form_data(encoded(photograph(1200, 1200)), SLOW, name="photo.png", field="photo", kind="image/png")
    head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as visitor:
        visitor.sendall(head.encode() + body)
    ran = []
    start = time.monotonic()
    while time.monotonic() - start < 3 or server.files():
        ran.append(server.get("/api/health").json["running"])
        assert time.monotonic() - start < 10  # the work takes longer
        time.sleep(0.05)
    assert not any(ran), ran
    assert server.folders()
    assert server.files() == []


def test_photographs_become_upright_and_keep_what_belongs_to_them(server: Running) -> None:
    photo = photograph(60, 40)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    with server.job(
        encoded(photo, "JPEG", quality=95, exif=exif.tobytes(), icc_profile=b"a profile" * 9), quality="fast"
    ) as job:
        assert (server.wait(job)["width"], server.wait(job)["height"]) == (80, 120)
        result = server.result(job)
        assert result.size == (80, 120)
        assert result.getexif().get(0x0112, 1) == 1
        assert result.getexif()[0x010E] == "a picture"
        assert result.info["icc_profile"] == b"a profile" * 9
        turned = np.asarray(result.resize((40, 60), Image.Resampling.BOX)).astype(int)
        assert np.abs(turned - np.asarray(photo.rotate(-90, expand=True))).mean() < 10
        assert ImageOps.exif_transpose(result).size == (80, 120)


def test_a_result_in_jpeg(server: Running) -> None:
    with server.job(encoded(photograph()), format="jpeg", name="one.tiff") as job:
        status = server.wait(job)
        answer = server.get(f"/api/jobs/{job}/result")
        assert answer.headers["Content-Type"] == "image/jpeg"
        assert 'filename="one-x2.jpg"' in answer.headers["Content-Disposition"]
        assert answer.body[:3] == b"\xff\xd8\xff"
        assert status["file_name"] == "one-x2.jpg"
        refused = server.upload(encoded(photograph().convert("RGBA")), format="jpeg")
        assert refused.status == 422
        assert refused.problem.endswith("choose PNG for the result")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../etc/passwd.png", "passwd-x2.png"),
        ("C:\\\\photos\\\\me.png", "me-x2.png"),
        ("...", "photo-x2.png"),
        ("a;b$(rm).png", "ab(rm)-x2.png"),
        ("x" * 300 + ".png", "x" * 80 + "-x2.png"),
        ("été 1.png", "été 1-x2.png"),
    ],
)
def test_names_of_files_do_no_harm(server: Running, name: str, expected: str) -> None:
    answer = server.upload(encoded(photograph(8, 8)), name=name)
    assert answer.status == 202
    assert answer.json["file_name"] == expected
    server.wait(answer.json["id"])
    assert {path.name for path in server.files()} <= {"upload", "result.png"}
    server.ask("DELETE", f"/api/jobs/{answer.json['id']}")


# -- classification ---------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_model(server: Running, tmp_path: Path) -> None:
    content = encoded(photograph())
    answer = server.upload(content, path="/api/classify")
    (tmp_path / "photo.png").write_bytes(content)
    scores = tiny_classifier().predict(read_picture(tmp_path / "photo.png", 12)[None])[0].tolist()
    expected = sorted(zip(CLASSES, scores, strict=True), key=lambda pair: -pair[1])
    assert answer.json["model"] == "cifar10"
    assert [each["name"] for each in answer.json["scores"]] == [name for name, _ in expected]
    assert [each["score"] for each in answer.json["scores"]] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert server.files() == []


# -- the server -------------------------------------------------------------------------------------------------------


def test_it_tells_which_models_are_missing(server: Running) -> None:
    offer = server.get("/api/info").json
    models = {model["name"]: model for model in offer["upscalers"] + offer["classifiers"]}
    assert tuple(name for name, model in models.items() if not model["available"]) == MISSING
    assert all("is not here; install sckn again, or train one" in models[name]["problem"] for name in MISSING)
    assert models["superres-x3"]["scale"] == 3
    for name in MISSING:
        assert any(f"the model {name} is not here" in line for line in server.said)
    answer = server.upload(encoded(photograph()), scale=4)
    assert answer.status == 503
    assert answer.problem == (
        "the model superres-x4 cannot be used on this server; those that can: "
        "superres-x2, superres-x2-fast, superres-x3, cifar10"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scale": 7}, "scale must be one of 2, 3, 4, got 7"),
        ({"scale": "two"}, "scale: input should be a valid integer"),
        ({"quality": "best"}, "quality: input should be 'quality' or 'fast'"),
        ({"format": "gif"}, "format: input should be 'png' or 'jpeg'"),
    ],
)
def test_wrong_settings_are_named(server: Running, settings: dict[str, str], sentence: str) -> None:
    answer = server.upload(encoded(photograph(9, 9)), **settings)
    assert answer.status == 422
    assert answer.problem.startswith(sentence)


def test_other_addresses_are_answered_with_a_sentence(server: Running) -> None:
    for path in ("/nothing", "/static/../app.py", "/static/%2e%2e/app.py", "/static/nothing.js"):
        answer = server.get(path)
        assert answer.status == 404
        assert "/docs tells what there is" in answer.problem
    answer = server.ask("PUT", "/api/jobs")
    assert answer.status == 405
    assert answer.problem == "this cannot be asked so; see /docs"


def test_pages_of_other_sites_are_kept_out(server: Running) -> None:
    host = f"127.0.0.1:{server.port}"
    assert server.get("/api/health", Origin=f"http://{host}").status == 200
    assert server.get("/api/health", Host=f"localhost:{server.port}").status == 200
    for headers in ({"Origin": "http://example.org"}, {"Origin": "null"}, {"Host": "example.org"}, {"Host": "["}):
        answer = server.get("/api/health", **headers)
        assert answer.status == 403
        assert answer.problem
    assert "Access-Control-Allow-Origin" not in server.get("/api/health").headers


@pytest.mark.parametrize("path", ["/", "/docs", "/static/main.js", "/api/health", "/api/jobs/none", "/nothing"])
def test_every_answer_binds_the_browser(server: Running, path: str) -> None:
    headers = server.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_pages_load_nothing_from_outside(server: Running) -> None:
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$|(?<=[ ;])// .*$", "", text, flags=re.MULTILINE), file.name
        assert not re.search(r"\son\w+=|<style|javascript:|style=", text), file.name
        assert server.get(f"/static/{file.name}").body == file.read_bytes()


def test_the_wheel_has_the_pages() -> None:
    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"sckn/web/static/{file.name}" for file in STATIC.iterdir()} <= files


def test_the_api_is_described(server: Running) -> None:
    spec = server.get("/openapi.json").json
    operations = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    assert operations == {
        ("get", "/api/health"),
        ("get", "/api/info"),
        ("post", "/api/jobs"),
        ("get", "/api/jobs/{id}"),
        ("delete", "/api/jobs/{id}"),
        ("get", "/api/jobs/{id}/events"),
        ("get", "/api/jobs/{id}/result"),
        ("post", "/api/classify"),
    }
    assert "HTTPValidationError" not in str(spec["paths"])
    assert server.get("/docs").headers["Content-Type"].startswith("text/html")


def test_it_listens_at_this_computer_alone(server: Running) -> None:
    with socket.socket() as visitor:
        visitor.settimeout(2)
        assert visitor.connect_ex(("127.0.0.2", server.port)) != 0  # also this computer, but another address


# -- its end ----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_when_it_stops(tmp_path: Path) -> None:
    # nothing is reported to a collector, whatever the environment says: FastAPI would fail to start, as its exporter is missing
    telemetry = {"FASTAPI_OTEL_AUTO_CONFIGURE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with serving(tmp_path, **telemetry) as server:
        server.start(encoded(photograph(1200, 1200)), **SLOW)
        done = server.start(encoded(photograph(20, 20)), **SLOW)
        assert server.get(f"/api/jobs/{done}").json["ahead"] == 1
        for _ in patiently(30):
            if len(server.processes()) >= 4:
                break
        family = server.processes()
        assert server.files()
        visitor = socket.create_connection(("127.0.0.1", server.port))
        visitor.sendall(f"GET /api/jobs/{done}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b"200 OK" in visitor.recv(4096)
        start = time.monotonic()
        assert server.stop() == 143
        assert time.monotonic() - start < 10
        visitor.close()
        assert server.folders() == []
        alive = []
        for _ in patiently(10):
            alive = [number for number in family if Path(f"/proc/{number}/stat").exists()]
            if not alive:
                break
        assert not alive
    assert (tmp_path / "stderr").read_text() == "sckn: stopped\n"
