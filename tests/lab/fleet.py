"""Runs of the playbooks against lab hosts, and what tests ask of them and of the hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import network, services
from tests.lab.conftest import REPO, RunningLab

PREFIX = "/opt/lmcache-fleet"
UNIT = "lmcache-fleet-vllm.service"
UV = f"{PREFIX}/tools/uv-0.13.9/bin/uv"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Counts what is asked of each host: every command, the run's lock included, whoever sends it.
_COUNTED = """
import atexit, collections, json, os, sys
from paramiko.client import SSHClient
seen, inner = collections.Counter(), SSHClient.exec_command
def exec_command(self, *args, **kwargs):
    seen[self.get_transport().getpeername()[0]] += 1
    return inner(self, *args, **kwargs)
SSHClient.exec_command = exec_command
atexit.register(lambda: open(os.environ["COUNTS"], "w").write(json.dumps(seen)))
from pyinfra_cli.main import main
sys.argv[0] = "pyinfra"
main()
"""


@dataclass(frozen=True)
class Result:
    """A finished run of pyinfra."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def answer(self) -> dict[str, Any]:
        """What --json printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def changed(self) -> set[tuple[str, str]]:
        """(host, step) of all that a run with --json changed."""
        operations = self.answer["results"]["operations"]
        return {(host, name) for item in operations for name in item["names"] for host in item["success"]}

    @property
    def planned(self) -> set[tuple[str, str]]:
        """(host, step) of all that a run with --json would change, surely or perhaps."""
        found = set()
        for item in self.answer["plan"]:
            for host in (*item["hosts_with_change"], *item["hosts_with_conditional_change"]):
                found |= {(host, name) for name in item["names"]}
        return found

    @property
    def diff(self) -> dict[str, list[str]]:
        """Host -> lines of its diff and of its notes, without colour."""
        found: dict[str, list[str]] = {}
        for line in self.err.splitlines():
            match = re.match(r"\s*\[(h\d+)\] (.*)", line)
            if match:
                found.setdefault(match[1], []).append(match[2])
        return found

    @property
    def table(self) -> str:
        """The table of failures, its cells' lines joined host by host."""
        found = re.search(r"^\d+ failed *\n┏(.*)", self.err, re.MULTILINE | re.DOTALL)
        text = found[1] if found else ""
        rows: list[list[str]] = []
        for line in text.splitlines():
            if line.startswith("│"):
                cells = [cell.strip() for cell in line.strip("│").split("│")]
                if cells[0] or not rows:
                    rows.append(cells)
                else:
                    rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
        return "\n".join(" | ".join(row) for row in rows)


@dataclass
class Fleet:
    """Lab hosts with Ascend cards, and an artifact store of this test session."""

    lab: RunningLab
    artifacts: Path
    playbook: str = "deploys/ascend.py"

    def env(self, artifacts: Path | None = None) -> dict[str, str]:
        """The environment of a run."""
        return {**self.lab.env, "LMCACHE_FLEET_ARTIFACTS": str(artifacts or self.artifacts)}

    def argv(self, *options: str, **variables: Any) -> list[str]:
        """The command line of a run; keywords are variables of the playbook."""
        given = ["--data", f"vars={json.dumps(variables)}"] if variables else []
        return ["inventories/lab.py", self.playbook, *given, *options]

    def run(self, *options: str, limit: float = 300, env: dict[str, str] | None = None, **variables: Any) -> Result:
        """Run pyinfra to its end."""
        program = [str(Path(sys.executable).parent / "pyinfra")]
        if env and "COUNTS" in env:
            program = [sys.executable, "-c", _COUNTED]
        argv = [*program, *self.argv(*options, **variables)]
        begin = time.monotonic()
        done = subprocess.run(
            argv, cwd=REPO, env={**self.env(), **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=limit,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, _ANSI.sub("", done.stderr), time.monotonic() - begin)

    def counted(self, counts: Path, *options: str) -> tuple[Result, dict[str, int]]:
        """Run pyinfra and count the commands that it sends to each host."""
        result = self.run(*options, env={"COUNTS": str(counts)})
        names = {self.lab.host(name).address: name for name in self.lab.names}
        seen = json.loads(counts.read_text())
        return result, {names[address]: count for address, count in seen.items()}

    def traffic(self) -> dict[str, int]:
        """Bytes that went over each host's cable since it booted, both ways."""
        state = self.lab.lab.reload()
        return {host.name: network.traffic(state, host) for host in state.hosts}

    def downloads(self, host: str, since: float) -> list[str]:
        """Packages (not their metadata) that a host fetched from the index since a moment (of time.time())."""
        address = self.lab.host(host).address
        asked = services.accesses(self.lab.lab.paths.lab)
        fetched = [entry["path"] for entry in asked if entry["client"] == address and entry["t"] >= since]
        return [path for path in fetched if path.startswith("/files/") and not path.endswith(".metadata")]

    @contextmanager
    def running(self, log: Path, *options: str, artifacts: Path | None = None, **variables: Any) -> Iterator[Started]:
        """Start a run that goes on beside the test; it doesn't outlive the block."""
        argv = [str(Path(sys.executable).parent / "pyinfra"), *self.argv(*options, **variables)]
        with log.open("w") as out:
            process = subprocess.Popen(
                argv, cwd=REPO, env=self.env(artifacts), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        started = Started(process, log)
        try:
            yield started
        finally:
            started.kill()

    # Hosts

    def root(self, host: str, command: str, *, check: bool = True) -> str:
        """What a command of root's prints on a host."""
        return self.lab.ssh(host, f"sudo bash -c {quoted(command)}", check=check).stdout.strip()

    def python(self, host: str, program: str) -> str:
        """What a program of root's prints on a host."""
        return self.root(host, f"python3 -c {quoted(program)}")

    def serving(self, host: str) -> str:
        """The release that `current` points to."""
        return self.root(host, f"basename $(readlink {PREFIX}/current)")

    def releases(self, host: str) -> set[str]:
        """The releases that are on a host."""
        return set(self.root(host, f"ls {PREFIX}/releases").split())

    def newest(self, host: str, playbook: str) -> str:
        """The release that a playbook made last, whether it serves or not."""
        program = (
            f"import glob, json\npaths = glob.glob('{PREFIX}/releases/*/release.json')\n"
            "found = [(json.load(open(p)), p) for p in paths]\n"
            f"print(max((m['created'], p.split('/')[-2]) for m, p in found if m['playbook'] == '{playbook}')[1])"
        )
        return self.python(host, program)

    def main_pid(self, host: str) -> int:
        """The service's process; 0 when there is none."""
        return int(self.root(host, f"systemctl show -p MainPID --value {UNIT}"))

    def active(self, host: str) -> bool:
        """Whether the service runs and answers."""
        return self.root(host, f"systemctl is-active {UNIT}", check=False) == "active" and self.healthy(host)

    def healthy(self, host: str) -> bool:
        """Whether the service answers."""
        ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/health', timeout=5).status)"
        return self.root(host, f"python3 -c {quoted(ask)} 2>/dev/null", check=False) == "200"

    def listing(self, host: str, below: str = PREFIX) -> str:
        """Every path below a directory with its mode, size, time of change and target."""
        return self.root(host, f"find {below} -printf '%p %m %s %T@ %l\\n' | sort")

    @contextmanager
    def watched(self, host: str) -> Iterator[Callable[[], list[str]]]:
        """Ask the service on the host ten times a second; gives a function that tells when it didn't answer."""
        program = (
            "import time, urllib.request as r\n"
            "while True:\n"
            "    try:\n"
            "        r.urlopen('http://127.0.0.1:8000/health', timeout=3).read()\n"
            "        print('ok', flush=True)\n"
            "    except Exception as error:\n"
            "        print('failed', time.time(), error, flush=True)\n"
            "    time.sleep(0.1)\n"
        )
        self.root(host, "systemctl reset-failed watch-health; rm -f /var/tmp/health", check=False)
        unit = "systemd-run --quiet --unit watch-health -p StandardOutput=file:/var/tmp/health"
        self.root(host, f"{unit} python3 -c {quoted(program)}")

        def failures() -> list[str]:
            lines = self.root(host, "cat /var/tmp/health").splitlines()
            assert "ok" in lines, "nobody watched"
            return [line for line in lines if line != "ok"]

        try:
            yield failures
        finally:
            self.root(host, "systemctl stop watch-health", check=False)

    # The control machine

    def wheels(self) -> dict[str, int]:
        """Native builds in the store: folder -> when it was made."""
        return {path.parent.name: path.stat().st_mtime_ns for path in self.artifacts.glob("wheels/*/*/manifest.json")}

    def evidence(self, host: str, release: str, stage: str) -> dict[str, Any]:
        """Evidence that reached the control machine."""
        path = self.artifacts / "evidence" / host / release / f"{stage}.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@dataclass
class Started:
    """A run that goes on beside the test."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """What it printed so far."""
        return _ANSI.sub("", self.log.read_text())

    def until(self, text: str, limit: float = 120) -> None:
        """Wait until it printed a text."""
        end = time.monotonic() + limit
        while text not in self.text():
            assert self.process.poll() is None, f"ended without {text!r}:\n{self.text()}"
            assert time.monotonic() < end, f"no {text!r} within {limit} s:\n{self.text()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """As the kernel kills it for want of memory: no chance to clean up."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, limit: float = 240) -> int:
        """Its exit status."""
        return self.process.wait(limit)


def until(condition: Callable[[], bool], limit: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


def quoted(text: str) -> str:
    """One word for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
