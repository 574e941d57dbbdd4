"""Photographs in files made larger: where results go, what is never overwritten, and what is told about the rest."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tiny_upscaler import tiny_upscaler

from sckn.superres import upscale_files as module
from sckn.superres.upscale_files import Job, plan, upscale_file, upscale_files

UPSCALER = tiny_upscaler()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two photographs in `in` and one in `other`."""
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("in/a.png", "in/b.jpg", "other/c.gif")):
        Path(name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.RandomState(index).randint(0, 256, (6, 9, 3)).astype(np.uint8)).save(name)
    (tmp_path / "in" / "notes.txt").write_text("no photograph")
    return tmp_path


def targets(*sources: str, output: str) -> list[str]:
    return [str(job.target) if job.problem is None else job.problem for job in plan(sources, output)]


@pytest.mark.usefixtures("folder")
def test_where_results_go() -> None:
    assert targets("in/a.png", output="large.tif") == ["large.tif"]
    assert targets("in/a.png", output="out") == ["out/a.png"]
    assert targets("in/a.png", output="out.d/") == ["out.d/a.png"]
    assert targets("in/a.png", output="other") == ["other/a.png"]
    assert targets("in", output="out") == ["out/a.png", "out/b.jpg"]
    assert targets("in", output="out.2026") == ["out.2026/a.png", "out.2026/b.jpg"]
    assert targets("in/*", output="out") == ["out/a.png", "out/b.jpg"]
    assert targets("other", output="out") == ["out/c.png"]  # a format that is read and not written
    assert targets("**/*.jp*g", output="large.png") == ["large.png"]
    assert targets("other/c.gif", "in", "in/a.png", output="out") == ["out/c.png", "out/a.png", "out/b.jpg"]


@pytest.mark.usefixtures("folder")
def test_what_is_not_there_does_not_hold_up_the_rest() -> None:
    Path("empty").mkdir()
    assert targets("nowhere.png", "empty", "*.bmp", "in/a.png", output="out") == [
        "nowhere.png does not exist; expected an image",
        "empty holds no images; expected files that end in .bmp, .dib, .gif, .jfif, .jpe, .jpeg, .jpg, .pbm, .pgm, .png, .pnm, "
        ".ppm, .tif, .tiff, .webp",
        "there is no image *.bmp",
        "out/a.png",
    ]


@pytest.mark.parametrize(
    ("sources", "output", "sentence"),
    [
        ((), "out", "there are no photographs to make larger"),
        (("in",), "large.png", r"large\.png is a file, but a folder is needed for 2 photographs; give one with -o"),
        (("in/a.png", "in/b.jpg"), "in/notes.txt", r"notes\.txt is a file, but a folder is needed"),
        (("in/a.png",), "large.xyz", r"large\.xyz should end in one of \.bmp"),
        (("in/a.png",), "in/a.png", r"in/a\.png is a photograph to be read and would be overwritten"),
        (("in/a.png",), "hard.png", r"hard\.png is a photograph to be read and would be overwritten"),
        (("in/a.png",), "in", r"in/a\.png is a photograph to be read and would be overwritten"),
        (("in",), "./other/../in", "is a photograph to be read and would be overwritten"),
        (("in/a.png", "again"), "out", r"in/a\.png and again/a\.png would both become out/a\.png"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_refused(sources: tuple[str, ...], output: str, sentence: str) -> None:
    os.link("in/a.png", "hard.png")
    Path("again").mkdir()
    Path("again/a.png").write_bytes(Path("in/a.png").read_bytes())
    with pytest.raises(ValueError, match=sentence):
        plan(sources, output)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp", ".bmp"])
def test_orientation_and_profile_are_kept(suffix: str, tmp_path: Path) -> None:
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (12, 20, 3)).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter turn
    image.save(tmp_path / "photo.jpg", exif=exif, icc_profile=b"a profile", quality=95)
    target = tmp_path / f"large{suffix}"
    upscale_file(UPSCALER, tmp_path / "photo.jpg", target)
    expected = ImageOps.exif_transpose(UPSCALER.upscale(Image.open(tmp_path / "photo.jpg")))
    with Image.open(target) as large:
        upright = ImageOps.exif_transpose(large)
        assert upright.size == (24, 40)
        if suffix in (".png", ".tif", ".bmp"):
            assert upright.convert("RGB").tobytes() == expected.tobytes()
        if suffix != ".bmp":
            assert large.info["icc_profile"] == b"a profile"


def test_a_tiff_file_becomes_a_larger_one(tmp_path: Path) -> None:
    """Its own size and layout are among its EXIF data, and must not be those of the result."""
    pixels = np.random.RandomState(0).randint(0, 256, (12, 20, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(
        tmp_path / "photo.tif", compression="tiff_lzw", dpi=(300, 300), artist="somebody", tiffinfo={274: 6}
    )
    assert upscale_file(UPSCALER, tmp_path / "photo.tif", tmp_path / "large.tif") == (24, 40)  # Pillow turns TIFF files
    with Image.open(tmp_path / "large.tif") as large:
        assert np.array_equal(np.asarray(large), UPSCALER.upscale(np.rot90(pixels, -1)))
        assert 274 not in large.getexif()
        assert large.info["dpi"] == (300, 300)
        assert large.getexif()[315] == "somebody"


def test_the_factor_the_tile_and_the_memory(tmp_path: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (40, 50)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    sizes = []
    for tile, memory_gib in ((None, 0.5), (7, 0.5), (None, 0.01)):
        sizes.append(
            upscale_file(UPSCALER, tmp_path / "photo.png", tmp_path / "large.png", 1.5, tile=tile, memory_gib=memory_gib)
        )
        with Image.open(tmp_path / "large.png") as large:
            assert np.abs(np.asarray(large).astype(int) - UPSCALER.upscale(pixels, 1.5)).max() <= 1
    assert sizes == [(75, 60)] * 3
    with pytest.raises(ValueError, match="tile must be a whole number of at least 1, got 0"):
        list(upscale_files(UPSCALER, [], tile=0))
    with pytest.raises(ValueError, match="factor must be a number above 1"):
        list(upscale_files(UPSCALER, [], 0.5))


def test_what_would_be_too_large_is_known_before_the_work(tmp_path: Path) -> None:
    Image.new("L", (9000, 4)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match=r"wide\.png: \.webp files hold no 18000 x 8 pixels; choose \.png"):
        upscale_file(UPSCALER, tmp_path / "wide.png", tmp_path / "large.webp")
    with pytest.raises(ValueError, match=r"wide\.png: 9000 x 4 pixels are too many for a scale of 1000; choose a smaller one"):
        upscale_file(UPSCALER, tmp_path / "wide.png", tmp_path / "large.png", 1000)
    assert os.listdir(tmp_path) == ["wide.png"]


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_a_problem_of_one_photograph(
    error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, upscale = tiny_upscaler(), UPSCALER.upscale

    def fails_once(*arguments: object, **settings: object) -> object:
        monkeypatch.setattr(model, "upscale", upscale)
        raise error

    monkeypatch.setattr(model, "upscale", fails_once)
    first, second = upscale_files(model, plan(["in"], "out"), progress=False)
    assert first.problem == "in/a.png: the memory does not suffice; choose a smaller scale, tile or memory"
    assert (second.problem, second.size) == (None, (18, 12))


def test_a_mistake_of_the_library_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(UPSCALER, "upscale", wrong)
    monkeypatch.setattr(module, "_check_size", wrong)
    with pytest.raises(RuntimeError, match="a bug"):
        upscale_file(UPSCALER, "in/a.png", "large.png")


def test_damaged_exif_data_are_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage as such is for test_hostile_photos.py; here Pillow fails at it for sure."""

    def fails(self: Image.Image) -> Image.Exif:
        raise SyntaxError("not a TIFF file")

    Image.new("RGB", (8, 6), "red").save(tmp_path / "photo.jpg")
    monkeypatch.setattr(Image.Image, "getexif", fails)
    (outcome,) = upscale_files(UPSCALER, [Job(str(tmp_path / "photo.jpg"), tmp_path / "large.jpg")])
    assert outcome.size == (16, 12)
    assert outcome.notes == (f"{tmp_path}/photo.jpg: its EXIF data cannot be read and are left out",)
