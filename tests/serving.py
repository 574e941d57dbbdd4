"""A real `sckn serve` in a process of its own with models that cost little, and a client that speaks to it through sockets."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_classifier import tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn import CKN, KernelModel, LayerConfig, NetworkConfig, Upscaler, UpscalerConfig, save

ROOT = Path(__file__).parents[1]
START_SECONDS = 120  # two imports of torch on a computer that has other things to do
SLOW: dict[str, Any] = {"scale": 3}  # settings of a job that takes its time
MISSING = ("superres-x3-fast", "superres-x4", "superres-x4-fast")


def slow_upscaler() -> Upscaler:
    """With some tenths of a second for each tile of a photograph; its network says nothing."""
    layers = tuple(LayerConfig(96, 3, padding=False) for _ in range(6))
    return Upscaler(
        KernelModel(CKN(NetworkConfig(1, layers)), torch.zeros(96, 9), per_pixel=True), UpscalerConfig(3, low_resolution=True)
    )


def make_models(folder: Path) -> Path:
    """A folder for SCKN_MODELS in which some models are missing."""
    save(tiny_upscaler(2, 3.0), folder / "superres-x2.safetensors")
    save(tiny_upscaler(2, 0.0), folder / "superres-x2-fast.safetensors")
    save(slow_upscaler(), folder / "superres-x3.safetensors")
    save(tiny_classifier(), folder / "cifar10.safetensors")
    return folder


def package_without_models(folder: Path) -> Path:
    """Where to find sckn as it is, but with no models other than those of SCKN_MODELS."""
    package = folder / "package" / "sckn"
    package.mkdir(parents=True)
    for part in (ROOT / "sckn").iterdir():
        if part.name != "models":
            (package / part.name).symlink_to(part)
    return package.parent


def photograph(width: int = 300, height: int = 200, seed: int = 0) -> Image.Image:
    """Smooth colours with grain and some edges, so that it is about as hard to compress as a photograph."""
    random = np.random.RandomState(seed)
    smooth = Image.fromarray(random.randint(0, 256, (5, 7, 3)).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    pixels = np.asarray(smooth).astype(np.float64) + random.normal(0, 4, (height, width, 1))
    pixels[height // 3 :, width // 2 : width // 2 + 9] *= 0.4
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def form_data(file: bytes, fields: dict[str, Any], *, name: str, field: str, kind: str) -> tuple[bytes, str]:
    """A body of multipart/form-data and its content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    body = b"".join([*parts, head.encode(), file, f"\r\n--{boundary}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={boundary}"


class Answer:
    """Of the server: status, headers and body."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The sentence that every mistake is answered with."""
        return self.json["detail"]


def received(connection: socket.socket) -> Answer:
    """What the server answers to what was sent by hand."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return Answer(response)


class Running:
    """A server that runs. Each request has a connection of its own, as those of different visitors have."""

    def __init__(self, process: subprocess.Popen[str], port: int, said: list[str], temporary: Path) -> None:
        self.process, self.port, self.said, self.temporary = process, port, said, temporary
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def upload(
        self, file: bytes, *, name: str = "photo.png", kind: str = "image/png", path: str = "/api/jobs", **settings: Any
    ) -> Answer:
        field = "image" if path.endswith("classify") else "photo"
        body, content_type = form_data(file, settings, name=name, field=field, kind=kind)
        return self.ask("POST", path, body, Content_Type=content_type)

    def start(self, file: bytes, **settings: Any) -> str:
        """Upload a photograph; gives the job's id."""
        answer = self.upload(file, **settings)
        assert answer.status == 202, answer.body
        return answer.json["id"]

    @contextmanager
    def job(self, file: bytes, **settings: Any) -> Iterator[str]:
        """The same, and deleted at the end."""
        job = self.start(file, **settings)
        try:
            yield job
        finally:
            self.ask("DELETE", f"/api/jobs/{job}")

    def wait(self, job: str, seconds: float = 60) -> dict[str, Any]:
        """The status of a job that has come to its end."""
        status = {}
        for _ in patiently(seconds):
            status = self.get(f"/api/jobs/{job}").json
            if status["state"] in ("done", "failed"):
                return status
        raise AssertionError(f"the job is not done after {seconds} seconds: {status}")

    def result(self, job: str) -> Image.Image:
        return Image.open(BytesIO(self.get(f"/api/jobs/{job}/result").body))

    def files(self) -> list[Path]:
        """All files of visitors that the server has."""
        # unlike rglob, walk goes on where the server deletes a folder meanwhile
        found = (Path(place) / name for folder in self.folders() for place, _, names in os.walk(folder) for name in names)
        return [path for path in found if path.is_file()]

    def folders(self) -> list[Path]:
        return list(self.temporary.glob("sckn-serve-*"))

    def processes(self) -> dict[int, int]:
        """Resident bytes of the server and of all processes below it, by their number."""
        parents, memory = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    memory[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                except OSError:  # it has just ended
                    continue
        family = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        return {number: memory[number] for number in family if number in memory}

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


def patiently(seconds: float, pause: float = 0.05) -> Iterator[float]:
    """The time that has passed, again and again until so much has."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        yield passed
        time.sleep(pause)


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Running]:
    """A server with its models, and what it says, in a folder."""
    (folder / "models").mkdir()
    make_models(folder / "models")
    # beside the folders of tests, whose names are too long for the sockets of a fork server
    temporary = Path(tempfile.mkdtemp())
    own = {
        "PYTHONPATH": str(package_without_models(folder)),
        "SCKN_MODELS": str(folder / "models"),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sckn", "serve", "--port", "0", "--device", "cpu", *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env={**os.environ, **own, **environment},
        )
    try:
        yield _when_ready(process, folder / "stderr", temporary)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(temporary)


def _when_ready(process: subprocess.Popen[str], stderr: Path, temporary: Path) -> Running:
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:  # ends when the process does
        said.append(line.strip())
        if found := re.search(r"sckn is at http://127\.0\.0\.1:(\d+),", line):
            return Running(process, int(found[1]), said, temporary)
    process.wait(START_SECONDS)
    raise AssertionError(f"the server did not start: {said} {stderr.read_text()}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server with its usual limits for all tests that leave it as it was."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
