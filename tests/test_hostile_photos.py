"""Three hundred hostile image files through what `sckn upscale` uses: each a right result or one clear sentence, none a hang, a
traceback, or a file that is half there."""

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alarm import within
from PIL import Image
from test_damaged_data import begin, cut, flip, lengthen, repeat, replace_all
from tiny_upscaler import tiny_upscaler

from sckn.superres.upscale_files import Job, Outcome, plan, upscale_files

UPSCALER = tiny_upscaler()
PATIENCE = 10  # seconds for one file
FORMATS = ("png", "jpg", "tif", "webp", "bmp", "ppm")
DAMAGES = (cut, flip, begin, lengthen, repeat, replace_all)


def pixels(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(form, form.upper()), **options)
    return file.getvalue()


def whole(form: str) -> bytes:
    """A sound photograph with EXIF data, a profile and a resolution where there is a place for them."""
    image = Image.fromarray(pixels(11, 14, 3))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    exif.get_ifd(34665).update({40962: 14, 40963: 11})
    options = {} if form in ("bmp", "ppm") else {"exif": exif.tobytes(), "icc_profile": b"a profile" * 9, "dpi": (72, 72)}
    return encoded(image, form, **options)


def outcome_of(name: str, content: bytes, folder: Path, suffix: str = "png") -> Outcome:
    """What comes of a file; what it must be in any case is checked here."""
    source, target = folder / name, folder / "out" / f"large.{suffix}"
    source.write_bytes(content)
    with warnings.catch_warnings(), within(PATIENCE):
        warnings.simplefilter("error")
        (outcome,) = upscale_files(UPSCALER, plan([str(source)], str(target)), progress=False)
    left = os.listdir(folder / "out") if (folder / "out").exists() else []
    if outcome.problem is None:
        assert left == [target.name]
        with Image.open(target) as large:
            large.load()
            assert large.size == outcome.size
        target.unlink()
    else:
        assert left == []
        assert outcome.size is None
        assert str(source) in outcome.problem
        assert outcome.problem.isprintable()
        assert len(outcome.problem) < 400 + 2 * len(str(source))
    assert source.read_bytes() == content
    return outcome


def upright_at_once(form: str, width: int, height: int) -> tuple[int, int]:
    """The size of a photograph that is said to be turned by a quarter: Pillow turns TIFF files when it reads them."""
    return (height, width) if form == "tif" else (width, height)


# -- 252 files with random damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_random_damage(form: str, tmp_path: Path) -> None:
    content, random, problems = whole(form), np.random.default_rng(0), 0
    assert outcome_of(f"sound.{form}", content, tmp_path, form).size == upright_at_once(form, 28, 22)
    for number in range(42):
        damaged = DAMAGES[number % len(DAMAGES)](content, random)
        outcome = outcome_of(f"photo.{form}", damaged, tmp_path, form if number % 2 else "png")
        problems += outcome.problem is not None
    assert problems >= 10


# -- 48 files made with care ------------------------------------------------------------------------------------------


def png(width: int, height: int, depth: int = 8, colour: int = 2, data: bytes = b"", *more: tuple[bytes, bytes]) -> bytes:
    """A PNG file that claims what it is told to."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *more, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIIIII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def jpg_of_size(width: int, height: int) -> bytes:
    """A sound file with another size in its header."""
    content = bytearray(encoded(Image.fromarray(pixels(8, 8, 3)), "jpg"))
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def animated(form: str) -> bytes:
    frames = [Image.fromarray(frame) for frame in pixels(3, 8, 9, 3)]
    return encoded(frames[0], form, save_all=True, append_images=frames[1:])


def with_exif(content: bytes) -> bytes:
    return encoded(Image.fromarray(pixels(6, 7, 3)), "jpg", exif=b"Exif\0\0" + content)


def tiff(*tags: tuple[int, int, int, int], following: int = 0, pixels: bytes = bytes(12)) -> bytes:
    """A TIFF file with these tags, types, counts and values, and a table that follows the first."""
    table = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<I", 8) + table + struct.pack("<I", following) + pixels


def tiff_image(**changes: int) -> bytes:
    """Two by two pixels, with some of its tags changed."""
    values = {"width": 2, "height": 2, "bits": 8, "compression": 1, "photometric": 1, "offset": 110, "samples": 1, "length": 4}
    numbers = dict(zip(values, (256, 257, 258, 259, 262, 273, 277, 279), strict=True))
    following = changes.pop("following", 0)
    return tiff(*((numbers[name], 4, 1, value) for name, value in {**values, **changes}.items()), following=following)


Check = Callable[[Outcome], bool]


def refused(*words: str) -> Check:
    return lambda outcome: outcome.problem is not None and all(word in outcome.problem for word in words)


def becomes(width: int, height: int) -> Check:
    return lambda outcome: outcome.size == (width, height)


def either(outcome: Outcome) -> bool:
    """What it is, `outcome_of` has checked that it is whole."""
    return (outcome.size is None) != (outcome.problem is None)


UNREADABLE = refused("cannot be read as an image")
TOO_MANY = refused("too many pixels")
SEVERAL = refused("it holds several pictures")


def made_with_care() -> Iterator[tuple[str, bytes, Check]]:
    grey, colours = Image.fromarray(pixels(5, 7)), Image.fromarray(pixels(5, 7, 3))
    # not images at all
    yield "text.png", b"A text that is called an image.\n" * 20, UNREADABLE
    yield "empty.png", b"", UNREADABLE
    yield "zeros.jpg", bytes(5000), UNREADABLE
    yield "signature.png", b"\x89PNG\r\n\x1a\n", UNREADABLE
    yield "start.jpg", b"\xff\xd8\xff", UNREADABLE
    yield "page.png", b"<html><body>404 Not Found</body></html>", UNREADABLE
    yield "drawing.png", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', UNREADABLE
    yield "program.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", UNREADABLE
    yield "archive.png", b"PK\x03\x04" + bytes(100), UNREADABLE
    # sizes that cannot be
    yield "no-width.png", png(0, 5), UNREADABLE
    yield "no-height.png", png(5, 0), UNREADABLE
    yield "nothing.bmp", bmp(0, 0), UNREADABLE
    yield "negative.bmp", bmp(-5, 5), UNREADABLE
    yield "nothing.ppm", b"P6 0 0 255\n", UNREADABLE
    yield "nothing.tif", tiff_image(width=0, height=0), UNREADABLE
    # sizes that are claimed, with nothing behind them
    yield "huge.png", png(2**31 - 1, 2**31 - 1), TOO_MANY
    yield "large.png", png(100_000, 100_000), TOO_MANY
    yield "long.png", png(2**30, 1, 8, 0, bytes(100)), TOO_MANY
    yield "bomb.png", png(30_000, 30_000, 8, 0, bytes(10**7)), TOO_MANY
    yield "huge.bmp", bmp(60_000, 60_000), TOO_MANY
    yield "huge.ppm", b"P6 99999 99999 255\n" + bytes(99), TOO_MANY
    yield "huge.tif", tiff_image(width=2**20, height=2**20), TOO_MANY
    yield "huge.jpg", jpg_of_size(65_500, 65_500), TOO_MANY
    yield "short.png", png(3000, 3000, 8, 0, bytes(3000)), UNREADABLE
    yield "short.bmp", bmp(2000, 2000), UNREADABLE
    yield "larger.jpg", jpg_of_size(300, 200), either
    # texts and profiles that unpack to much
    bomb = zlib.compress(bytes(10**8), 9)
    yield "text-bomb.png", png(2, 2, 8, 0, bytes(6), (b"zTXt", b"Comment\0\0" + bomb)), either
    yield "profile-bomb.png", png(2, 2, 8, 0, bytes(6), (b"iCCP", b"profile\0\0" + bomb)), either
    # several pictures in one file
    yield "animated.gif", animated("gif"), SEVERAL
    yield "animated.png", animated("png"), SEVERAL
    yield "animated.webp", animated("webp"), SEVERAL
    yield "pages.tif", animated("tif"), SEVERAL
    yield "ring.tif", tiff_image(following=8), either
    # kinds of pixels
    yield "print.jpg", encoded(colours.convert("CMYK"), "jpg"), becomes(14, 10)
    yield "print.tif", encoded(colours.convert("CMYK"), "tif"), becomes(14, 10)
    yield "numbers.tif", encoded(grey.convert("F"), "tif"), refused("the image has pixels of the kind F")
    yield "lab.tif", encoded(colours.convert("LAB"), "tif"), becomes(14, 10)
    yield "palette.png", encoded(colours.convert("P"), "png"), becomes(14, 10)
    yield "still.gif", encoded(colours.convert("P"), "gif", transparency=3), becomes(14, 10)
    yield "two-levels.png", encoded(grey.convert("1"), "png"), becomes(14, 10)
    yield "deep.png", encoded(Image.fromarray(pixels(5, 7).astype(np.uint16) * 257), "png"), becomes(14, 10)
    yield "deep-colours.png", png(2, 3, 16, 2, bytes(3 * 13)), becomes(4, 6)
    yield "no-palette.png", png(2, 2, 8, 3, bytes(6)), refused("the pixels of the image cannot be read")
    yield "one.png", encoded(Image.new("RGB", (1, 1), "red"), "png"), becomes(2, 2)
    yield "line.png", encoded(Image.new("L", (1, 300), 9), "png"), becomes(2, 600)
    # EXIF data
    yield "endless-exif.jpg", with_exif(b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff" * 9), becomes(14, 12)
    yield "random-exif.jpg", with_exif(np.random.RandomState(1).bytes(500)), becomes(14, 12)
    ring = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 34665, 4, 1, 8) + bytes(4)
    yield "ring-exif.jpg", with_exif(ring), becomes(14, 12)


CAREFUL = list(made_with_care())


@pytest.mark.parametrize(("name", "content", "check"), CAREFUL, ids=[name for name, _, _ in CAREFUL])
def test_files_made_with_care(name: str, content: bytes, check: Check, tmp_path: Path) -> None:
    outcome = outcome_of(name, content, tmp_path)
    assert check(outcome), outcome


def test_there_are_three_hundred() -> None:
    assert 42 * len(FORMATS) + len(CAREFUL) >= 300


def test_pipes_folders_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    jobs = [Job(str(tmp_path / "pipe.png"), tmp_path / "a.png"), Job("/dev/zero", tmp_path / "b.png")]
    with within(PATIENCE):
        outcomes = list(upscale_files(UPSCALER, jobs, progress=False))
    assert all("cannot be read as an image (it is no plain file)" in str(outcome.problem) for outcome in outcomes)
    assert os.listdir(tmp_path) == ["pipe.png"]
