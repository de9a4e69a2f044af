"""Requests are retried if the server sends a Retry-After that is not too long."""

import pytest

from service.clients.http import with_retries
from service.errors import ErrorCode, ServiceError


def refusing(*waits_s, code=ErrorCode.CAPACITY):
    """A request that fails once per wait and then succeeds."""
    left = list(waits_s)

    async def request():
        if left:
            raise ServiceError(code, "All streams are in use.", "Try again soon.", retry_after_s=left.pop(0))
        return "response"

    return request


async def test_retries_report_the_wait_once():
    reported = []
    assert await with_retries(refusing(0.0, 0.0, 0.0), reported.append) == "response"
    assert [error.message for error in reported] == ["All streams are in use."]


@pytest.mark.parametrize(
    "failing",
    [refusing(None), refusing(3600.0), refusing(0.0, code=ErrorCode.STORAGE)],
    ids=["never", "late", "disk"],
)
async def test_errors_that_waiting_cannot_fix_are_raised(failing):
    reported = []
    with pytest.raises(ServiceError):
        await with_retries(failing, reported.append)
    assert reported == []
