"""Colours in 16 bits: files by the letter of their formats are read and written to the last bit."""

import itertools
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from test_hostile_photos import DAMAGES, outcome_of
from tiny_upscaler import tiny_upscaler

from sckn.data.pictures import read_picture
from sckn.superres.deep_image import DeepImage, write_png
from sckn.superres.photos import open_photo, read_luminance, read_photo, write_photo
from sckn.superres.picture import LeftOutWarning
from sckn.superres.upscale_files import Job, upscale_files

UPSCALER = tiny_upscaler()
COLOUR = {2: 4, 3: 2, 4: 6}
# Of the seven passes of an interlaced PNG file: first row and column, and the steps between.
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def noise(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 65536, shape).astype(np.uint16)


# -- the filters of PNG, one byte at a time, as its specification has them --------------------------------------------


def predicted(kind: int, left: int, above: int, corner: int) -> int:
    if kind == 4:
        distances = [abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)]
        return (left, above, corner)[distances.index(min(distances))]
    return (0, left, above, (left + above) // 2)[kind]


def filtered(pixels: np.ndarray) -> bytes:
    """Rows of pixels, each by another filter."""
    step, above, out = 2 * pixels.shape[2], bytes(2 * pixels[0].size), b""
    for number, row in enumerate(pixels):
        line, kind = row.astype(">u2").tobytes(), number % 5
        neighbours = zip(line, bytes(step) + line, above, bytes(step) + above, strict=False)
        out += bytes([kind, *((byte - predicted(kind, *others)) % 256 for byte, *others in neighbours)])
        above = line
    return out


def unfiltered(data: bytes, height: int, width: int, channels: int) -> np.ndarray:
    step, length = 2 * channels, 2 * channels * width
    above, lines = bytes(length), []
    for kind, *line in (data[start : start + length + 1] for start in range(0, len(data), length + 1)):
        for index in range(length):
            left, corner = (line[index - step], above[index - step]) if index >= step else (0, 0)
            line[index] = (line[index] + predicted(kind, left, above[index], corner)) % 256
        lines.append(above := bytes(line))
    return np.frombuffer(b"".join(lines), ">u2").reshape(height, width, channels)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(pixels: np.ndarray, *more: bytes, interlaced: bool = False) -> bytes:
    height, width, channels = pixels.shape
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, COLOUR[channels], 0, 0, interlaced))
    parts = [pixels[top::down, left::right] for top, left, down, right in PASSES] if interlaced else [pixels]
    data = chunk(b"IDAT", zlib.compress(b"".join(filtered(part) for part in parts if part.size)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + data + chunk(b"IEND", b"")


def chunks(content: bytes) -> dict[bytes, bytes]:
    """Of a file whose checksums are right, in order."""
    found: dict[bytes, bytes] = {}
    place = 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        assert content[place : place + 12 + length] == chunk(kind, data)
        found[kind] = found.get(kind, b"") + data
        place += 12 + length
    return found


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_png_file_is_read_to_the_last_bit(channels: int, interlaced: bool, tmp_path: Path) -> None:
    pixels = noise(13, 9, channels)
    (tmp_path / "deep.png").write_bytes(png(pixels, interlaced=interlaced))
    photo = read_photo(tmp_path / "deep.png")
    assert isinstance(photo, DeepImage)
    assert photo.pixels.dtype == np.uint16
    assert photo.size == (9, 13)
    assert np.array_equal(photo.pixels, pixels)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(("order", "compression"), list(itertools.product("<>", [None, "zlib"])))
def test_a_tiff_file_is_read_to_the_last_bit(order: Any, compression: Any, channels: int, tmp_path: Path) -> None:
    pixels = noise(70, 90, channels)
    alpha = ["unassalpha"] if channels == 4 else None
    settings: dict[str, Any] = {"photometric": "rgb", "rowsperstrip": 16, "extrasamples": alpha}
    tifffile.imwrite(tmp_path / "deep.tif", pixels, byteorder=order, compression=compression, **settings)
    photo = read_photo(tmp_path / "deep.tif")
    assert isinstance(photo, DeepImage)
    assert np.array_equal(photo.pixels, pixels)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_colours_that_lie_apart_are_refused_where_pillow_would_make_noise_of_them(compression: Any, tmp_path: Path) -> None:
    pixels = noise(3, 11, 14)
    settings: dict[str, Any] = {"photometric": "rgb", "planarconfig": "separate", "compression": compression}
    tifffile.imwrite(tmp_path / "deep.tif", pixels, **settings)
    for read in (read_photo, open_photo, lambda path: read_picture(path, 8)):
        with pytest.raises(ValueError, match="in 16 bits, lie apart from each other; expected those of a pixel together"):
            read(tmp_path / "deep.tif")
    tifffile.imwrite(tmp_path / "bytes.tif", (pixels >> 8).astype(np.uint8), **settings)
    assert np.array_equal(np.asarray(open_photo(tmp_path / "bytes.tif")), (pixels >> 8).transpose(1, 2, 0))


def test_one_colour_that_is_transparent(tmp_path: Path) -> None:
    pixels = noise(6, 5, 3)
    pixels[2, 3] = pixels[4, 1]
    pixels[0, 0] = pixels[4, 1] ^ np.array([0, 0, 1], np.uint16)  # which differs in the last bit
    (tmp_path / "deep.png").write_bytes(png(pixels, chunk(b"tRNS", pixels[4, 1].astype(">u2").tobytes())))
    photo = read_photo(tmp_path / "deep.png")
    assert isinstance(photo, DeepImage)
    assert np.array_equal(photo.pixels[..., :3], pixels)
    assert np.argwhere(photo.pixels[..., 3] == 0).tolist() == [[2, 3], [4, 1]]
    assert set(photo.pixels[..., 3].flat) == {0, 65535}


def test_other_photographs_are_images_of_pillow(tmp_path: Path) -> None:
    for image in (Image.new("RGB", (4, 3)), Image.fromarray(noise(3, 4)), Image.new("LA", (4, 3))):
        photo = read_photo(write_photo(image, tmp_path / "photo.png"))
        assert isinstance(photo, Image.Image)
        assert photo.tobytes() == open_photo(tmp_path / "photo.png").tobytes()


def test_luminance_is_that_of_all_bits(tmp_path: Path) -> None:
    pixels = noise(8, 9, 3)
    (tmp_path / "deep.png").write_bytes(png(pixels))
    expected = np.floor(16 + pixels @ np.array([65.481, 128.553, 24.966]) / 65535 + 0.5)
    assert np.abs(read_luminance(tmp_path / "deep.png").numpy() - expected).max() == 0


# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_what_is_written_is_a_png_file_by_the_letter(channels: int, tmp_path: Path) -> None:
    pixels = noise(150, 11, channels)
    write_png(DeepImage(pixels, {}), tmp_path / "deep.png")
    found = chunks((tmp_path / "deep.png").read_bytes())
    assert list(found) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", found[b"IHDR"]) == (11, 150, 16, COLOUR[channels], 0, 0, 0)
    assert np.array_equal(unfiltered(zlib.decompress(found[b"IDAT"]), 150, 11, channels), pixels)


def test_what_belongs_to_a_photograph_comes_with_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    exif.get_ifd(34665).update({40962: 9, 40963: 13})
    given = [
        chunk(b"iCCP", b"mine\0\0" + zlib.compress(b"a profile" * 9)),
        chunk(b"pHYs", struct.pack(">IIB", 11811, 5906, 1)),
        chunk(b"eXIf", exif.tobytes()[6:]),
    ]
    pixels = noise(13, 9, 3)
    (tmp_path / "deep.png").write_bytes(png(pixels, *given))
    (outcome,) = upscale_files(UPSCALER, [Job(str(tmp_path / "deep.png"), tmp_path / "large.png")], progress=False)
    assert (outcome.size, outcome.notes, outcome.problem) == ((18, 26), (), None)
    large = read_photo(tmp_path / "large.png")
    assert isinstance(large, DeepImage)
    assert np.array_equal(large.pixels, UPSCALER.upscale(pixels, progress=False))
    with Image.open(tmp_path / "large.png") as image:
        assert image.info["icc_profile"] == b"a profile" * 9
        assert image.info["dpi"] == pytest.approx((0.0254 * 11811, 0.0254 * 5906))
        assert (image.getexif()[0x0112], image.getexif()[0x010E]) == (6, "a picture")
        assert image.getexif().get_ifd(34665) == {40962: 18, 40963: 26}


def test_more_than_8_bits_survive(tmp_path: Path) -> None:
    """A ramp of 600 levels between two of 8 bits comes out with as many."""
    ramp = np.linspace(30000, 30600, 400).round().astype(np.uint16)
    (tmp_path / "ramp.png").write_bytes(png(np.broadcast_to(ramp[None, :, None], (12, 400, 3))))
    list(upscale_files(tiny_upscaler(weight=0.0), [Job(str(tmp_path / "ramp.png"), tmp_path / "large.png")], progress=False))
    large = read_photo(tmp_path / "large.png")
    assert isinstance(large, DeepImage)
    assert np.abs(large.pixels[6, 20:-20, 1] - np.linspace(30000, 30600, 2 * 400)[20:-20]).max() < 3
    assert len(np.unique(large.pixels[6, :, 1])) > 350


@pytest.mark.parametrize("suffix", [".tif", ".jpg", ".webp", ".bmp", ".ppm"])
def test_other_files_hold_8_bits_which_is_told(suffix: str, tmp_path: Path) -> None:
    pixels = noise(6, 5, 3)
    (tmp_path / "deep.png").write_bytes(png(pixels))
    target = tmp_path / f"large{suffix}"
    (outcome,) = upscale_files(UPSCALER, [Job(str(tmp_path / "deep.png"), target)], progress=False)
    assert outcome.size == (10, 12)
    assert outcome.notes == (f"{tmp_path}/deep.png: of its colours in 16 bits {target} holds 8; choose .png for all",)
    if suffix in (".tif", ".bmp", ".ppm"):
        with Image.open(target) as large:
            expected = UPSCALER.upscale(pixels, progress=False) / 257
            assert np.abs(np.asarray(large) - expected).max() <= 0.5


def test_a_format_without_alpha_is_named(tmp_path: Path) -> None:
    with (
        pytest.warns(LeftOutWarning),
        pytest.raises(ValueError, match=r"deep\.jpg cannot hold an image of mode RGBA"),
    ):
        write_photo(DeepImage(noise(4, 4, 4), {}), tmp_path / "deep.jpg")
    assert list(tmp_path.iterdir()) == []


# -- damage -----------------------------------------------------------------------------------------------------------


def deep_tiff() -> bytes:
    file = BytesIO()
    tifffile.imwrite(file, noise(11, 14, 3), photometric="rgb", compression="zlib")
    return file.getvalue()


@pytest.mark.parametrize(("name", "content"), [("a.png", png(noise(11, 14, 4))), ("a.tif", deep_tiff())], ids=["png", "tif"])
def test_damaged_files_are_refused_as_others_are(name: str, content: bytes, tmp_path: Path) -> None:
    assert outcome_of(name, content, tmp_path).size == (28, 22)
    random = np.random.default_rng(0)
    problems = [outcome_of(name, DAMAGES[number % 6](content, random), tmp_path).problem for number in range(42)]
    assert sum(problem is not None for problem in problems) >= 10


@pytest.mark.parametrize(("width", "height"), [(2**31 - 1, 2**31 - 1), (30_000, 30_000), (3000, 2000)])
def test_a_size_with_nothing_behind_it(width: int, height: int, tmp_path: Path) -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    assert "cannot be read as an image" in str(outcome_of("deep.png", content, tmp_path).problem)
