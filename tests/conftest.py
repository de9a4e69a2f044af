"""Holds for all tests: how long something takes is the machine's business. No example of a property has a time limit,
and the search is compiled (minutes on a crowded machine) before any test's time is counted."""

import pytest
from hypothesis import settings

settings.register_profile("any machine", settings(), deadline=None)
settings.load_profile("any machine")


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items and not session.config.option.collectonly:
        from lm.search.beam import warm_up

        warm_up()
