# ruff: noqa: RUF001  (signs that the page has)
"""The page of `sckn serve` in a real browser without a window: Debian's Chromium, which the Makefile installs."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from serving import MISSING, Running, encoded, patiently, photograph, serving
from tiny_classifier import CLASSES, tiny_classifier
from tiny_upscaler import tiny_upscaler

from sckn.data.pictures import read_picture

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
FLAGS += ("disable-component-update", "disable-sync")
LOST = "The connection is lost; trying again …"
WAIT = 60_000  # milliseconds, on a computer that has other things to do

pytestmark = pytest.mark.skipif(
    not os.path.exists(CHROMIUM) and not os.environ.get("CI"),  # where they fail rather than not run
    reason="Chromium is not here; install it with apt-get install chromium, as root",
)
expect.set_options(timeout=WAIT)

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, server: Running) -> Iterator[Visit]:
    """Opens the page for a visitor; whatever it complains about, or asks of another server, is a failure."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: str = "/", of: Running = server, **settings: Any) -> Page:
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", heard)
        page.on("request", lambda request: asked(request, of))
        page.goto(of.address + path)
        if path == "/":
            expect(page.locator("#version")).to_have_text(re.compile(r"^sckn \d"))
        return page

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def asked(request: Request, of: Running) -> None:
        if not request.url.startswith((of.address, f"blob:{of.address}", "data:")):
            complaints.append(request.url)

    yield open_page
    for context in contexts:
        context.close()
    # to the browser's console a refusal of the server is an error, too, and so is a connection that a test has cut
    expected = ("the server responded with a status of 4", "net::ERR_INTERNET_DISCONNECTED", "net::ERR_CONNECTION_REFUSED")
    expected += ("net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_EMPTY_RESPONSE", "net::ERR_CONNECTION_RESET")
    assert [text for text in complaints if not any(part in text for part in expected)] == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "my photo.png"
    photograph(240, 160).save(path)
    return path


def enlarge(page: Page, photo: Path, scale: int = 2) -> None:
    page.locator("#photo").set_input_files(photo)
    page.get_by_text(f"×{scale}", exact=True).click()
    page.get_by_role("button", name=f"Enlarge ×{scale}").click()


def downloaded(page: Page) -> tuple[str, Image.Image]:
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    return download.value.suggested_filename, Image.open(BytesIO(Path(download.value.path()).read_bytes()))


def is_result(image: Image.Image, photo: Image.Image, weight: float = 3.0) -> bool:
    expected = np.asarray(tiny_upscaler(2, weight).upscale(photo, progress=False)).astype(int)
    return image.size == expected.shape[1::-1] and int(np.abs(np.asarray(image) - expected).max()) <= 1


def test_a_photograph_from_its_choice_to_the_download(visit: Visit, server: Running, photo: Path) -> None:
    page = visit()
    page.locator("#photo").set_input_files(photo)
    expect(page.locator("#sizes")).to_have_text("240 × 160 → 480 × 320 pixels")
    page.get_by_text("×3", exact=True).click()
    expect(page.locator("#sizes")).to_have_text("240 × 160 → 720 × 480 pixels")
    # every value that the bar takes
    page.evaluate(
        """() => {
          window.values = [];
          const bar = document.querySelector("[role=progressbar]");
          new MutationObserver(() => values.push(bar.getAttribute("aria-valuenow")))
            .observe(bar, { attributeFilter: ["aria-valuenow"] });
        }"""
    )
    page.get_by_role("button", name="Enlarge ×3").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("slider")).to_be_visible()
    values = [int(value) for value in page.evaluate("values")]
    assert len(set(values)) >= 5
    assert values == sorted(values)
    expect(page.get_by_role("progressbar")).to_be_hidden()
    expect(page.locator("#result-sizes")).to_contain_text("720 × 480 pixels")
    for _ in patiently(10):  # what the page has fetched is nowhere else any more
        if not server.files():
            break
    assert server.files() == []
    name, image = downloaded(page)
    assert (name, image.size) == ("my photo-x3.png", (720, 480))


def test_the_download_is_the_result_of_the_model(visit: Visit, photo: Path) -> None:
    page = visit()
    enlarge(page, photo)
    name, image = downloaded(page)
    assert name == "my photo-x2.png"
    assert is_result(image, Image.open(photo))
    page.get_by_text("Fast", exact=True).click()
    page.get_by_text("JPEG", exact=True).click()
    page.get_by_role("button", name="Enlarge ×2").click()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    expect(page.get_by_role("slider")).to_be_visible()
    name, image = downloaded(page)
    assert (name, image.format) == ("my photo-x2.jpg", "JPEG")


def test_before_and_after_by_mouse_and_by_keys(visit: Visit, tmp_path: Path) -> None:
    white = tmp_path / "white.png"
    Image.new("RGB", (200, 150), "white").save(white)
    page = visit(viewport={"width": 1000, "height": 900})
    enlarge(page, white)
    slider, frame = page.get_by_role("slider", name="Compare before and after"), page.locator("#compare")
    expect(slider).to_have_value("50")
    # what is before becomes black here, so that a screenshot shows how far it reaches
    page.evaluate("""() => { document.querySelector(".before").style.filter = "invert(1)"; }""")

    def share_of_before() -> float:
        pixels = np.asarray(Image.open(BytesIO(frame.screenshot())).convert("L"))
        return float((pixels[20] < 128).mean())  # a row above the handle and the words

    assert share_of_before() == pytest.approx(0.5, abs=0.02)
    box = frame.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle)
    page.mouse.move(box["x"] + 0.8 * box["width"], middle)
    page.mouse.up()
    assert float(slider.input_value()) == pytest.approx(80, abs=2)
    assert share_of_before() == pytest.approx(0.8, abs=0.02)
    page.mouse.click(box["x"] + 0.25 * box["width"], middle)
    assert share_of_before() == pytest.approx(0.25, abs=0.02)
    slider.focus()
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "100 % before")
    assert share_of_before() > 0.97
    page.keyboard.press("Home")
    assert share_of_before() < 0.03
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("10")
    assert share_of_before() == pytest.approx(0.1, abs=0.02)
    # at full size only the handle takes the pointer, and the cut stays below it
    page.get_by_text("Full size", exact=True).click()
    page.mouse.move(0, 0)
    width = frame.bounding_box()
    assert width is not None
    assert width["width"] == 400
    assert share_of_before() == pytest.approx(0.1, abs=0.07)


def test_by_keyboard_alone(visit: Visit, photo: Path) -> None:
    page = visit()
    page.on("filechooser", lambda _: None)  # so that the browser has time to get ready for one
    page.keyboard.press("Tab")  # the link that skips
    page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="Enlarge")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Classify")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tabpanel", name="Enlarge")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Choose a photograph")).to_be_focused()
    outline = page.locator("#enlarge-picker label").evaluate("label => getComputedStyle(label).outlineStyle")
    assert outline == "solid"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(photo)
    page.keyboard.press("Tab")
    expect(page.get_by_role("radio", name="×2")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="×3")).to_be_checked()
    page.keyboard.press("ArrowLeft")
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Enlarge ×2")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("slider")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Download")).to_be_focused()


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_photographs_can_be_dropped_and_pasted(visit: Visit, how: str) -> None:
    page = visit()
    image = photograph(90, 60)
    page.evaluate(
        """([how, bytes]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "found.png", { type: "image/png" }));
          const settings = { bubbles: true, cancelable: true };
          document.body.dispatchEvent(how === "drop"
            ? new DragEvent("drop", { ...settings, dataTransfer: data })
            : new ClipboardEvent("paste", { ...settings, clipboardData: data }));
        }""",
        [how, list(encoded(image))],
    )
    expect(page.locator("#sizes")).to_have_text("90 × 60 → 180 × 120 pixels")
    page.get_by_role("button", name="Enlarge ×2").click()
    name, result = downloaded(page)
    assert name == "found-x2.png"
    assert is_result(result, image)


def test_files_that_cannot_be_used(visit: Visit, tmp_path: Path, photo: Path) -> None:
    page = visit()
    problem = page.locator("#enlarge-problem")
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(33 * 2**20)
    page.locator("#photo").set_input_files(large)
    expect(problem).to_have_text("This file has 33.0 MB, and at most 32 MB are taken here.")
    expect(page.locator("#start")).to_be_disabled()
    for side, sentence in {
        6000: "6000 × 6000 → 12000 × 12000 pixels, but at most 25 megapixels are read here",
        4500: "4500 × 4500 → 9000 × 9000 pixels, but results here have at most 64 megapixels",
    }.items():
        Image.new("1", (side, side)).save(tmp_path / "many.png")
        page.locator("#photo").set_input_files(tmp_path / "many.png")
        expect(page.locator("#sizes")).to_have_text(sentence)
        expect(page.locator("#start")).to_be_disabled()
    (tmp_path / "text.jpg").write_text("this is no image")
    (tmp_path / "cut.png").write_bytes(photo.read_bytes()[:3000])
    for name, sentence in {
        "text.jpg": r"The file is not an image of a known format; choose one in .*\.",
        "cut.png": r"The photo cannot be read \(.*truncated.*\); repair it or choose another\.",
    }.items():
        page.locator("#photo").set_input_files(tmp_path / name)
        expect(problem).to_be_empty()
        page.locator("#start").click()
        expect(problem).to_have_text(re.compile(f"^{sentence}$"))
        expect(page.locator("#result")).to_be_hidden()
    enlarge(page, photo)  # and then all is well
    expect(page.get_by_role("slider")).to_be_visible()
    expect(problem).to_be_empty()


def test_two_visitors_at_once(visit: Visit, tmp_path: Path) -> None:
    photos = [photograph(200, 120, seed=1), photograph(120, 200, seed=2)]
    pages = []
    for number, each in enumerate(photos):
        path = tmp_path / f"photo {number}.png"
        each.save(path)
        page = visit()
        enlarge(page, path)
        pages.append(page)
    for number, (page, each) in enumerate(zip(pages, photos, strict=True)):
        name, image = downloaded(page)
        assert name == f"photo {number}-x2.png"
        assert is_result(image, each)
    # nothing of one is in the page of the other
    assert "photo 1" not in pages[0].content()


def test_cancelling_and_leaving_stop_the_work(visit: Visit, server: Running, large: Path) -> None:
    page = visit()
    enlarge(page, large, scale=3)
    expect(page.locator("#progress-text")).to_contain_text("Part")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    expect(page.get_by_role("button", name="Enlarge ×3")).to_be_enabled()
    assert stopped(server)
    page.get_by_role("button", name="Enlarge ×3").click()
    expect(page.locator("#progress-text")).to_contain_text("Part")
    page.goto("about:blank")
    assert stopped(server)


def stopped(server: Running) -> bool:
    """Sooner than by losing patience."""
    return any(server.get("/api/health").json["running"] == 0 and not server.files() for _ in patiently(10))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A photograph that takes its time with the slow model, for x3."""
    path = tmp_path / "large.jpg"
    photograph(1400, 1000).save(path)
    return path


def test_the_keyboard_reaches_what_stops_the_work(visit: Visit, large: Path) -> None:
    page = visit()
    page.locator("#photo").set_input_files(large)
    page.get_by_text("×3", exact=True).click()
    page.get_by_role("button", name="Enlarge ×3").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    expect(page.locator("#progress-text")).to_contain_text("Part")
    expect(page.get_by_role("radio", name="×2")).to_be_disabled()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Enlarge ×3")).to_be_focused()
    expect(page.get_by_role("radio", name="×2")).to_be_enabled()


def test_a_short_break_of_the_connection_does_no_harm(visit: Visit, server: Running, large: Path) -> None:
    """A server that is stopped, and goes on, is as silent as one behind a network that is gone for a while."""
    page = visit()
    enlarge(page, large, scale=3)
    expect(page.locator("#progress-text")).to_contain_text("Part")
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#progress-text")).to_have_text(LOST)
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(page.get_by_role("slider")).to_be_visible()


def test_a_job_that_is_gone_is_told_as_the_server_tells_it(visit: Visit, server: Running, large: Path) -> None:
    page = visit()
    with page.expect_request("**/events") as events:
        enlarge(page, large, scale=3)
    expect(page.locator("#progress-text")).to_contain_text("Part")
    job = events.value.url.split("/")[-2]
    assert server.ask("DELETE", f"/api/jobs/{job}").status == 204
    expect(page.locator("#enlarge-problem")).to_have_text(re.compile("^There is no such job; .*: start again\\.$"))
    expect(page.get_by_role("button", name="Enlarge ×3")).to_be_enabled()


def test_a_server_that_has_ended_is_told(visit: Visit, large: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", "--patience", "4") as other:
        page = visit(of=other)
        enlarge(page, large, scale=3)
        expect(page.locator("#progress-text")).to_contain_text("Part")
        other.stop()
        expect(page.locator("#progress-text")).to_have_text(LOST)
        expect(page.locator("#enlarge-problem")).to_have_text(re.compile("^The connection was lost for more than 4 seconds"))
        expect(page.get_by_role("button", name="Enlarge ×3")).to_be_enabled()


def test_images_are_classified(visit: Visit, photo: Path, tmp_path: Path) -> None:
    page = visit()
    page.get_by_role("tab", name="Classify").click()
    page.locator("#image").set_input_files(photo)
    expect(page.locator(".scores li")).to_have_count(len(CLASSES))
    scores = tiny_classifier().predict(read_picture(photo, 12)[None])[0].tolist()
    expected = sorted(zip(scores, CLASSES, strict=True), reverse=True)
    assert page.locator(".scores .name").all_inner_texts() == [name for _, name in expected]
    assert page.locator(".scores .score").all_inner_texts() == [f"{score:.2f}".replace("-", "−") for score, _ in expected]
    expect(page.get_by_role("heading", name=expected[0][1])).to_be_visible()
    (tmp_path / "text.png").write_text("this is no image")
    page.locator("#image").set_input_files(tmp_path / "text.png")
    expect(page.locator("#classify-problem")).to_contain_text("not an image of a known format")
    expect(page.locator("#scores")).to_be_hidden()


def test_models_that_are_missing_are_told_and_not_offered(visit: Visit) -> None:
    page = visit()
    expect(page.get_by_role("radio", name="×4")).to_be_disabled()
    page.get_by_text("×3", exact=True).click()
    expect(page.get_by_role("radio", name="Fast")).to_be_disabled()
    expect(page.locator("#missing summary")).to_have_text(f"Models that are not installed here: {', '.join(MISSING)}")
    page.locator("#missing summary").click()
    expect(page.locator("#missing li").first).to_contain_text("install sckn again, or train one")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_and_can_be_read(visit: Visit, photo: Path, width: int, scheme: str) -> None:
    page = visit(viewport={"width": width, "height": 640}, color_scheme=scheme)

    def check() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = brightness(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert ground < 0.1 if scheme == "dark" else ground > 0.8
        for selector in ("body", ".hint", "footer", ".segments label", "[role=tab][aria-selected=false]", "h1", "footer a"):
            text = brightness(page.locator(selector).first.evaluate("element => getComputedStyle(element).color"))
            assert contrast(text, ground) >= 4.5, selector

    check()
    enlarge(page, photo)
    expect(page.get_by_role("slider")).to_be_visible()
    check()
    page.get_by_text("Full size", exact=True).click()
    check()
    page.get_by_role("tab", name="Classify").click()
    page.locator("#image").set_input_files(photo)
    expect(page.locator("#scores")).to_be_visible()
    check()


def brightness(colour: str) -> float:
    """The relative luminance that the guidelines for accessible pages define."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_nothing_moves_for_those_who_ask_for_that(visit: Visit) -> None:
    moving = "document.querySelectorAll('*').values().some(e => getComputedStyle(e).transitionDuration !== '0s')"
    assert visit().evaluate(moving)
    assert not visit(reduced_motion="reduce").evaluate(moving)


def test_the_documentation_is_rendered_without_help_from_outside(visit: Visit, server: Running) -> None:
    page = visit("/docs", viewport={"width": 320, "height": 640})
    spec = server.get("/openapi.json").json
    expected = [f"{method.upper()}{path}" for path, methods in spec["paths"].items() for method in methods]
    expect(page.locator(".operation h2")).to_have_count(len(expected))
    assert [re.sub(r"\s", "", text) for text in page.locator(".operation h2").all_inner_texts()] == expected
    expect(page.locator(".operation").nth(2)).to_contain_text("How many times as wide and high; one of 2, 3, 4; 2 by default")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
