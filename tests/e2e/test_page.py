"""The page in a real browser against the real server: what the microphone hears is sent whole, and its words appear."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, Page, WebSocketRoute, expect

from tests.e2e.server_process import Served, speech, write_m4a, write_wav

pytestmark = pytest.mark.browser
LONG_MS = 30_000


RATES = (44100, 48000)
# The device's own rate, as the browser tells it, and what the audio thread counted at the end.
AT_RATE = """
window.AudioContext = class extends AudioContext { constructor(how) { super({ ...how, sampleRate: %d }); } };
window.AudioWorkletNode = class extends AudioWorkletNode {
  constructor(...all) {
    super(...all);
    this.port.addEventListener("message", ({ data }) => { if (data.type === "ended") window.counted = data; });
  }
};
"""
# Every visible text whose colour stands out too little (WCAG 2.1 AA): [text, ratio].
PALE = """() => {
  const paint = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    paint.clearRect(0, 0, 1, 1);
    for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pale = [];
  const judge = (text, node, colour, size, weight) => {
    const behind = [];
    let seen = 1;
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      behind.unshift(style.backgroundColor);
      seen *= Number(style.opacity);
    }
    if (seen < 0.01) return;
    const back = light(over(behind));
    const front = light(over([...behind, colour]));
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    const large = size >= 24 || (size >= 18.66 && weight >= 700);
    if (ratio < (large ? 3 : 4.5)) pale.push([text, ratio]);
  };
  const open = document.querySelector("dialog[open]");
  const walker = document.createTreeWalker(open ?? document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility({ visibilityProperty: true })) continue;
    if (node.closest(".unseen, .skip, .dropzone")) continue;
    const style = getComputedStyle(node);
    judge(text, node, style.color, parseFloat(style.fontSize), Number(style.fontWeight));
  }
  for (const field of open?.querySelectorAll("[placeholder]") ?? []) {
    judge(field.placeholder, field, getComputedStyle(field, "::placeholder").color, 16, 400);
  }
  return pale;
}"""


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    return speech("all-circuits-busy-now")


@pytest.fixture(scope="module")
def page_with_microphone(
    browse: Callable[..., Browser], recording: np.ndarray, tmp_path_factory: Any
) -> Browser:
    sound = np.concatenate([np.zeros(12_000, np.float32), recording, np.zeros(48_000, np.float32)])
    return browse(write_wav(tmp_path_factory.mktemp("sound") / "talk.wav", sound, 48000))


@contextlib.contextmanager
def watched(page_with_microphone: Browser, served: Served, script: str = "") -> Iterator[Page]:
    """A page that may not fail: any error in its console, and any request to elsewhere, fails the test."""
    context = page_with_microphone.new_context(
        viewport={"width": 1200, "height": 800}, permissions=["clipboard-write"]
    )
    context.add_init_script(script)
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


@pytest.fixture
def page(page_with_microphone: Browser, served: Served) -> Iterator[Page]:
    with watched(page_with_microphone, served) as opened:
        yield opened


@dataclass(frozen=True)
class SpokenSession:
    """A page on which something has been said, by keyboard only, and what was sent for it."""

    page: Page
    sound: bytes
    rate: int


@pytest.fixture(scope="module", params=RATES)
def spoken(
    request: pytest.FixtureRequest, page_with_microphone: Browser, served: Served
) -> Iterator[SpokenSession]:
    """One recording for all tests that look at what came of it, at each rate that devices have."""
    with watched(page_with_microphone, served, AT_RATE % request.param) as page:
        sent = sent_by(page)
        page.keyboard.press("Space")
        wait_for_state(page, "listening")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        wait_for_sound(page, 3)
        page.keyboard.press("Space")
        wait_for_state(page, "idle")
        yield SpokenSession(page, b"".join(sent), request.param)


def sent_by(page: Page) -> list[bytes]:
    """Every binary message that the page sends from now on."""
    sent: list[bytes] = []

    def socket(opened: Any) -> None:
        opened.on("framesent", lambda frame: sent.append(frame) if isinstance(frame, bytes) else None)

    page.on("websocket", socket)
    return sent


def wait_for_sound(page: Page, seconds: int) -> None:
    """Until so much has been recorded (single seconds only)."""
    not_yet = "|".join(f"0:0{second}" for second in range(seconds))
    expect(page.locator("#elapsed")).not_to_have_text(re.compile(not_yet), timeout=LONG_MS)


def wait_for_state(page: Page, state: str) -> None:
    expect(page.locator(f"body[data-state={state}]")).to_be_attached(timeout=LONG_MS)


def shown_words(page: Page) -> list[str]:
    return page.locator(".session .word").all_text_contents()


def file_transcript(served: Served, body: bytes, query: str = "") -> list[str]:
    """What the server makes of the same sound as one file, written as the page asks for it."""
    address = f"{served.address}/v1/listen?smart_format=true{query}"
    request = urllib.request.Request(address, body, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        document = json.load(answer)
    words = document["results"]["channels"][0]["alternatives"][0]["words"]
    return [word["punctuated_word"] for word in words]


RAW = "&encoding=linear16&sample_rate=16000"


def correlation(long: np.ndarray, short: np.ndarray) -> float:
    """The largest normalized cross-correlation of `short` anywhere in `long`."""
    size = 1 << int(np.ceil(np.log2(len(long) + len(short))))
    product = np.fft.irfft(np.fft.rfft(long, size) * np.conj(np.fft.rfft(short, size)), size)
    at = int(np.argmax(product[: len(long)]))
    part = long[at : at + len(short)]
    short = short[: len(part)]
    return float(part @ short / (np.linalg.norm(part) * np.linalg.norm(short)))


def test_what_is_spoken_is_sent_whole_and_its_words_are_shown(spoken: SpokenSession, served: Served) -> None:
    counted = spoken.page.evaluate("counted")
    # Every sample that the device gave has become sound that was sent: none lost, none doubled.
    assert counted["sent"] == math.ceil(counted["received"] * 16000 / spoken.rate) == len(spoken.sound) // 2
    heard = np.frombuffer(spoken.sound, "<i2").astype(np.float64) / 32768
    # The middle of the recording must be in what was sent, as it was. Chromium's pretended microphone falls silent
    # for a moment when the machine is busy: then its pieces must be there, but for those that were cut by that.
    middle = speech("all-circuits-busy-now", 16000)[4_000:25_000].astype(np.float64)
    alike = sorted(correlation(heard, piece) for piece in np.split(middle, 7))
    assert correlation(heard, middle) > 0.95 or alike[2] > 0.99, alike
    assert shown_words(spoken.page) == file_transcript(served, spoken.sound, RAW) != []


def test_the_transcript_can_be_copied_and_saved(spoken: SpokenSession) -> None:
    page, words = spoken.page, shown_words(spoken.page)
    for name in ("txt", "srt", "vtt", "json"):
        with page.expect_download() as saving:
            page.get_by_role("button", name=f"Download as {name}").click()
        text = Path(saving.value.path()).read_text()
        assert saving.value.suggested_filename.endswith(f".{name}")
        assert all(word in text for word in words)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()


def test_how_sure_it_is_is_told_on_hover_and_by_the_arrow_keys(spoken: SpokenSession) -> None:
    page, words = spoken.page, shown_words(spoken.page)
    page.locator(".word").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("% sure")
    page.mouse.move(0, 0)
    expect(page.get_by_role("tooltip")).to_be_hidden()
    page.locator(".lines").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tooltip")).to_contain_text("% sure")
    expect(page.locator("#announcement")).to_contain_text(f"{words[1]}: ")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()


def test_a_screen_reader_is_told_each_line_once(spoken: SpokenSession) -> None:
    told = spoken.page.get_by_role("log", name="Recognized speech").locator("p").all_text_contents()
    assert " ".join(told).split() == shown_words(spoken.page)


def test_every_control_has_a_name_and_is_reached_by_tab(spoken: SpokenSession) -> None:
    page = spoken.page
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.title"))
    assert {"open-files", "open-settings", "speak", "Copy", "Download as srt", "Remove"} <= set(reached)
    nameless = "[...document.querySelectorAll('button, a, input, select, textarea')].filter((one) =>"
    nameless += " !one.hidden && !(one.labels?.length || one.textContent.trim() || one.ariaLabel)).length"
    assert page.evaluate(nameless) == 0
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "open-settings"


def test_every_text_can_be_read(spoken: SpokenSession, tmp_path: Path) -> None:
    """Contrast as WCAG AA wants it, light and dark, in every state; nothing moves for those who asked for that."""
    page = spoken.page
    letter = tmp_path / "letter.txt"
    letter.write_text("dear sir or madam, " * 50)
    page.emulate_media(reduced_motion="reduce")
    page.set_input_files("#file-input", letter)
    expect(page.get_by_role("alert").first).to_contain_text("could not read this sound", timeout=LONG_MS)
    page.evaluate("document.body.classList.add('doubts')")
    page.evaluate("document.querySelector('.word').dataset.doubt = 'much'")
    page.evaluate("document.querySelector('#failure').hidden = false")
    page.evaluate("document.querySelector('#welcome').hidden = false")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme, state in itertools.product(schemes, ("idle", "listening", "reconnecting")):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate("(state) => { document.body.dataset.state = state; }", state)
        assert page.evaluate(PALE) == []
    page.evaluate("document.body.dataset.state = 'idle'")
    page.get_by_role("button", name="Settings").click()
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert page.evaluate(PALE) == []
    assert page.evaluate("document.getAnimations().length") == 0
    page.keyboard.press("Escape")


def test_a_file_dropped_on_the_page_is_read(
    page: Page, served: Served, recording: np.ndarray, tmp_path: Path
) -> None:
    sound = np.concatenate([recording, np.zeros(3 * 48_000, np.float32)])
    path = write_wav(tmp_path / "talk <b>1.wav", sound, 48000)
    page.set_input_files("#file-input", path)
    section = page.locator(".session")
    expect(section.get_by_role("button", name="Remove")).to_be_visible(timeout=LONG_MS)
    assert section.locator("h2").text_content() == path.name
    assert (
        section.locator(".meta").text_content() == f"0:0{len(sound) // 48_000}"
    )  # silence too is of its length
    assert shown_words(page) == file_transcript(served, path.read_bytes()) != []


def test_a_phone_s_memo_is_read(page: Page, served: Served, tmp_path: Path) -> None:
    path = write_m4a(tmp_path / "memo.m4a", speech("all-circuits-busy-now", 16000))
    page.set_input_files("#file-input", path)
    expect(page.locator(".session").get_by_role("button", name="Remove")).to_be_visible(timeout=LONG_MS)
    assert shown_words(page) == file_transcript(served, path.read_bytes()) != []


def test_several_files_are_read_at_once_and_a_bad_one_says_so_where_it_stands(
    page: Page, served: Served, recording: np.ndarray, tmp_path: Path
) -> None:
    good = write_wav(tmp_path / "talk.wav", recording, 48000)
    empty, letter = tmp_path / "empty.wav", tmp_path / "letter.wav"
    empty.touch()
    letter.write_text("dear sir or madam, " * 50)
    page.set_input_files("#file-input", [letter, empty, good])
    for path, told in ((letter, "could not read this sound"), (empty, "This file is empty.")):
        section = page.locator(".session", has_text=path.name)
        expect(section.get_by_role("alert")).to_contain_text(told, timeout=LONG_MS)
    expect(page.get_by_role("button", name="Remove")).to_have_count(3, timeout=LONG_MS)
    expect(page.locator("#failure")).to_be_hidden()
    assert shown_words(page) == file_transcript(served, good.read_bytes()) != []


def test_a_file_can_be_cancelled_while_it_waits_and_while_it_is_heard(
    page: Page, recording: np.ndarray, tmp_path: Path
) -> None:
    # The rest is a hole in the file: an hour and a half, that no machine has heard before it is cancelled.
    size = 500 << 20
    files = [write_wav(tmp_path / f"{number}.wav", recording, 48000) for number in range(3)]
    for path in files:
        with path.open("r+b") as file:
            file.seek(40)  # the length of its sound, in the header that `wave` writes
            file.write((size - 44).to_bytes(4, "little"))
            file.truncate(size)
    page.set_input_files("#file-input", files)
    for number in (2, 0, 1):
        section = page.locator(".session", has=page.locator(f"h2[title='{number}.wav']"))
        section.get_by_role("button", name="Cancel").click()
        expect(section.locator(".meta")).to_have_text("cancelled", timeout=LONG_MS)


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
        """
        window.breaks = 0;
        new MutationObserver(() => {
          if (document.body.dataset.state === "reconnecting") document.body.dataset.breaks = ++breaks;
        }).observe(document.body, {attributes: true, attributeFilter: ["data-state"]});
        """
    )
    page.click("#speak")
    for seconds in (1, 2):
        wait_for_sound(page, seconds)
        wait_for_state(page, "listening")
        cuts[-1]()
        expect(page.locator(f"body[data-breaks='{seconds}']")).to_be_attached(timeout=LONG_MS)
    wait_for_sound(page, 3)
    wait_for_state(page, "listening")
    page.click("#speak")
    wait_for_state(page, "idle")
    expect(page.locator("#failure")).to_be_hidden()
    expect(page.locator(".remark")).to_have_text(
        "The connection was lost 2 times and came back; nothing is missing."
    )
    assert page.evaluate("breaks") == len(cuts) - 1 == 2
    sound = b""
    for begin, part in sorted(received.items()):
        sound = sound[:begin] + part
    assert shown_words(page) == file_transcript(served, sound, RAW) != []


def test_no_script_can_make_markup_of_text(page_with_microphone: Browser, served: Served) -> None:
    with urllib.request.urlopen(served.address) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    context = page_with_microphone.new_context()
    page = context.new_page()
    page.goto(served.address)
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    context.close()
