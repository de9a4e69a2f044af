"""Every error code has one place on each wire, and the page that describes the wires says the same."""

from pathlib import Path

import pytest

from service.errors import ErrorCode, code_named

PROTOCOL = (Path(__file__).parents[2] / "service" / "PROTOCOL.md").read_text()
CLOSE_CODES = {1008, 1009, 1011, 1012, 1013}


@pytest.mark.parametrize("code", ErrorCode)
def test_each_code_has_a_status_and_a_close_code(code):
    assert 400 <= code.status < 600
    assert code.close_code in CLOSE_CODES
    assert code.close_name == code.close_name.upper() != ""


@pytest.mark.parametrize("code", ErrorCode)
def test_each_code_with_a_name_of_its_own_is_documented(code):
    row = f"| `{code}` | {code.status} | "
    documented = [line for line in PROTOCOL.splitlines() if line.startswith(row)]
    if code.close_name != ErrorCode.INTERNAL.close_name or code is ErrorCode.INTERNAL:
        assert len(documented) == 1 and documented[0].endswith(
            f" | {code.close_code} | `{code.close_name}` |"
        )
    else:
        assert (code.status, code.close_code) == (ErrorCode.INTERNAL.status, ErrorCode.INTERNAL.close_code)


def test_there_is_no_code_by_default():
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
def test_a_client_knows_the_code_that_a_server_sent(sent, code):
    assert code_named(sent) is code
