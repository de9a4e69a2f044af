"""Tiny KenLM models in data/ (data/README.md says how they are built)."""

from pathlib import Path

import pytest

from lm.ngram.trie import NGram

DATA = Path(__file__).parent / "data"
ALPHABET = " abcdefghijklmnopqrstuvwxyz'"


@pytest.fixture(scope="session")
def tiny() -> NGram:
    return NGram.load(DATA / "tiny-plain.binary")
