"""training/experiments.csv parses, and every row has what a reader needs to judge a run."""

import csv
from datetime import date
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "training" / "experiments.csv"
COLUMNS = [
    "id",
    "date",
    "hypothesis",
    "change",
    "command",
    "hours",
    "total_hours",
    "wer_before",
    "wer_after",
    "cer_before",
    "cer_after",
    "evaluation",
    "decision",
    "notes",
]
NUMBERS = [name for name in COLUMNS if name.startswith(("hours", "total", "wer", "cer"))]
DECISIONS = {"kept", "rejected", "inconclusive", "measurement"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS
    return rows


def test_every_row_has_every_column(rows: list[dict[str, str]]) -> None:
    assert rows
    assert all(list(row) == COLUMNS and None not in row.values() for row in rows)


def test_ids_are_unique(rows: list[dict[str, str]]) -> None:
    ids = [row["id"] for row in rows]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_dates_are_iso_and_in_order(rows: list[dict[str, str]]) -> None:
    dates = [date.fromisoformat(row["date"]) for row in rows]
    assert [day.isoformat() for day in dates] == [row["date"] for row in rows]
    assert dates == sorted(dates)


def test_decisions_come_from_a_fixed_list(rows: list[dict[str, str]]) -> None:
    assert {row["decision"] for row in rows} <= DECISIONS


def test_measurements_are_numbers_or_blank(rows: list[dict[str, str]]) -> None:
    values = [(row, name) for row in rows for name in NUMBERS if row[name]]
    assert all(float(row[name]) >= 0 for row, name in values)
    # An error rate has its evaluation set.
    assert all(row["evaluation"] for row, name in values if name.startswith(("wer", "cer")))


def test_every_row_has_a_hypothesis_and_a_change(rows: list[dict[str, str]]) -> None:
    assert all(row["hypothesis"] and row["change"] for row in rows)
