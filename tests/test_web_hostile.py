"""Two hundred hostile uploads: each is answered with a 4xx and a sentence, and the server lives and keeps nothing."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from serving import Running, encoded, photograph

PHOTO = photograph(60, 40)
LATER = photograph(60, 40, seed=1)
Upload = tuple[str, bytes, dict[str, Any]]


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, *more: bytes) -> bytes:
    """A PNG file in grey that claims a size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def truncated() -> Iterator[Upload]:
    for form in ("PNG", "JPEG", "WEBP", "BMP", "PPM", "TIFF", "GIF"):
        whole = encoded(PHOTO, form)
        for part in (0.02, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9):
            yield f"{form} cut at {part}", whole[: int(part * len(whole))], {}


def huge() -> Iterator[Upload]:
    zeros = zlib.compress(bytes(10_000_000), 9)
    for width, height in (
        (30_000, 30_000),
        (6_000, 6_000),
        (2**31 - 1, 2**31 - 1),
        (1, 2**31 - 1),
        (2**31 - 1, 1),
        (26_000_000, 1),
    ):
        yield f"PNG bomb {width} x {height}", png(width, height, zeros), {}
        yield f"PPM {width} x {height}", b"P6 %d %d 255\n" % (width, height) + bytes(100), {}
        yield (
            f"BMP {width} x {height}",
            b"BM" + struct.pack("<IHHIIiiHHI", 54, 0, 0, 54, 40, width, height, 1, 24, 0) + bytes(20),
            {},
        )
    for width, height in ((65_535, 65_535), (65_535, 500), (10_000, 10_000)):
        yield f"GIF {width} x {height}", b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"," + bytes(20), {}
        head = encoded(PHOTO, "JPEG")
        at = head.index(b"\xff\xc0")
        size = struct.pack(">HH", height, width)
        yield f"JPEG {width} x {height}", head[: at + 5] + size + head[at + 9 :], {}
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(200_000_000), 9))
    yield "PNG with a text that unpacks to 200 MB", png(50, 50, zlib.compress(bytes(51 * 50)), text), {}
    yield "PNG of no pixels", png(0, 0, zeros), {}
    yield (
        "PNG with a profile that unpacks to 200 MB",
        png(6000, 6000, zeros, chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(200_000_000)))),
        {},
    )


def not_images() -> Iterator[Upload]:
    contents = {
        "text": b"hello",
        "HTML": b"<html><script>alert(1)</script></html>",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "JSON": b'{"scale": 2}',
        "zip": b"PK\x03\x04" + bytes(100),
        "PDF": b"%PDF-1.7\n" + bytes(100),
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
        "program": b"\x7fELF" + bytes(100),
        "zeros": bytes(5000),
        "ones": b"\xff" * 5000,
        "JPEG's first bytes": b"\xff\xd8\xff\xe0",
        "PNG's first bytes": b"\x89PNG\r\n\x1a\n",
        "pickle": b"cos\nsystem\n(S'touch hacked'\ntR.",
        "empty": b"",
        "one byte": b"\0",
        "ICO": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0\x68\4\0\0\x16\0\0\0" + bytes(200),
    }
    kinds = ("image/png", "text/html", "application/x-www-form-urlencoded", "../../etc", "")
    for title, content in contents.items():
        for kind in kinds:
            yield f"{title} as {kind or 'nothing'}", content, {"kind": kind}


def tricky_names() -> Iterator[Upload]:
    names = (
        "../../../../etc/cron.d/x",
        "..\\..\\windows\\x.png",
        "/etc/passwd",
        "x\0.png",
        "CON",
        "a" * 5000,
        "%2e%2e%2fx",
        "; rm -rf",
    )
    for name in names:
        yield f"the name {name[:30]!r}", b"no image", {"name": name}


def unusual() -> Iterator[Upload]:
    yield "animated GIF", encoded(PHOTO, "GIF", save_all=True, append_images=[LATER]), {}
    yield "animated PNG", encoded(PHOTO, "PNG", save_all=True, append_images=[LATER]), {}
    yield "animated WebP", encoded(PHOTO, "WEBP", save_all=True, append_images=[LATER]), {}
    yield "TIFF of two pages", encoded(PHOTO, "TIFF", save_all=True, append_images=[LATER]), {}
    yield "CMYK cut short", encoded(PHOTO.convert("CMYK"), "JPEG")[:-200], {}
    yield "TIFF in floating point", encoded(Image.new("F", (20, 20)), "TIFF"), {}
    yield "TIFF in 32 bits", encoded(Image.new("I", (20, 20)), "TIFF"), {}
    for scale in (-1, 0, 1, 5, 10**30, "NaN", "2; drop table", ""):
        if scale != "":
            yield f"the scale {scale}", encoded(PHOTO), {"scale": scale}
    for field, value in (("quality", "../fast"), ("quality", "QUALITY"), ("format", "exe"), ("format", "../png")):
        yield f"{field} {value}", encoded(PHOTO), {field: value}


def flipped() -> Iterator[Upload]:
    whole = encoded(PHOTO)
    for place in range(12, 33):  # in the header, which has a checksum
        yield f"PNG with byte {place} changed", whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :], {}


UPLOADS = [*truncated(), *huge(), *not_images(), *tricky_names(), *unusual(), *flipped()]


def assert_refused(answer: Any, title: str) -> None:
    assert 400 <= answer.status < 500, (title, answer.status, answer.body)
    sentence = answer.problem
    assert 10 < len(sentence) < 300, (title, sentence)
    assert sentence.isprintable(), (title, sentence)
    assert not any(word in sentence for word in ("Traceback", "sckn-serve", "/tmp", "Error")), (title, sentence)


def test_there_are_two_hundred() -> None:
    assert len(UPLOADS) >= 200
    assert len({title for title, _, _ in UPLOADS}) == len(UPLOADS)


@pytest.mark.parametrize("part", range(4))
def test_each_is_refused_with_a_sentence(server: Running, part: int) -> None:
    before = server.processes()[server.process.pid]
    for title, content, settings in UPLOADS[part::4]:
        assert_refused(server.upload(content, **settings), title)
    assert server.get("/api/health").json == {"status": "ok", "waiting": 0, "running": 0}
    assert server.files() == []
    assert server.processes()[server.process.pid] - before < 50 * 2**20
    with server.job(encoded(PHOTO)) as job:
        assert server.wait(job)["state"] == "done"


def test_they_cannot_be_classified(server: Running) -> None:
    for title, content, settings in [*truncated(), *huge(), *not_images()][::3]:
        if title.startswith("GIF cut"):  # of which enough may be there
            continue
        assert_refused(server.upload(content, path="/api/classify", **settings), title)
    assert server.get("/api/health").status == 200


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"not a form", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\n", "multipart/form-data"),
        (b'{"photo": "x"}', "application/json"),
        (b"photo=x", "application/x-www-form-urlencoded"),
        (encoded(PHOTO), "image/png"),
        (b'--b\r\nContent-Disposition: form-data; name="photo"\r\n\r\nno file\r\n--b--\r\n', "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="other"; filename="x"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (b"--b\r\n" * 5000, "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n' * 3000 + b"--b--\r\n",
            "multipart/form-data; boundary=b",
        ),
    ],
)
def test_forms_that_are_none(server: Running, body: bytes, kind: str) -> None:
    for path in ("/api/jobs", "/api/classify"):
        assert_refused(server.ask("POST", path, body, Content_Type=kind), path)
