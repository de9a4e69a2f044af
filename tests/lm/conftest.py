"""Tiny KenLM files made from data/tiny.txt (data/README.md says how), and a search that is compiled beforehand."""

from pathlib import Path

import pytest

from lm.ngram import NGram

DATA = Path(__file__).parent / "data"
ALPHABET = " abcdefghijklmnopqrstuvwxyz'"


@pytest.fixture(scope="session")
def tiny() -> NGram:
    return NGram.load(DATA / "tiny-plain.binary")


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compiling may take half a minute: not in the first test that happens to search."""
    from lm.beam import warm

    warm()
