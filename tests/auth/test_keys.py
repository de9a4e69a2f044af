"""Keys: hashed, limited, revoked; and logs that show none of them."""

import io
import json
import logging
import multiprocessing
import subprocess
from concurrent.futures import ProcessPoolExecutor

import pytest

from service.auth.keys import ApiKeys, Key, add_key, read_keys, revoke_key, write_keys
from service.auth.usage import Usage, process_name, usage_file
from service.commands import main
from service.errors import ServiceError
from service.logs import configure_logging, log_event, mask_secrets


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "keys.json"


def test_a_key_is_found_by_its_secret_only(file):
    key, secret = add_key(file, "me")
    ring = ApiKeys(file)
    assert ring.find(secret, 0.0) == key
    for wrong in (None, "", secret + "x", key.id, key.hash):
        with pytest.raises(ServiceError) as error:
            ring.find(wrong, 0.0)
        assert error.value.code == "key"


def test_no_file_asks_for_nothing_and_an_empty_one_for_a_key(file):
    assert not ApiKeys(None).needed and not ApiKeys(file).needed
    write_keys(file, ())
    ring = ApiKeys(file)
    assert ring.needed
    with pytest.raises(ServiceError):
        ring.find("anything", 0.0)


def test_changes_are_noticed_within_two_seconds_and_a_vanished_file_closes_the_door(file):
    _, first = add_key(file, "first")
    ring = ApiKeys(file)
    _, second = add_key(file, "second")
    assert ring.find(second, 3.0).name == "second"
    key = ring.find(first, 3.0)
    revoke_key(file, "first")
    assert ring.is_valid(key, 4.0) and not ring.is_valid(key, 6.0)
    file.unlink()
    with pytest.raises(ServiceError):
        ring.find(second, 9.0)


def test_a_file_spoilt_while_serving_changes_nothing_until_it_can_be_read_again(file, caplog):
    key, secret = add_key(file, "first")
    ring = ApiKeys(file)
    whole = file.read_text()
    for now_s, spoilt in ((10.0, whole[:-9]), (20.0, "")):
        file.write_text(spoilt)
        assert ring.is_valid(key, now_s) and ring.find(secret, now_s + 5.0) == key
    assert [record.message for record in caplog.records] == [
        f"the keys known before stay in force: {file} is not a keys file. "
        "Move it away and make keys with `silica keys add NAME`."
    ]
    file.write_text('{"keys": []}')
    assert not ring.is_valid(key, 30.0)


def test_processes_that_change_the_keys_at_once_lose_none(file):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        made = list(pool.map(add_key, [file] * 12, [f"key {number}" for number in range(12)]))
        assert {key.name for key in read_keys(file)} == {key.name for key, _ in made}
        list(pool.map(revoke_key, [file] * 11, [key.id for key, _ in made[1:]]))
    assert [key.name for key in read_keys(file)] == ["key 0"]


def test_a_secret_that_is_no_text_is_nobodys(file):
    add_key(file, "first")
    with pytest.raises(ServiceError, match="not known"):
        ApiKeys(file).find("sk_\udcff\ud800", 5.0)


def test_limits_are_counted_and_given_back(file):
    day = ["2026-11-22"]
    ring = ApiKeys(file, Usage(usage_file(file), today=lambda: day[0]))
    write_keys(file, ())
    ring.reload_if_changed(10.0)
    key = Key("1", "me", "h", "", max_streams=2, minutes_per_day=1.0)
    ring.acquire_stream(key)
    ring.acquire_stream(key)
    with pytest.raises(ServiceError, match="2 streams open"):
        ring.acquire_stream(key)
    ring.release_stream(key)
    ring.add_usage(key, 59.0)
    ring.acquire_stream(key)
    ring.add_usage(key, 1.0)
    with pytest.raises(ServiceError, match="1 minutes of audio for today"):
        ring.check_minutes(key)
    ring.release_stream(key)
    day[0] = "2026-11-23"
    ring.acquire_stream(key)
    ring.close()


def test_minutes_survive_a_restart_and_are_shared_by_processes(file):
    clock = [0.0]
    first = Usage(usage_file(file), lambda: clock[0])
    second = Usage(usage_file(file), lambda: clock[0])
    first.add("key", 30.0)
    first.write()
    assert second.seconds("key") == 0.0, "not looked yet"
    clock[0] = 2.0
    second.add("key", 12.0)
    assert second.seconds("key") == 42.0
    first.close()
    second.close()
    again = Usage(usage_file(file))
    assert again.seconds("key") == 42.0 and again.seconds("another") == 0.0
    again.close()
    assert usage_file(file).stat().st_mode & 0o777 == 0o600


def test_streams_of_other_processes_count_until_these_are_no_more(file):
    child = subprocess.Popen(["sleep", "60"])
    try:
        usage, theirs = Usage(usage_file(file)), Usage(usage_file(file))
        theirs._process = process_name(child.pid)
        theirs.set_streams("key", 2)
        assert usage.streams_elsewhere("key") == 2
        ring = ApiKeys(file, usage)
        key = Key("key", "me", "h", "", max_streams=3)
        ring.acquire_stream(key)
        with pytest.raises(ServiceError, match="3 streams open"):
            ring.acquire_stream(key)
        assert theirs.streams_elsewhere("key") == 1
    finally:
        child.kill()
        child.wait()
    later = Usage(usage_file(file))
    assert later.streams_elsewhere("key") == 0
    for each in (usage, theirs, later):
        each.close()


def test_a_usage_file_that_cannot_be_used_does_not_stop_the_service(tmp_path):
    (tmp_path / "keys-usage.sqlite").write_text("this is no database, and long enough to be noticed as none")
    usage = Usage(tmp_path / "keys-usage.sqlite")
    usage.add("key", 5.0)
    usage.set_streams("key", 1)
    assert usage.seconds("key") == 5.0 and usage.streams_elsewhere("key") == 0
    usage.close()


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


def test_revoking_the_last_key_says_what_that_means(file, capsys):
    add_key(file, "only")
    assert main(["keys", "revoke", "only", "--file", str(file)]) == 0
    told = capsys.readouterr().out
    assert "the last key" in told and "silica keys add" in told and str(file) in told


def test_the_list_tells_what_was_used_today(file, capsys):
    key, _ = add_key(file, "talker")
    usage = Usage(usage_file(file))
    usage.add(key.id, 90.0)
    usage.close()
    assert main(["keys", "list", "--file", str(file)]) == 0
    assert "1.5 min today" in capsys.readouterr().out


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
    assert "SECRET" not in mask_secrets(text) and "****" in mask_secrets(text)


@pytest.mark.parametrize("form", ["plain", "json"])
def test_records_are_one_line_with_their_facts(form):
    out = io.StringIO()
    try:
        configure_logging(form, "info", out)
        log_event(logging.INFO, "opened", session="a", missing=None, address="?token=SECRET")
        log_event(logging.DEBUG, "unseen")
    finally:
        logging.getLogger("silica").handlers.clear()
        logging.getLogger("silica").propagate = True
    (line,) = out.getvalue().splitlines()
    assert "opened" in line and "SECRET" not in line
    if form == "json":
        told = json.loads(line)
        assert told["session"] == "a" and "missing" not in told
