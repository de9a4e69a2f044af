"""The documentation builds without a warning, agrees with the code, and loads nothing from other servers."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.commands import build_parser, command_modules

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
GENERATED = {page for page, text in TEXT.items() if "by scripts/docs: do not edit" in text}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(*line: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([sys.executable, *line], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A page that is not in the navigation, a broken link or a missing anchor fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def inline_code(page: Path) -> list[str]:
    """The inline code in a page's prose."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", TEXT[page]))


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The `silica` commands in blocks of `sh`: their page and line, and their arguments."""
    for page in PAGES:
        for language, block in FENCE.findall(TEXT[page]):
            for line in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
                for command in line.split(" | "):
                    words = shlex.split(command, comments=True)
                    if words[:1] == ["silica"]:
                        yield f"{page.relative_to(DOCS)}: {line}", words[1:]


def parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_the_site_builds_strictly_and_fetches_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?https?:[^\s>]+", html)
        fetched += re.findall(r"<link[^>]+rel=\"?(?:stylesheet|preconnect|preload)[^>]+https?:[^\s>]+", html)
        assert fetched == [], page


def test_generated_pages_are_up_to_date() -> None:
    done = run("scripts/docs", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_line_is_accepted() -> None:
    parser, found = build_parser(command_modules()), 0
    for place, words in command_lines():
        found += 1
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                parser.parse_args(words)
            except SystemExit:
                pytest.fail(f"{place}\n{errors.getvalue()}")
    assert found > 30


def test_commands_and_options_named_in_the_text_exist() -> None:
    every = list(parsers(build_parser(command_modules())))
    commands = {parser.prog for parser in every}
    options = {option for parser in every for action in parser._actions for option in action.option_strings}
    for page in set(PAGES) - GENERATED:
        for code in inline_code(page):
            if re.match(r"silica [a-z]", code):
                words = code.split()
                assert {" ".join(words[:2]), " ".join(words[:3])} & commands, f"{page}: {code}"
            is_command = code.startswith(("silica ", "--"))
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", code) if is_command else ():
                assert option in options, f"{page}: {option}"


def test_metrics_named_in_the_text_exist() -> None:
    metrics = set(re.findall(r"`(silica_\w+)`", TEXT[DOCS / "reference" / "metrics.md"]))
    for page in PAGES:
        for code in inline_code(page):
            if re.fullmatch(r"silica_[a-z_]+", code):
                assert code in metrics, f"{page}: {code}"


def test_files_named_in_the_text_exist() -> None:
    packages = "acoustic|lm|service|training|web|deploy|scripts|tests|benchmarks|requirements"
    missing = [
        f"{page.relative_to(DOCS)}: {code}"
        for page in sorted(set(PAGES) - GENERATED)
        for code in inline_code(page)
        if re.fullmatch(rf"(?:{packages})/[\w./-]*", code) and not (ROOT / code).exists()
    ]
    assert missing == []
