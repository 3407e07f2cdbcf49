"""What hosts download from: package indexes, git repositories and a model hub, served from this machine.

``start`` is idempotent and leaves a detached server behind; ``stop`` ends it. Below the server's root:

- ``/simple`` the main index; ``/ascend/simple`` and ``/variant/simple`` the vendor's; ``/whl/cpu/simple`` torch for CPU
- ``/git/LMCache/LMCache-Ascend.git`` and its submodules (also without ``LMCache/``); smart HTTP, so shallow clones work
- ``/hf`` a hub for HF_ENDPOINT

Tests switch faults on with :func:`control` and read who asked for what with :func:`accesses`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lab.packages import catalog, model, repositories, third_party
from lab.packages.wheel import normalized
from lab.shell import LabError, is_same, kill_and_wait, started_at
from lab.state import Paths, locked

ROOT = Path(__file__).resolve().parent.parent
PORT = 8611
_BACKENDS = ("/usr/lib/git-core/git-http-backend", "/usr/libexec/git-core/git-http-backend")

Say = Callable[[str], None]


def _quiet(_: str) -> None:
    """Says nothing."""


# ---------------------------------------------------------------------------------------------------- what is served


def _sources_digest() -> str:
    """Changes when anything that the served files are made from does."""
    digest = hashlib.sha256(f"{platform.machine()} {third_party.host_python()}".encode())
    here = Path(catalog.__file__).resolve().parent
    paths = [*here.rglob("*"), here.parent / "ascend/elf.py"]
    for path in sorted(paths):
        if path.is_file() and not {"__pycache__", ".ruff_cache", ".mypy_cache"} & set(path.parts):
            digest.update(str(path.relative_to(here.parent)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _is_current(served: Path) -> bool:
    """Whether what is served was made from today's sources, and the cache still has the real packages."""
    stamp = served / "digest"
    if not stamp.exists() or stamp.read_text() != _sources_digest():
        return False
    return all(path.exists() for path in (served / "files").iterdir())


def prepare(state_dir: Path, say: Say = _quiet) -> Path:
    """Makes everything that is served, when it isn't there yet; gives its directory.

    Real packages come through this machine's own pip and are kept in the lab's cache.
    """
    served = state_dir / "served"
    if _is_current(served):
        return served
    digest = _sources_digest()
    cache = Paths.here("").cache / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock", "waiting for another lab that fetches packages"):
        real = third_party.fetch(cache, say)
        built = {
            path.name: third_party.lmcache_wheel(cache, path, say) for path in real if path.name.startswith("lmcache-")
        }
    fresh = state_dir / "served.new"
    if fresh.exists():
        shutil.rmtree(fresh)
    files = fresh / "files"
    files.mkdir(parents=True)
    say("lab index: making stand-in packages and repositories")
    indexes = catalog.build(files)
    indexes[catalog.MAIN].append(catalog.source(files))
    for pure in built.values():
        indexes[catalog.MAIN] += catalog.cuda_trap(files, pure, platform.machine())
    for path in real:
        (files / path.name).symlink_to(path)
        indexes[catalog.MAIN].append(files / path.name)
    listing = {index: _projects(paths) for index, paths in indexes.items()}
    (fresh / "indexes.json").write_text(json.dumps(listing, indent=1, sort_keys=True))
    commits = repositories.build(fresh / "git")
    (fresh / "commits.json").write_text(json.dumps(commits, indent=1))
    (fresh / "digest").write_text(digest)
    if served.exists():
        shutil.rmtree(served)
    fresh.rename(served)
    return served


def _projects(paths: list[Path]) -> dict[str, list[dict[str, str]]]:
    """Project -> its files, with the hashes of each and of its metadata."""
    projects: dict[str, list[dict[str, str]]] = {}
    for path in sorted(paths):
        name = (
            path.name.removesuffix(".tar.gz").rpartition("-")[0]
            if path.name.endswith(".tar.gz")
            else path.name.split("-")[0]
        )
        entry = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        metadata = _metadata(path)
        if metadata is not None:
            entry["metadata_sha256"] = hashlib.sha256(metadata).hexdigest()
            wanted = [line for line in metadata.decode().splitlines() if line.startswith("Requires-Python:")]
            if wanted:
                entry["requires_python"] = wanted[0].partition(":")[2].strip()
        projects.setdefault(normalized(name).replace("_", "-"), []).append(entry)
    return projects


def _metadata(path: Path) -> bytes | None:
    if path.suffix != ".whl":
        return None
    with zipfile.ZipFile(path) as archive:
        name = next(
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        )
        return archive.read(name)


# -------------------------------------------------------------------------------------------------------- the server


@dataclass
class Shared:
    """What all requests of one server share."""

    state_dir: Path
    served: Path
    indexes: dict[str, dict[str, list[dict[str, str]]]]
    backend: str
    log_lock: threading.Lock

    def switches(self) -> dict[str, Any]:
        """The faults that are switched on now."""
        try:
            data = json.loads((self.state_dir / "control.json").read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def write_access(self, entry: dict[str, Any]) -> None:
        """Adds a line to the access log."""
        with self.log_lock, (self.state_dir / "access.jsonl").open("a") as handle:
            handle.write(json.dumps(entry) + "\n")


class Handler(BaseHTTPRequestHandler):
    """One connection from a host."""

    protocol_version = "HTTP/1.1"
    shared: Shared
    _sent = 0
    _status = 0

    def log_message(self, format: str, *args: Any) -> None:
        """The access log is our own."""

    def do_GET(self) -> None:
        """Answers, and writes down who asked."""
        self._answer()

    def do_HEAD(self) -> None:
        """As GET without a body."""
        self._answer()

    def do_POST(self) -> None:
        """Only git posts."""
        self._answer()

    def _answer(self) -> None:
        self._sent = self._status = 0
        started = time.time()
        url = urlsplit(self.path)
        path = unquote(url.path)
        switches = self.shared.switches()
        try:
            if switches.get("slow_ms"):
                time.sleep(float(switches["slow_ms"]) / 1000)
            down = switches.get("down", [])
            if down is True or any(path.startswith("/" + prefix.strip("/") + "/") for prefix in down or []):
                self._send(503, b"the lab was told to be down\n")
            else:
                self._route(path, url.query, switches)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            agent = self.headers.get("User-Agent", "").split(" ")[0][:40]
            self.shared.write_access(
                {"t": round(started, 3), "client": self.client_address[0], "method": self.command, "path": path,
                 "status": self._status, "bytes": self._sent, "agent": agent}
            )  # fmt: skip

    def _route(self, path: str, query: str, switches: dict[str, Any]) -> None:
        if path == "/health":
            self._send(200, b"ok\n")
        elif path.startswith("/files/"):
            self._file(path.removeprefix("/files/"), switches)
        elif path.startswith("/git/"):
            self._git(path.removeprefix("/git"), query)
        elif path.startswith("/hf/"):
            self._hub(path.removeprefix("/hf/"))
        else:
            for index, projects in self.shared.indexes.items():
                if path == f"/{index}" or path.startswith(f"/{index}/"):
                    self._index(path.removeprefix(f"/{index}").strip("/"), projects, switches)
                    return
            self._send(404, b"not found\n")

    def _send(self, status: int, data: bytes, kind: str = "text/plain; charset=utf-8", **headers: str) -> None:
        self._status, self._sent = status, len(data)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _index(self, project: str, projects: dict[str, list[dict[str, str]]], switches: dict[str, Any]) -> None:
        if not project:
            links = [f'<a href="{name}/">{name}</a><br/>' for name in sorted(projects)]
        elif project not in projects or project in switches.get("hide", []):
            self._send(404, b"no such project\n")
            return
        else:
            links = []
            for entry in projects[project]:
                if any(entry["file"].startswith(prefix) for prefix in switches.get("hide_files", [])):
                    continue
                more = ""
                if "requires_python" in entry:
                    text = entry["requires_python"].replace("<", "&lt;").replace(">", "&gt;")
                    more += f' data-requires-python="{text}"'
                if "metadata_sha256" in entry:
                    # not under the attribute's older name: pip 23.0 reads that and then trips over PyYAML's capitals
                    more += f' data-core-metadata="sha256={entry["metadata_sha256"]}"'
                links.append(
                    f'<a href="/files/{entry["file"]}#sha256={entry["sha256"]}"{more}>{entry["file"]}</a><br/>'
                )
        page = '<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.0"></head><body>\n'
        self._send(200, (page + "\n".join(links) + "\n</body></html>\n").encode(), "text/html; charset=utf-8")

    def _file(self, name: str, switches: dict[str, Any]) -> None:
        metadata = name.endswith(".metadata")
        path = self.shared.served / "files" / name.removesuffix(".metadata")
        if "/" in name or not path.is_file():
            self._send(404, b"not found\n")
            return
        data = _metadata(path) if metadata else path.read_bytes()
        if data is None:
            self._send(404, b"not found\n")
            return
        if not metadata and any(name.startswith(prefix) for prefix in switches.get("corrupt", [])):
            middle = len(data) // 2
            data = data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 64]) + data[middle + 64 :]
        self._send(200, data, "application/octet-stream", Accept_Ranges="none")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _git(self, path: str, query: str) -> None:
        """Hands over to git's own server program."""
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "GIT_PROJECT_ROOT": str(self.shared.served / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": self.client_address[0],
        }
        body = self._body() if self.command == "POST" else b""
        env["CONTENT_LENGTH"] = str(len(body))
        done = subprocess.run([self.shared.backend], input=body, env=env, capture_output=True, check=False)
        head, _, data = done.stdout.partition(b"\r\n\r\n")
        status, kind = 200, "text/plain"
        for line in head.decode("latin-1").splitlines():
            name, _, value = line.partition(":")
            if name.lower() == "status":
                status = int(value.split()[0])
            elif name.lower() == "content-type":
                kind = value.strip()
        if not head:
            status = 500
        self._send(status, data, kind, Cache_Control="no-cache")

    def _hub(self, path: str) -> None:
        for repository in model.MODELS:
            # any full commit id that a playbook pins is taken to exist; "main" is at the stand-in's own
            asked = re.search(r"/(?:revision|tree|resolve)/([0-9a-f]{40})(?:/|$)", path)
            revision = asked.group(1) if asked else model.commit(repository)
            if path == f"api/models/{repository}" or path.startswith(f"api/models/{repository}/"):
                self._hub_api(path.removeprefix(f"api/models/{repository}").strip("/"), repository, revision)
                return
            if path.startswith(f"{repository}/resolve/"):
                name = path.removeprefix(f"{repository}/resolve/").partition("/")[2]
                found = model.files(repository)
                if name in found:
                    etag = hashlib.sha256(found[name]).hexdigest()
                    kind = "application/octet-stream"
                    self._send(200, found[name], kind, ETag=f'"{etag}"', X_Repo_Commit=revision, Accept_Ranges="none")
                    return
                self._send(404, b"Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=revision)
                return
        self._send(404, b'{"error":"Repository not found"}', "application/json", X_Error_Code="RepoNotFound")

    def _hub_api(self, rest: str, repository: str, revision: str) -> None:
        found = model.files(repository)
        data: Any
        if rest.startswith("tree/"):
            data = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha256(content).hexdigest()[:40]}
                for name, content in found.items()
            ]
        else:
            siblings = [{"rfilename": name, "size": len(content)} for name, content in found.items()]
            data = {"_id": "0", "id": repository, "modelId": repository, "sha": revision, "private": False,
                    "gated": False,
                    "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings,
                    "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z"}  # fmt: skip
        self._send(200, json.dumps(data).encode(), "application/json", X_Repo_Commit=revision)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(state_dir: Path, address: str, port: int) -> None:
    """Serves until SIGTERM. Prints the port it got as its first line."""
    served = state_dir / "served"
    backend = next((path for path in _BACKENDS if Path(path).exists()), "git-http-backend")
    indexes = json.loads((served / "indexes.json").read_text())
    shared = Shared(state_dir, served, indexes, backend, threading.Lock())
    handler = type("BoundHandler", (Handler,), {"shared": shared})
    try:
        server = _Server((address, port), handler)
    except OSError:
        server = _Server((address, 0), handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    partial = state_dir / "services.port.new"
    partial.write_text(f"{server.server_address[1]}\n")
    partial.replace(state_dir / "services.port")
    server.serve_forever(poll_interval=0.1)


# --------------------------------------------------------------------------------------------------- starting, stopping


def _read(state_dir: Path) -> dict[str, Any] | None:
    """What the last start wrote, when that server still runs."""
    try:
        data = json.loads((state_dir / "services.json").read_text())
    except (OSError, ValueError):
        return None
    return data if is_same(int(data.get("pid", 0)), int(data.get("started", 0))) else None


def start(state_dir: Path, bind: str = "127.0.0.1", say: Say = _quiet) -> dict[str, Any]:
    """Starts the server unless it runs already; gives its URLs and its pid.

    Args:
        state_dir: where the served files, the pid file, the access log and the control file are.
        bind: the address hosts reach this machine at; ``address:port`` for a fixed port.
        say: told about what takes long (the first start fetches real packages).
    """
    state_dir = state_dir.resolve()
    state_dir.mkdir(parents=True, exist_ok=True)
    with locked(state_dir / "services.lock"):
        running = _read(state_dir)
        address, _, wanted = bind.partition(":")
        if running and running["address"] == address and _is_current(state_dir / "served"):
            return running
        if running:
            _end(state_dir, running)
        prepare(state_dir, say)
        (state_dir / "services.port").unlink(missing_ok=True)
        # A fault ends with the server that had it, whoever switched it on and was killed.
        (state_dir / "control.json").unlink(missing_ok=True)
        with (state_dir / "services.log").open("ab") as log:
            command = [sys.executable, "-m", "lab.services", str(state_dir), address, wanted or str(PORT)]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + 20
        while not (state_dir / "services.port").exists():
            if process.poll() is not None or time.monotonic() > until:
                words = (state_dir / "services.log").read_text(errors="replace").strip().splitlines()[-5:]
                raise LabError("the lab's index did not start:\n  " + "\n  ".join(words))
            time.sleep(0.02)
        port = int((state_dir / "services.port").read_text())
        root = f"http://{address}:{port}"
        data: dict[str, Any] = {
            "index_url": f"{root}/{catalog.MAIN}",
            "ascend_index_url": f"{root}/{catalog.ASCEND}",
            "variant_index_url": f"{root}/{catalog.VARIANT}",
            "cpu_index_url": f"{root}/{catalog.CPU}",
            "git_url": f"{root}/git",
            "hf_url": f"{root}/hf",
            "address": address,
            "port": port,
            "pid": process.pid,
            "started": started_at(process.pid),
        }
        (state_dir / "services.json").write_text(json.dumps(data, indent=1) + "\n")
        with urllib.request.urlopen(f"{root}/health", timeout=10) as answer:
            answer.read()
        return data


def _end(state_dir: Path, data: dict[str, Any]) -> None:
    pid, started = int(data["pid"]), int(data["started"])
    if not kill_and_wait(pid, started, signal.SIGTERM, 5):
        kill_and_wait(pid, started, signal.SIGKILL, 5)
    (state_dir / "services.json").unlink(missing_ok=True)


def stop(state_dir: Path) -> None:
    """Ends the server; nothing happens when none runs."""
    state_dir = state_dir.resolve()
    if not state_dir.is_dir():
        return
    with locked(state_dir / "services.lock"):
        running = _read(state_dir)
        if running:
            _end(state_dir, running)


def control(state_dir: Path, **switches: Any) -> None:
    """Switches faults on; called without any, it switches all off. They work at once.

    ``down``: ``True`` or a list of path prefixes (``"simple"``, ``"ascend/simple"``, ``"git"``, ``"hf"``, ``"files"``)
    that answer 503; ``slow_ms``: wait before each answer; ``corrupt``: files by the start of their name, served with
    other bytes than their hash says; ``hide``: projects that are not there; ``hide_files``: files, by the start of
    their name, that the index doesn't list.
    """
    known = {"down", "slow_ms", "corrupt", "hide", "hide_files"}
    unknown = set(switches) - known
    if unknown:
        raise ValueError(f"no such switch: {', '.join(sorted(unknown))} (there are: {', '.join(sorted(known))})")
    partial = state_dir / "control.json.new"
    partial.write_text(json.dumps(switches))
    partial.replace(state_dir / "control.json")


def accesses(state_dir: Path) -> list[dict[str, Any]]:
    """The requests so far: time, client, method, path, status, bytes, agent."""
    try:
        lines = (state_dir / "access.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
