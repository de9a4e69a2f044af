"""A recorded sentence in the microphone and its words on the page, with a model that recognizes them (if available)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from lm.text.normalize import normalize
from tests.e2e.server_process import ServerProcess, speech, start_server, stop_server, write_wav

TEACHER = Path(__file__).parents[3] / "shared" / "models" / "quartznet15x5-en"

pytestmark = [pytest.mark.browser, pytest.mark.shared]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if not TEACHER.is_dir():
        pytest.skip(
            "needs QuartzNet 15x5 in ../shared/models: the shipped model does not recognize every word"
        )
    server = start_server(tmp_path_factory.mktemp("home"), model=str(TEACHER))
    yield server
    stop_server(server)


def test_the_words_that_were_spoken_appear(
    teacher: ServerProcess, browse: Callable[..., Browser], tmp_path: Path
) -> None:
    audio = np.concatenate([np.zeros(24_000, np.float32), speech("all-circuits-busy-now"), np.zeros(96_000)])
    browser = browse(write_wav(tmp_path / "talk.wav", audio, 48000))
    page = browser.new_page()
    page.goto(teacher.address)
    page.click("#speak")
    line = page.locator(".session .line").first
    expect(line.locator(".word").nth(4)).to_be_attached(timeout=60_000)
    page.click("#speak")
    expect(page.locator("body[data-state=idle]")).to_be_attached(timeout=60_000)
    assert normalize(" ".join(page.locator(".word").all_text_contents())) == "all circuits are busy now"
    page.close()
