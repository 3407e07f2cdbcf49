"""Facts of the preflight: read here on this machine, and from texts."""

from __future__ import annotations

import http.server
import subprocess
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from facts.listeners import Listeners
from facts.readiness import Readiness
from facts.urls import UrlAccess
from lmcache_fleet.parsers.listeners import Listener, parse_listeners
from lmcache_fleet.preflight.control import unreachable

SS = """\
LISTEN 0      4096       127.0.0.1:8000       0.0.0.0:*    users:(("python3",pid=812,fd=7),("python3",pid=813,fd=7))
LISTEN 0      128          0.0.0.0:22         0.0.0.0:*    users:(("sshd",pid=1,fd=3))
LISTEN 0      128             [::]:5555          [::]:*
LISTEN 0      128                *:9800             *:*    users:(("a \\"b\\"",pid=7,fd=3))
"""


def shell(command: str) -> list[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()


def test_listeners_with_and_without_a_process() -> None:
    assert parse_listeners(SS.splitlines()) == (
        Listener("127.0.0.1", 8000, "python3", 812),
        Listener("0.0.0.0", 22, "sshd", 1),
        Listener("[::]", 5555),
        Listener("*", 9800, 'a \\"b\\"', 7),
    )


@given(st.text())
def test_listeners_bear_any_text(text: str) -> None:
    for item in parse_listeners(text.splitlines()):
        assert 0 <= item.port <= 65535


def test_a_listener_of_this_process_is_found() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        found = Listeners().process(shell(Listeners().command()))
        assert server.server_port in {item.port for item in found}


def test_readiness_of_this_machine(tmp_path: Path) -> None:
    there, absent = tmp_path / "a 'b", tmp_path / "none"
    there.mkdir()
    prefix = str(tmp_path / "not" / "yet")
    seen = Readiness().process(
        shell(Readiness().command(prefix=prefix, kv=str(tmp_path), directories=(str(there), str(absent))))
    )
    assert seen.missing == ()
    assert set(seen.spaces) == {"prefix", "tmp", "shm", "kv"}
    assert seen.spaces["prefix"].free_gb is not None
    assert seen.directories == {str(there): True, str(absent): False}
    assert seen.shell is not None
    assert seen.run_lock is None


def test_readiness_names_who_holds_the_run_lock(tmp_path: Path) -> None:
    (tmp_path / ".run.lock.holder").write_text("me@there pid 1\n")
    holder = subprocess.Popen(["flock", str(tmp_path / ".run.lock"), "sh", "-c", "echo held; cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert Readiness().process(shell(Readiness().command(prefix=str(tmp_path)))).run_lock == "me@there pid 1"
    finally:
        holder.communicate()
    assert Readiness().process(shell(Readiness().command(prefix=str(tmp_path)))).run_lock is None


class Answer(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(503 if "down" in self.path else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_urls_that_answer_and_urls_that_do_not() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        urls = (f"{base}/simple", f"{base}/down", "http://127.0.0.1:9/simple")
        seen = UrlAccess().process(shell(UrlAccess().command(urls=urls)))
        assert seen[urls[0]] is None
        assert seen[urls[1]] == "HTTP 503"
        assert "refused" in str(seen[urls[2]])
        assert {url for url, _ in unreachable(urls)} == set(urls[1:])
        server.shutdown()
    assert UrlAccess.default() == {}
    assert unreachable(()) == ()
