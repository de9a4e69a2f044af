"""Settings for all tests: no deadline for examples of property tests, and the search is compiled before the first test
(this may take minutes), so that its compilation counts towards no test's timeout."""

import pytest
from hypothesis import settings

settings.register_profile("no deadline", settings(), deadline=None)
settings.load_profile("no deadline")


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items and not session.config.option.collectonly:
        from lm.search.beam import warm_up

        warm_up()
