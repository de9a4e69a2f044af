"""A server that says when to come again is asked again; one that says nothing, or too late a time, is not."""

import pytest

from service.clients.http import with_retries
from service.errors import ErrorCode, ServiceError


def refusing(*waits_s, code=ErrorCode.CAPACITY):
    """Refuses once for each wait, then answers."""
    left = list(waits_s)

    async def ask():
        if left:
            raise ServiceError(code, "All streams are in use.", "Try again soon.", retry_after_s=left.pop(0))
        return "heard"

    return ask


async def test_it_waits_as_it_is_told_and_says_so_once():
    told = []
    assert await with_retries(refusing(0.0, 0.0, 0.0), told.append) == "heard"
    assert [error.message for error in told] == ["All streams are in use."]


@pytest.mark.parametrize(
    "ask",
    [refusing(None), refusing(3600.0), refusing(0.0, code=ErrorCode.STORAGE)],
    ids=["never", "late", "disk"],
)
async def test_what_waiting_does_not_help_is_raised_at_once(ask):
    told = []
    with pytest.raises(ServiceError):
        await with_retries(ask, told.append)
    assert told == []
