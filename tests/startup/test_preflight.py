"""What is told before anything is loaded, and what nobody would notice otherwise."""

import socket
import subprocess
import sys

import pytest

from service.commands import main
from service.errors import ServiceError
from service.settings import Settings
from service.startup.preflight import check_settings, private_folder, reserve_ports, unknown_variables


def test_a_taken_port_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServiceError, match="Is another server running there"):
            check_settings(Settings(port=taken.getsockname()[1]))


def test_a_server_may_begin_where_one_has_just_ended():
    """Its port is full of connections that it closed first, which wait for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as ended:
        port = ended.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            ended.accept()[0].close()
            assert client.recv(1) == b""
    check_settings(Settings(port=port, model="tiny", language_model="none"))
    for held in reserve_ports("127.0.0.1", port):
        held.close()


def test_a_shared_port_is_not_joined_by_another_server():
    held = reserve_ports("127.0.0.1", 0)
    port = held[0].getsockname()[1]
    with socket.socket() as front:
        front.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        front.bind(("127.0.0.1", port))
        front.listen()
        with pytest.raises(ServiceError, match="Is another server running there"):
            reserve_ports("127.0.0.1", port)
    for one in held:
        one.close()


def test_a_certificate_that_is_none_is_told_at_once(tmp_path):
    (tmp_path / "it.pem").write_text("no certificate")
    with pytest.raises(ServiceError, match="cannot use the certificate"):
        check_settings(Settings(port=0, tls_certificate=tmp_path / "it.pem", tls_key=tmp_path / "it.pem"))


def test_a_missing_language_model_is_told_at_once(tmp_path):
    with pytest.raises(ServiceError, match="There is no language model"):
        check_settings(Settings(port=0, language_model=str(tmp_path / "none.lm")))


def test_a_model_that_is_nowhere_is_told_at_once():
    with pytest.raises(ServiceError, match="There is no model 'no-such-model'"):
        check_settings(Settings(port=0, more_models=("no-such-model",)))
    check_settings(Settings(port=0, model="tiny", language_model="none"))


def test_an_open_port_without_keys_is_refused(tmp_path):
    with pytest.raises(ServiceError, match="without API keys"):
        check_settings(Settings(port=0, host="0.0.0.0", keys_file=tmp_path / "keys.json"))


def test_misspelt_variables_are_named():
    told = unknown_variables({"SILICA_PROT": "1", "SILICA_PORT": "2", "SILICA_HOME": "/", "HOME": "/"})
    assert told == (
        "SILICA_PROT is set in the environment and means nothing here. Did you mean SILICA_PORT?",
    )


def test_the_folder_is_gone_afterwards_and_so_is_what_the_killed_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f"silica-{gone.pid}-abc"
    other = tmp_path / "silica-notes"
    left.mkdir()
    other.mkdir()
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700 and not left.exists() and other.exists()
        with private_folder():
            assert folder.exists()
    assert not folder.exists()


def test_the_verb_refuses_before_it_loads_anything(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "Is another server running there? Choose another with --port." in capsys.readouterr().err


def test_checking_loads_no_model_and_no_server():
    program = "import sys; import service.startup.preflight; print({'torch', 'aiohttp', 'numba'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check_settings=True
    )
    assert found.stdout.strip() == "set()"


def test_as_many_files_may_be_open_as_there_are_to_be_sockets():
    code = """
import resource
from service.startup.preflight import OTHER_FILES, raise_file_limit
from service.settings import Settings
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 3000))
assert raise_file_limit(Settings(max_connections=2000)) == ()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (2000 + OTHER_FILES, 3000)
(told,) = raise_file_limit(Settings(max_connections=9000))
assert "allows 3000 open files, max_connections is 9000" in told
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3000, 3000)
"""
    subprocess.run([sys.executable, "-c", code], check_settings=True)
