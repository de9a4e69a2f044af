"""The page in a real browser against the real server: what the microphone hears is sent whole, and its words appear."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, Page, WebSocketRoute, expect

from tests.e2e.house import Served, speech, write_m4a, write_wav

pytestmark = pytest.mark.browser
LONG_MS = 30_000


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    return speech("all-circuits-busy-now")


@pytest.fixture(scope="module")
def talking(browse: Callable[..., Browser], recording: np.ndarray, tmp_path_factory: Any) -> Browser:
    sound = np.concatenate([np.zeros(12_000, np.float32), recording, np.zeros(48_000, np.float32)])
    return browse(write_wav(tmp_path_factory.mktemp("sound") / "talk.wav", sound, 48000))


@pytest.fixture
def page(talking: Browser, served: Served) -> Any:
    """A page that may not fail: any error in its console, and any request to elsewhere, fails the test."""
    context = talking.new_context(viewport={"width": 1200, "height": 800}, permissions=["clipboard-write"])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda r: None if r.url.startswith((served.address, "blob:")) else problems.append(r.url)
    )
    page.goto(served.address)
    yield page
    context.close()
    assert problems == []


def sent_by(page: Page) -> list[bytes]:
    """Every binary message that the page sends from now on."""
    sent: list[bytes] = []

    def socket(opened: Any) -> None:
        opened.on("framesent", lambda frame: sent.append(frame) if isinstance(frame, bytes) else None)

    page.on("websocket", socket)
    return sent


def wait_for_sound(page: Page, seconds: int) -> None:
    """Until so much has been recorded (single seconds only)."""
    expect(page.locator("#elapsed")).to_have_text(re.compile(f"0:0[{seconds}-9]"), timeout=LONG_MS)


def wait_for_state(page: Page, state: str) -> None:
    expect(page.locator(f"body[data-state={state}]")).to_be_attached(timeout=LONG_MS)


def speak_for(page: Page, seconds: int) -> None:
    """Press, wait until so much sound has been taken, press again, wait for the end."""
    page.click("#speak")
    wait_for_state(page, "listening")
    wait_for_sound(page, seconds)
    page.click("#speak")
    wait_for_state(page, "idle")


def shown_words(page: Page) -> list[str]:
    return page.locator(".session .word").all_text_contents()


def offline(served: Served, sound: bytes) -> list[str]:
    """What the server makes of the same sound as a file."""
    request = urllib.request.Request(
        f"{served.address}/v1/listen?encoding=linear16&sample_rate=16000", sound, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        document = json.load(answer)
    return [word["word"] for word in document["results"]["channels"][0]["alternatives"][0]["words"]]


def correlation(long: np.ndarray, short: np.ndarray) -> float:
    """The largest normalised cross-correlation of `short` anywhere in `long`."""
    size = 1 << int(np.ceil(np.log2(len(long) + len(short))))
    product = np.fft.irfft(np.fft.rfft(long, size) * np.conj(np.fft.rfft(short, size)), size)
    at = int(np.argmax(product[: len(long)]))
    part = long[at : at + len(short)]
    short = short[: len(part)]
    return float(part @ short / (np.linalg.norm(part) * np.linalg.norm(short)))


def test_what_is_spoken_is_sent_whole_and_its_words_are_shown(page: Page, served: Served) -> None:
    sent = sent_by(page)
    speak_for(page, 3)
    sound = b"".join(sent)
    heard = np.frombuffer(sound, "<i2").astype(np.float64) / 32768
    # The middle of the recording must be in what was sent, as it was.
    middle = speech("all-circuits-busy-now", 16000)[4_000:24_000].astype(np.float64)
    assert correlation(heard, middle) > 0.95
    assert all(len(message) == 1280 for message in sent[:-1])
    assert shown_words(page) == offline(served, sound) != []


def test_the_transcript_can_be_copied_and_saved_and_says_how_sure_it_is(page: Page) -> None:
    speak_for(page, 2)
    words = shown_words(page)
    for name in ("txt", "srt", "vtt", "json"):
        with page.expect_download() as saving:
            page.get_by_role("button", name=f"Download as {name}").click()
        text = Path(saving.value.path()).read_text()
        assert saving.value.suggested_filename.endswith(f".{name}")
        assert all(word in text for word in words)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.locator(".word").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("% sure")


def test_a_file_dropped_on_the_page_is_read(
    page: Page, served: Served, recording: np.ndarray, tmp_path: Path
) -> None:
    path = write_wav(tmp_path / "talk <b>1.wav", recording, 48000)
    page.set_input_files("#file-input", path)
    section = page.locator(".session")
    expect(section.get_by_role("button", name="Remove")).to_be_visible(timeout=LONG_MS)
    assert section.locator("h2").text_content() == path.name
    request = urllib.request.Request(f"{served.address}/v1/listen", path.read_bytes(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        document = json.load(answer)
    words = [word["word"] for word in document["results"]["channels"][0]["alternatives"][0]["words"]]
    assert shown_words(page) == words != []


def test_a_phone_s_memo_is_read(page: Page, served: Served, tmp_path: Path) -> None:
    path = write_m4a(tmp_path / "memo.m4a", speech("all-circuits-busy-now", 16000))
    page.set_input_files("#file-input", path)
    expect(page.locator(".session").get_by_role("button", name="Remove")).to_be_visible(timeout=LONG_MS)
    request = urllib.request.Request(f"{served.address}/v1/listen", path.read_bytes(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        document = json.load(answer)
    words = [word["word"] for word in document["results"]["channels"][0]["alternatives"][0]["words"]]
    assert shown_words(page) == words != []


def test_a_file_that_is_no_sound_is_refused_in_words(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear sir or madam, " * 50)
    page.set_input_files("#file-input", path)
    expect(page.get_by_role("alert")).to_contain_text("could not read this sound", timeout=LONG_MS)


def test_a_broken_connection_is_shown_and_nothing_is_lost(page: Page, served: Served) -> None:
    """The connection is cut under the page twice; it resumes, and the words are those of the whole sound."""
    cuts: list[Callable[[], None]] = []
    received: dict[int, bytes] = {}

    def between(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        begins: list[int] = []
        whole = True

        def from_page(message: str | bytes) -> None:
            if isinstance(message, bytes):
                received[begins[0]] = received.get(begins[0], b"") + message
            if whole:
                server.send(message)

        def from_server(message: str | bytes) -> None:
            told = json.loads(message)
            if told["type"] == "Started":
                begins.append(told["received_bytes"])
            route.send(message)

        def cut() -> None:
            nonlocal whole
            whole = False
            server.close(code=4998)  # not a close of ours: the server takes it as a lost connection
            route.close(code=1001)

        route.on_message(from_page)
        server.on_message(from_server)
        cuts.append(cut)

    page.route_web_socket(re.compile("/v1/listen"), between)
    page.evaluate(
        "window.states = []; new MutationObserver(() => states.push(document.body.dataset.state))"
        ".observe(document.body, {attributes: true, attributeFilter: ['data-state']})"
    )
    page.click("#speak")
    for seconds in (1, 2):
        wait_for_sound(page, seconds)
        wait_for_state(page, "listening")
        cuts[-1]()
        wait_for_sound(page, seconds + 1)
    wait_for_state(page, "listening")
    page.click("#speak")
    wait_for_state(page, "idle")
    expect(page.locator("#failure")).to_be_hidden()
    assert page.evaluate("states").count("reconnecting") == len(cuts) - 1 == 2
    sound = b""
    for begin, part in sorted(received.items()):
        sound = sound[:begin] + part
    assert shown_words(page) == offline(served, sound) != []


def test_no_script_can_make_markup_of_text(talking: Browser, served: Served) -> None:
    with urllib.request.urlopen(served.address) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    context = talking.new_context()
    page = context.new_page()
    page.goto(served.address)
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    context.close()


def test_it_can_be_used_by_keyboard_and_screen_reader(page: Page) -> None:
    page.keyboard.press("Space")
    wait_for_state(page, "listening")
    expect(page.get_by_role("button", name="Stop")).to_have_attribute("aria-pressed", "true")
    wait_for_sound(page, 2)
    page.keyboard.press("Space")
    wait_for_state(page, "idle")
    log = page.get_by_role("log", name="Recognised speech")
    assert log.text_content() is not None and " ".join(shown_words(page)).split()[0] in str(
        log.text_content()
    )
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
