"""The switch program against stand-ins for systemctl and journalctl: what it takes for a service that serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.failures import explain
from lmcache_fleet.shell import program_source

SERVER, ENGINE = "lmcache-fleet-server.service", "lmcache-fleet-vllm.service"
# Unit states are files; a server that crashes is found in another state each time it is asked for.
SYSTEMCTL = """\
#!/bin/sh
[ "$1" = show ] || exit 0
for unit; do :; done
state=$(head -n 1 "$STATES/$unit")
[ "$(wc -l < "$STATES/$unit")" -gt 1 ] && sed -i 1d "$STATES/$unit"
set -- $state
printf 'ActiveState=%s\\nNRestarts=%s\\nResult=exit-code\\nMainPID=0\\n' "$1" "$2"
"""
JOURNALCTL = """\
#!/bin/sh
case "$*" in *server*) printf '%s\\n' 'starting' 'Error: no such file: lmcache' 'again';; esac
"""
REFUSED = 'import sys; print("request-failed: http://127.0.0.1:8000/v1/completions: Connection refused"); sys.exit(1)'


@pytest.fixture
def health() -> Iterator[str]:
    """An engine that says that it is well."""

    class Well(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Well)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()
    server.server_close()


def activate(
    folder: Path, health: str, server: list[str], runner: str, wanted: tuple[str, ...] = (SERVER, ENGINE)
) -> tuple[int, list[str]]:
    """Exit status and lines of a switch, with the states that the server goes through."""
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    units, prefix = folder / "units", folder / "prefix"
    units.mkdir(exist_ok=True)
    (prefix / "releases/r").mkdir(parents=True)
    (folder / SERVER).write_text("\n".join(server) + "\n")
    (folder / ENGINE).write_text("active 0\n")
    program = program_source("activate.py").replace("/etc/systemd/system", str(units))
    request = {
        "prefix": str(prefix), "release": "r", "units": dict.fromkeys(wanted, ""), "restart": True, "health": health,
        "start_timeout": 5, "runner": runner, "verify": {"any": "thing"},
    }  # fmt: skip
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "STATES": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(request), env=env, capture_output=True, text=True, timeout=60
    )
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_a_service_that_answers_and_is_proved_serves(tmp_path: Path, health: str) -> None:
    code, said = activate(tmp_path, health, ["active 0"], "pass")
    assert (code, said[-1]) == (0, "serving r")


def test_an_engine_that_answers_is_not_enough_while_its_server_is_down(tmp_path: Path, health: str) -> None:
    crashing = ["activating 1", "activating 1", "activating 2", "activating 2", "activating 3"]
    code, said = activate(tmp_path, health, crashing, "raise SystemExit('proved too early')")
    assert code == 1
    assert f"{SERVER} failed (exit-code)" in said
    assert "proved too early" not in said


def test_who_died_while_the_proof_went_on_is_named_with_its_words(tmp_path: Path, health: str) -> None:
    code, said = activate(tmp_path, health, ["active 0", "active 0", "active 2"], REFUSED)
    assert code == 1
    cause, remedy = explain(said)
    assert "a process of the service died" in cause
    assert f"{SERVER} died, restarted 2 times: Error: no such file: lmcache" in cause
    assert "journalctl" in remedy
    assert "index" not in cause


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """Where units are, of a host that serves a release with an engine and a server."""
    (tmp_path / "prefix/releases/old").mkdir(parents=True)
    (tmp_path / "prefix/current").symlink_to("releases/old")
    (tmp_path / "units").mkdir()
    for name in (SERVER, ENGINE):
        (tmp_path / "units" / name).write_text(f"[Unit]\nDescription=old {name}\n")
    return tmp_path / "units"


def test_a_unit_that_a_release_has_no_more_goes_with_the_switch(tmp_path: Path, served: Path, health: str) -> None:
    code, said = activate(tmp_path, health, ["active 0"], "pass", (ENGINE,))
    assert (code, said[-1]) == (0, "serving r")
    assert f"{SERVER} is gone: nothing wants it any more" in said
    assert [path.name for path in served.iterdir()] == [ENGINE]


def test_it_comes_back_with_the_release_before_when_the_proof_fails(tmp_path: Path, served: Path, health: str) -> None:
    before = {path.name: path.read_text() for path in served.iterdir()}
    code, said = activate(tmp_path, health, ["active 0"], "raise SystemExit('no cache hit')", (ENGINE,))
    assert code == 1
    assert said[-1] == "error: release r failed on line; back on old"
    assert {path.name: path.read_text() for path in served.iterdir()} == before
    assert str((tmp_path / "prefix/current").readlink()) == "releases/old"


def test_a_unit_that_came_with_a_failed_release_goes_again(tmp_path: Path, served: Path, health: str) -> None:
    (served / SERVER).unlink()
    code, _ = activate(tmp_path, health, ["active 0"], "raise SystemExit('no cache hit')")
    assert code == 1
    assert [path.name for path in served.iterdir()] == [ENGINE]
