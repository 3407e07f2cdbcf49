"""A host's key is replaced in known_hosts, and nobody else's; what it shows is asked of the host itself."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paramiko.hostkeys import HostKeys

from lmcache_fleet.audit import audit
from lmcache_fleet.host_keys import NoKeys, Place, fingerprint, known_keys, put_key, shown_keys, with_key

OLD, NEW, OTHER = (paramiko.ECDSAKey.generate() for _ in range(3))
H2 = Place("10.0.0.2")


def line(names: str, key: paramiko.PKey) -> str:
    return f"{names} {key.get_name()} {key.get_base64()}"


def test_only_the_hosts_own_lines_are_replaced_and_its_other_names_stay() -> None:
    text = "\n".join(
        ["# ours", line("10.0.0.1,h1", OTHER), line("10.0.0.2,h2", OLD), "nonsense", line("10.0.0.22", OTHER), ""]
    )
    made = with_key(text, H2, NEW)
    assert made.splitlines() == [
        "# ours", line("10.0.0.1,h1", OTHER), "nonsense", line("10.0.0.22", OTHER), line("10.0.0.2,h2", NEW),
    ]  # fmt: skip
    assert known_keys(made, H2) == [NEW]
    assert known_keys(made, Place("10.0.0.1")) == [OTHER]
    assert with_key(made, H2, NEW) == made


def test_hashed_names_and_ports_are_understood() -> None:
    hashed = HostKeys.hash_host("10.0.0.2")
    text = f"{line(hashed, OLD)}\n{line('[10.0.0.2]:2222', OTHER)}\n"
    assert known_keys(text, H2) == [OLD]
    made = with_key(text, H2, NEW)
    assert known_keys(made, H2) == [NEW]
    assert known_keys(made, Place("10.0.0.2", 2222)) == [OTHER]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.2,h2", "h3,10.0.0.3", "#x", ""]), max_size=8))
def test_afterwards_the_host_has_one_key_and_others_have_theirs(names: list[str]) -> None:
    text = "\n".join(line(name, OLD) if name[:1] not in {"#", ""} else name for name in names)
    made = with_key(text, H2, NEW)
    assert known_keys(made, H2) == [NEW]
    for place in (Place("10.0.0.1"), Place("10.0.0.3")):
        assert known_keys(made, place) == known_keys(text, place)


def test_the_file_keeps_its_mode_and_ssh_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep/known_hosts"
    put_key(path, H2, OLD)
    path.chmod(0o600)
    put_key(path, H2, NEW)
    assert path.stat().st_mode & 0o777 == 0o600
    ask = ["ssh-keygen", "-l", "-F", "10.0.0.2", "-f", path]
    shown = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert fingerprint(NEW) in shown.stdout
    assert fingerprint(OLD) not in shown.stdout


@pytest.fixture
def server() -> Iterator[Place]:
    """An SSH server that has one key, and answers as often as it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(NEW)
            try:
                transport.start_server(server=paramiko.ServerInterface())
            except (paramiko.SSHException, EOFError):
                transport.close()

    threading.Thread(target=serve, daemon=True).start()
    yield Place("127.0.0.1", listener.getsockname()[1])
    listener.close()


def test_a_host_is_asked_for_its_keys(server: Place) -> None:
    assert [fingerprint(key) for key in shown_keys(server)] == [fingerprint(NEW)]
    assert server.known_as == f"[127.0.0.1]:{server.port}"


def test_nobody_there_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoKeys, match=f"127.0.0.1 port {port}: .*refused"):
        shown_keys(Place("127.0.0.1", port), 2)


def test_decisions_are_added_to_the_log(tmp_path: Path) -> None:
    audit("adopt", {"host": "h1", "new": "SHA256:x"}, tmp_path)
    path = audit("adopt", {"host": "h2", "new": "SHA256:y"}, tmp_path)
    first, second = (json.loads(text) for text in path.read_text().splitlines())
    assert (first["host"], second["host"]) == ("h1", "h2")
    assert "@" in first["who"]
    assert first["at"].startswith("20")
