"""Search settings from a model's card and from the command line."""

import pytest

from lm.errors import LanguageError
from lm.search.settings import SearchSettings, parse_search_settings, settings_from_card


def test_a_card_overrides_defaults() -> None:
    found = settings_from_card({"title": "a model", "search": {"lm_weight": 0.6, "width": 128.0}})
    assert found == SearchSettings(lm_weight=0.6, width=128)
    assert settings_from_card({}) == SearchSettings()


@pytest.mark.parametrize(
    "named",
    [
        {"n_best": 3},
        {"lm_weight": "much"},
        {"width": True},
        {"width": 0},
        {"width": float("nan")},
        {"lm_weight": float("nan")},
        ["lm_weight"],
    ],
)
def test_invalid_card_settings_are_refused(named: object) -> None:
    with pytest.raises(LanguageError):
        settings_from_card({"search": named})


def test_command_line_settings_are_parsed() -> None:
    assert parse_search_settings(["lm_weight=0.6", "width=128"]) == {"lm_weight": 0.6, "width": 128}
    for wrong in ("lm_weight", "lm_weight=", "weight=0.6", "width=a", "width=0"):
        with pytest.raises(LanguageError, match=wrong.split("=")[0]):
            parse_search_settings([wrong])
