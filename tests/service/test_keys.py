"""Keys: hashed, limited, revoked; and logs that show none of them."""

import io
import json
import logging

import pytest

from service.commands import main
from service.errors import ServiceError
from service.keys import Key, KeyRing, add_key, read_keys, revoke_key, write_keys
from service.logs import masked, say, start_logging


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "keys.json"


def test_a_key_is_found_by_its_secret_only(file):
    key, secret = add_key(file, "me")
    ring = KeyRing(file)
    assert ring.find(secret, 0.0) == key
    for wrong in (None, "", secret + "x", key.id, key.hash):
        with pytest.raises(ServiceError) as error:
            ring.find(wrong, 0.0)
        assert error.value.code == "key"


def test_no_file_asks_for_nothing_and_an_empty_one_for_a_key(file):
    assert not KeyRing(None).needed and not KeyRing(file).needed
    write_keys(file, ())
    ring = KeyRing(file)
    assert ring.needed
    with pytest.raises(ServiceError):
        ring.find("anything", 0.0)


def test_changes_are_noticed_within_two_seconds_and_a_vanished_file_closes_the_door(file):
    _, first = add_key(file, "first")
    ring = KeyRing(file)
    _, second = add_key(file, "second")
    assert ring.find(second, 3.0).name == "second"
    key = ring.find(first, 3.0)
    revoke_key(file, "first")
    assert ring.alive(key, 4.0) and not ring.alive(key, 6.0)
    file.unlink()
    with pytest.raises(ServiceError):
        ring.find(second, 9.0)


def test_limits_are_counted_and_given_back():
    ring = KeyRing(None)
    key = Key("1", "me", "h", "", max_streams=2, minutes_per_day=1.0)
    ring.take(key, "monday")
    ring.take(key, "monday")
    with pytest.raises(ServiceError, match="2 streams open"):
        ring.take(key, "monday")
    ring.release(key)
    ring.take(key, "monday")
    ring.heard(key, 60.0)
    with pytest.raises(ServiceError, match="1 minutes of audio for today"):
        ring.check_minutes(key)
    ring.release(key)
    ring.take(key, "tuesday")


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": [{"id": 1}]}', '{"keys": 3}'])
def test_a_file_that_is_none_is_a_clear_error(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ServiceError, match="is not a keys file"):
        read_keys(file)


def test_the_command_makes_lists_and_revokes(file, capsys):
    place = ["--file", str(file), "--json"]
    assert main(["keys", "add", "lap top", "--max-streams", "3", *place]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["keys", "list", *place]) == 0
    listed = json.loads(capsys.readouterr().out)["keys"]
    assert listed[0]["name"] == "lap top" and listed[0]["max_streams"] == 3 and "hash" not in listed[0]
    assert made["key"] not in json.dumps(listed)
    assert main(["keys", "add", "lap top", *place]) == 2
    assert main(["keys", "revoke", made["id"], *place]) == 0
    assert main(["keys", "revoke", "lap top", *place]) == 2
    assert "there is no key" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "GET /v1/listen?token=SECRET&x=1",
        "Authorization: Token SECRET",
        "authorization: bearer SECRET",
        "key sk_silica_SECRET here",
        "Sec-WebSocket-Protocol: token, SECRET",
    ],
)
def test_secrets_are_masked(text):
    assert "SECRET" not in masked(text) and "****" in masked(text)


@pytest.mark.parametrize("form", ["plain", "json"])
def test_records_are_one_line_with_their_facts(form):
    out = io.StringIO()
    try:
        start_logging(form, "info", out)
        say(logging.INFO, "opened", session="a", missing=None, address="?token=SECRET")
        say(logging.DEBUG, "unseen")
    finally:
        logging.getLogger("silica").handlers.clear()
        logging.getLogger("silica").propagate = True
    (line,) = out.getvalue().splitlines()
    assert "opened" in line and "SECRET" not in line
    if form == "json":
        told = json.loads(line)
        assert told["session"] == "a" and "missing" not in told
