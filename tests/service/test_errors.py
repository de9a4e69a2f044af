"""Every error code has an HTTP status, a close code and a meaning."""

import pytest

from service.errors import ErrorCode, find_error_code

CLOSE_CODES = {1008, 1009, 1011, 1012, 1013}


@pytest.mark.parametrize("code", ErrorCode)
def test_each_code_has_a_status_and_a_close_code(code):
    assert 400 <= code.http_status < 600
    assert code.close_code in CLOSE_CODES
    assert code.close_name == code.close_name.upper() != ""
    assert code.meaning


def test_an_unknown_code_is_an_error():
    with pytest.raises(ValueError):
        ErrorCode("no such code")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("CAPACITY", ErrorCode.CAPACITY),
        ("key_minutes", ErrorCode.KEY_MINUTES),
        ("DATA-0000", ErrorCode.AUDIO),
        ("NET-0001", ErrorCode.IDLE),
        ("INTERNAL", ErrorCode.INTERNAL),
        ("", ErrorCode.REFUSED),
        ("418", ErrorCode.REFUSED),
    ],
)
def test_clients_map_the_codes_of_servers(sent, code):
    assert find_error_code(sent) is code
