"""A running server, and a Chromium whose microphone is a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.e2e.server_process import Served, serve, stop
from tests.invariants.fake_model import make_fake_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--no-sandbox",  # tests may run as root, where Chromium's sandbox cannot
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--no-first-run",
    "--autoplay-policy=no-user-gesture-required",
)
FAKE_MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests of this folder."""
    home = tmp_path_factory.mktemp("home")
    running = serve(home, "--max-upload-mb", "4", model=str(make_fake_model(home)))
    yield running
    stop(running)


@pytest.fixture(scope="module")  # while it is open no other test can run an event loop of its own
def playwright() -> Iterator[Playwright]:
    """One playwright driver."""
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="module")
def browse(playwright: Playwright) -> Iterator[Callable[..., Browser]]:
    """Starts Chromium; `sound` is what its microphone hears, None: it has no microphone."""
    open_browsers: list[Browser] = []

    def start(sound: Path | None, *more: str) -> Browser:
        flags = [*QUIET, *more]
        if sound is not None:
            flags += [*FAKE_MICROPHONE, f"--use-file-for-fake-audio-capture={sound}%noloop"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        open_browsers.append(browser)
        return browser

    yield start
    for browser in open_browsers:
        browser.close()
