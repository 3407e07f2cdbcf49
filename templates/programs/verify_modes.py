"""Ways to gather evidence with an engine: own server and engine, own in-process engine, a service that runs already."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import verify_client as client
from verify_children import Child, Nursery, descendants, environment_of, free_port, is_resource_tracker, title_of
from verify_config import Config

from lmcache_fleet.evidence import Evidence, Incident, Request
from lmcache_fleet.evidence_log import LogFacts, fatal_fault, read_log, strip_ansi

ENGINE_COMMANDS = {
    "vllm": [sys.executable, "-m", "vllm.entrypoints.openai.api_server"],
    "sglang": [sys.executable, "-m", "sglang.launch_server"],
}
SERVER_COMMAND = [sys.executable, "-m", "lmcache.cli.main", "server"]
#: Quiet, off-line, on loopback; the configuration's environment wins.
DEFAULT_ENV = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "PYTHONUNBUFFERED": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
}
_NEW_ENGINE = re.compile(r"Initializing a V1 LLM engine|vLLM API server version|non-default args|server_args=")
PROGRESS_S = 5.0


class PhaseFailed(Exception):
    """A phase cannot be finished, and what follows depends on it."""

    def __init__(self, kind: str, phase: str, detail: str) -> None:
        super().__init__(detail)
        self.incident = Incident(kind, phase, detail)


@dataclass
class Run:
    """A verification under way.

    Args:
        config: what to do.
        evidence: what was seen so far.
        nursery: its child processes.
        say: shows progress.
        work: a short-lived directory for everything that children write.
        logs: read so far: source, text, and whether it was written while stopping.
    """

    config: Config
    evidence: Evidence
    nursery: Nursery
    say: Callable[[str], None]
    work: Path
    logs: list[tuple[str, str, bool]] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Record how long a phase took, also when it fails."""
        self.say(phase)
        start = time.monotonic()
        try:
            yield
        finally:
            self.evidence.durations_s[phase] = round(time.monotonic() - start, 1)

    def child_env(self, *extra: Mapping[str, str]) -> dict[str, str]:
        """Environment of a child: defaults, then this program's, then the configuration's."""
        env = {**DEFAULT_ENV, **os.environ, "TMPDIR": str(self.work), **self.config.env}
        for more in extra:
            env.update(more)
        return env

    def note_environment(self, child: Child) -> None:
        """Record the hash seed of a child's processes while they run."""
        for pid in child.processes():
            env = environment_of(pid)
            if env is not None and not is_resource_tracker(pid):
                self.evidence.hash_seeds[f"{child.name}/{title_of(pid)}"] = env.get("PYTHONHASHSEED")


def last_line(text: str) -> str:
    """The last line that says something, cut short."""
    lines = [line.strip() for line in strip_ansi(text[-4000:]).splitlines() if line.strip()]
    return lines[-1][:110] if lines else "no output yet"


# --- an engine behind HTTP --------------------------------------------------------------------------------------------


class ChildLogs:
    """New text in the logs of children."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)

    def mark(self) -> list[int]:
        """The position now."""
        return [child.mark() for child in self.children]

    def since(self, mark: Sequence[int]) -> str:
        """What was written since."""
        return "\n".join(child.text(start) for child, start in zip(self.children, mark, strict=True))


class CommandLog:
    """New text in what a command prints, compared line by line: it may rotate, and starts anew with a restart."""

    def __init__(self, command: Sequence[str] | None) -> None:
        self.command = command

    def read(self) -> str | None:
        """All of it; None when the command fails or is not given."""
        if self.command is None:
            return None
        try:
            done = subprocess.run(self.command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None

    def mark(self) -> Counter[str]:
        """The lines now."""
        return Counter((self.read() or "").splitlines())

    def since(self, mark: Counter[str]) -> str:
        """Lines that were not there."""
        left, fresh = Counter(mark), []
        for line in (self.read() or "").splitlines():
            if left[line] > 0:
                left[line] -= 1
            else:
                fresh.append(line)
        return "\n".join(fresh)


@dataclass
class Target:
    """An engine to ask.

    Args:
        url: base URL.
        model: name that the engine gives the model.
        log: where stores and retrieves are logged; None when nothing can be read.
        engine_metrics: URLs of its metrics.
        cache_metrics: URLs of the LMCache server's metrics.
        headers: for every request.
        poll_s: pause between looks.
    """

    url: str
    model: str
    log: ChildLogs | CommandLog | None
    engine_metrics: list[str]
    cache_metrics: list[str]
    headers: dict[str, str] = field(default_factory=dict)
    poll_s: float = 0.2

    def counters(self) -> dict[str, float]:
        """All counters now."""
        return client.metrics([*self.engine_metrics, *self.cache_metrics], self.headers)


def grown(before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str]) -> int | None:
    """Growth of a counter; None where there is none."""
    now = client.metric(after, names)
    return None if now is None else now - (client.metric(before, names) or 0)


def _stored(run: Run, log: LogFacts | None, before: Mapping[str, float], after: Mapping[str, float]) -> int | None:
    """Tokens stored, by the log or else by counters; None when neither can tell."""
    if log is not None and log.stores:
        return log.stored
    tokens = grown(before, after, client.STORED_TOKENS)
    chunks = grown(before, after, client.STORED_CHUNKS)
    counted = tokens if tokens is not None else None if chunks is None else chunks * run.config.chunk_size
    if counted is not None or log is None or run.evidence.server_elsewhere:
        return counted
    return 0


def ask(run: Run, target: Target, phase: str, purpose: str = "measured") -> Request:
    """One request with all that can be seen of it.

    Raises:
        PhaseFailed: no usable answer.
    """
    config = run.config
    ids = config.prompt_ids(purpose)
    # mypy cannot know that a mark goes back to the kind of log that it came from.
    mark = target.log.mark() if target.log else None
    before = target.counters()
    request_id = f"lmcache-fleet-{config.prompt.nonce}-{phase}"
    try:
        answer = client.complete(
            target.url,
            target.model,
            ids,
            max_tokens=config.prompt.max_tokens,
            timeout=config.limits.request_s,
            request_id=request_id,
            logprobs=config.prompt.logprobs or 0,
            headers=target.headers,
        )
    except client.RequestFailed as error:
        raise PhaseFailed("request-failed", phase, str(error)) from error
    request = Request(phase, answer.prompt_tokens or len(ids), answer.output)
    request.ttft_ms, request.total_ms = answer.ttft_ms, answer.total_ms
    request.cached_tokens, request.logprobs = answer.cached_tokens, answer.logprobs
    deadline = time.monotonic() + config.limits.settle_s
    while True:
        after = target.counters()
        log = read_log(target.log.since(mark), phase) if target.log else None  # type: ignore[arg-type]
        _fill(run, request, log, before, after)
        if _settled(run, request, before, after) or time.monotonic() > deadline:
            return request
        time.sleep(target.poll_s)


def _fill(
    run: Run, request: Request, log: LogFacts | None, before: Mapping[str, float], after: Mapping[str, float]
) -> None:
    """Put what logs and counters say into a request."""
    own = request.prompt_tokens or 0
    others = max(0, (grown(before, after, client.PROMPT_TOKENS) or 0) - own)
    external = grown(before, after, client.EXTERNAL_HITS)
    local = grown(before, after, client.LOCAL_HITS)
    request.busy = others > 0
    # At worst every token of the others was a hit: what is left is certainly this request's.
    request.external_hits = None if external is None else max(0, external - others)
    request.local_hits = None if local is None else max(0, local - others)
    request.stored = _stored(run, log, before, after)
    request.retrieved = None if log is None else log.retrieved


def _settled(run: Run, request: Request, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether counters have caught up with a request, and a cold one's store is done."""
    counted = grown(before, after, client.PROMPT_TOKENS)
    if counted is not None and counted < (request.prompt_tokens or 0):
        return False
    if request.phase != "cold":
        return True
    whole = (request.prompt_tokens or 0) // run.config.chunk_size * run.config.chunk_size
    return (request.stored or 0) >= whole


def warm_up(run: Run, target: Target, purpose: str) -> None:
    """One request that is not measured: its time would be mostly first-use cost."""
    ask(run, target, "warm-up", purpose)
    run.evidence.warm_up = True


def empty_engine_cache(run: Run, target: Target) -> bool | None:
    """Empty the engine's own prefix cache; tries again while blocks are still held.

    Returns:
        None when the engine has no such request.
    """
    deadline = time.monotonic() + run.config.limits.settle_s
    while True:
        try:
            done = client.reset_prefix_cache(
                target.url, run.config.limits.request_s, target.headers, run.config.engine.kind
            )
        except client.RequestFailed as error:
            raise PhaseFailed("request-failed", "reset", str(error)) from error
        if done is not False or time.monotonic() > deadline:
            return done
        time.sleep(target.poll_s)


# --- mode mp ----------------------------------------------------------------------------------------------------------


def wait_ready(run: Run, name: str, url: str, children: Sequence[Child]) -> None:
    """Wait until a URL answers; the first child is the one waited for, the others must live too.

    Raises:
        PhaseFailed: a child ended, its log shows that it never will be ready, or time is up.
    """
    start, shown = time.monotonic(), time.monotonic()
    while not client.alive(url):
        for child in children:
            check_child(name, child)
        now = time.monotonic()
        if now - start > run.config.limits.start_s:
            detail = f"not ready after {now - start:.0f} s; last line: {last_line(children[0].text())}"
            raise PhaseFailed("start-timeout", name, detail)
        if now - shown > PROGRESS_S:
            run.say(f"  waiting for {children[0].name}: {last_line(children[0].text())}")
            shown = now
        time.sleep(0.25)


def check_child(phase: str, child: Child) -> None:
    """Give up early where waiting is of no use."""
    if not child.alive():
        kind = "server-died" if child.name.startswith("server") else "engine-died"
        detail = f"{child.name} ended with {child.process.returncode}; last line: {last_line(child.text())}"
        raise PhaseFailed(kind, phase, detail)
    fault = fatal_fault(child.text())
    if fault is not None:
        time.sleep(1.0)  # let the lines around it reach the log
        raise PhaseFailed("start-abandoned", phase, f"{fault.id}: {fault.message} [{child.name}]")


class MpStack:
    """An LMCache server and an engine that uses it.

    Args:
        run: the verification.
    """

    def __init__(self, run: Run) -> None:
        self.run, config = run, run.config
        self.shm = f"lmcf{os.getpid()}_{os.urandom(3).hex()}"
        self.zmq = config.server.port or free_port()
        self.http = config.server.http_port or free_port()
        self.port = config.engine.port or free_port()
        self.starts = 0
        self.server: Child | None = None
        self.engine: Child | None = None

    @property
    def server_url(self) -> str:
        """The server's HTTP side."""
        return f"http://127.0.0.1:{self.http}"

    def server_command(self) -> list[str]:
        """Command line of the server."""
        server = self.run.config.server
        options = {
            "--host": "localhost",
            "--port": str(self.zmq),
            "--http-host": "127.0.0.1",
            "--http-port": str(self.http),
            "--l1-size-gb": f"{server.l1_size_gb:g}",
            "--eviction-policy": server.eviction_policy,
            "--chunk-size": str(self.run.config.chunk_size),
            "--supported-transfer-mode": server.transfer_mode,
            "--shm-name": self.shm,
        }
        if server.l2_adapter is not None:
            options["--l2-adapter"] = json.dumps(server.l2_adapter)
        flat = [word for pair in options.items() for word in pair]
        return [*(server.command or SERVER_COMMAND), *flat, *server.args]

    def engine_command(self) -> list[str]:
        """Command line of the engine."""
        config = self.run.config
        options = self._sglang_options() if config.engine.kind == "sglang" else self._vllm_options()
        command = config.engine.command or ENGINE_COMMANDS[config.engine.kind]
        return [*command, *options, "--host", "127.0.0.1", "--port", str(self.port), *config.engine.args]

    def _vllm_options(self) -> list[str]:
        transfer = dict(self.run.config.connector)
        extra = dict(transfer.get("kv_connector_extra_config") or {})
        extra.update({"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self.zmq})
        transfer["kv_connector_extra_config"] = extra
        return ["--model", self.run.config.model, "--kv-transfer-config", json.dumps(transfer)]

    def _sglang_options(self) -> list[str]:
        place = self.run.work / "sglang-lmcache.yaml"
        place.write_text(f"mp_host: 127.0.0.1\nmp_port: {self.zmq}\n", encoding="utf-8")
        told = ["--enable-lmcache", "--lmcache-config-file", str(place), "--enable-metrics", "--enable-cache-report"]
        return ["--model-path", self.run.config.model, *told]

    def start_server(self, suffix: str = "") -> Child:
        """Start the server alone, without waiting for it."""
        run = self.run
        env = run.child_env(run.config.server.env)
        self.server = run.nursery.start(f"server{suffix}", self.server_command(), env, run.work)
        return self.server

    def start(self, with_server: bool) -> None:
        """Start engine and perhaps server at the same time, and wait for both: the engine's imports take longest."""
        run, self.starts = self.run, self.starts + 1
        suffix = "" if self.starts == 1 else str(self.starts)
        if with_server:
            self.start_server(suffix)
        env = run.child_env({"VLLM_SERVER_DEV_MODE": "1"}, run.config.engine.env)
        self.engine = run.nursery.start(f"engine{suffix}", self.engine_command(), env, run.work)
        assert self.server is not None
        if with_server:
            wait_ready(run, "start server", f"{self.server_url}/healthcheck", [self.server, self.engine])
        wait_ready(run, "start engine", f"http://127.0.0.1:{self.port}/health", [self.engine, self.server])
        run.evidence.pids.append(self.engine.process.pid)
        run.note_environment(self.engine)
        run.note_environment(self.server)

    def target(self) -> Target:
        """The engine to ask."""
        assert self.server is not None and self.engine is not None
        url = f"http://127.0.0.1:{self.port}"
        caches = [f"{self.server_url}/metrics"]
        logs = ChildLogs([self.server, self.engine])
        return Target(url, self._model_name(), logs, [f"{url}/metrics"], caches)

    def _model_name(self) -> str:
        args = self.run.config.engine.args
        return args[args.index("--served-model-name") + 1] if "--served-model-name" in args else self.run.config.model

    def stop(self, with_server: bool) -> None:
        """Stop the engine and perhaps the server."""
        self.run.nursery.own_shared_memory(self.shm)
        for child in (self.engine, self.server if with_server else None):
            if child is not None:
                self.run.nursery.stop(child)


def run_mp(run: Run) -> None:
    """Own LMCache server and engine: cold, hit after a reset, hit by a new engine process."""
    config, stack = run.config, MpStack(run)
    both = config.server.restart
    try:
        with run.timed("start server and engine"):
            stack.start(with_server=True)
        target = stack.target()
        with run.timed("warm-up"):
            warm_up(run, target, "warm-up")
        with run.timed("cold request"):
            run.evidence.requests.append(ask(run, target, "cold"))
        with run.timed("same prefix, engine's own cache, for its output"):
            run.evidence.requests.append(ask(run, target, "reference"))
        with run.timed("same prefix, engine's own cache emptied"):
            if not empty_engine_cache(run, target):
                asked = f"POST {target.url}{client.RESET[config.engine.kind]}"
                run.evidence.incidents.append(Incident("reset-failed", "hit", asked))
            run.evidence.requests.append(ask(run, target, "hit"))
        if config.expect.restart == "required":
            with run.timed("restart " + ("server and engine" if both else "engine")):
                stack.stop(with_server=both)
                stack.start(with_server=both)
            target = stack.target()
            with run.timed("same prefix, new engine process"):
                warm_up(run, target, "warm-up after restart")
                run.evidence.requests.append(ask(run, target, "restart"))
    finally:
        with run.timed("stop"):
            stack.stop(with_server=True)


# --- mode inprocess ---------------------------------------------------------------------------------------------------

#: What verify_engine.py prints when it is done and only has to end.
WORK_DONE = "lmcache-fleet-verify: workload_ok"
#: Prefix caching off: a hit can then only come from LMCache. Statistics on: they count it.
ENGINE_OPTIONS = {"enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": False}


def run_inprocess(run: Run) -> None:
    """An offline engine that ends by itself; then, where a tier outlives it, a second one that retrieves."""
    with run.timed("engine process: cold, then the same prefix"):
        _engine_process(run, "engine", ["cold", "hit"], "warm-up")
    if run.config.expect.restart == "required":
        with run.timed("new engine process: the same prefix"):
            _engine_process(run, "engine2", ["restart"], "warm-up after restart")


def _engine_process(run: Run, name: str, phases: list[str], warm_up_purpose: str) -> None:
    """Run one engine process to its end and read what it found."""
    config, result = run.config, run.work / f"{name}.result.json"
    plan = {
        "model": config.model,
        "options": {**ENGINE_OPTIONS, **config.engine.options},
        "connector": config.connector,
        "plugin_imports": config.engine.plugin_imports,
        "phases": phases,
        "prompt_ids": config.prompt_ids("measured"),
        "warm_up_ids": config.prompt_ids(warm_up_purpose),
        "max_tokens": config.prompt.max_tokens,
        "logprobs": config.prompt.logprobs or None,
        "settle_s": min(1.0, config.limits.settle_s),
        "device": config.expect.device,
        "result": str(result),
    }
    path = run.work / f"{name}.plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    env = run.child_env(
        {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}, config.engine.env, {"LMCACHE_FLEET_VERIFY_PLAN": str(path)}
    )
    program = Path(__file__).with_name("verify_engine.py")
    child = run.nursery.start(name, [sys.executable, str(program)], env, run.work)
    run.evidence.pids.append(child.process.pid)
    try:
        _wait_for_end(run, child, phases)
    finally:
        run.nursery.stop(child)
        _read_result(run, child, result)
    if child.exit is not None and child.exit.code != 0:
        detail = f"{name} ended with {child.exit.code}; last line: {last_line(child.text())}"
        raise PhaseFailed("engine-died", "+".join(phases), detail)


def _wait_for_end(run: Run, child: Child, phases: list[str]) -> None:
    """Wait for an engine process to end by itself."""
    allowed = run.config.limits.start_s + run.config.limits.request_s * (len(phases) + 1)
    start, shown = time.monotonic(), time.monotonic()
    while child.alive():
        now = time.monotonic()
        if now - start > allowed:
            detail = f"{child.name} not done after {now - start:.0f} s; last line: {last_line(child.text())}"
            raise PhaseFailed("start-timeout", "+".join(phases), detail)
        if now - shown > PROGRESS_S:
            run.note_environment(child)
            run.say(f"  waiting for {child.name}: {last_line(child.text())}")
            shown = now
        time.sleep(0.25)


def _read_result(run: Run, child: Child, result: Path) -> None:
    """Take what an engine process found, and what its log says between the marks of each phase."""
    try:
        found = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    run.evidence.connector = found.get("connector") or {}
    run.evidence.device = found.get("device") or run.evidence.device
    run.evidence.hash_seeds[f"{child.name}/python"] = found.get("hash_seed")
    # What comes after the work is done belongs to the exit.
    end = child.log.read_bytes().find(WORK_DONE.encode())
    child.stop_mark = end if end >= 0 else child.stop_mark
    text = strip_ansi(child.text())
    for values in found.get("requests", []):
        request = Request(**values)
        between = _between_marks(text, request.phase)
        log = read_log(between, request.phase)
        request.stored, request.retrieved = log.stored, log.retrieved
        run.evidence.requests.append(request)
        run.evidence.warm_up = True


def _between_marks(text: str, phase: str) -> str:
    """The part of an engine process's log that belongs to a phase."""
    _, _, rest = text.partition(f"lmcache-fleet-verify: begin {phase}\n")
    return rest.partition(f"lmcache-fleet-verify: end {phase}\n")[0]


# --- mode service -----------------------------------------------------------------------------------------------------


def run_service(run: Run) -> None:
    """A service that runs already: cold, then a hit after a reset, a restart, or both."""
    config, service = run.config, run.config.service
    target = _service_target(config)
    log = CommandLog(service.log_command)
    if service.log_command is not None and log.read() is None:
        run.evidence.incidents.append(Incident("log-unreadable", "start", " ".join(service.log_command)))
    if not target.counters():
        run.evidence.notes.append("no metrics could be read; only the log can tell of hits")
    run.evidence.server_elsewhere = config.server_elsewhere()
    note_service(run)
    with run.timed("warm-up"):
        warm_up(run, target, "warm-up" if service.part != "retrieve" else "warm-up of another host")
    if service.part != "all":
        _half(run, target)
        run.logs.append(("service", log.read() or "", False))
        return
    with run.timed("cold request"):
        run.evidence.requests.append(ask(run, target, "cold"))
    can_reset = None
    if service.reset == "auto" or service.restart_command is not None:
        with run.timed("same prefix, engine's own cache, for its output"):
            run.evidence.requests.append(ask(run, target, "reference"))
    if service.reset == "auto":
        can_reset = empty_engine_cache(run, target)
    if can_reset or service.restart_command is None:
        with run.timed("same prefix" + (", engine's own cache emptied" if can_reset else "")):
            run.evidence.requests.append(ask(run, target, "hit"))
    if service.restart_command is not None:
        text = log.read() or ""
        run.logs.append(("service", text, False))
        mark = log.mark()
        with run.timed("restart the service"):
            _restart_service(run, target)
        with run.timed("same prefix, new engine process"):
            warm_up(run, target, "warm-up after restart")
            run.evidence.requests.append(ask(run, target, "restart"))
        _add_log_after_restart(run, log.since(mark))
    else:
        run.logs.append(("service", log.read() or "", False))


def _half(run: Run, target: Target) -> None:
    """What one of two hosts does: store a prompt in the tier that they share, or have it from there."""
    before = target.counters()
    if run.config.service.part == "retrieve":
        with run.timed("the prefix that another host stored"):
            run.evidence.requests.append(ask(run, target, "hit"))
        shared = grown(before, target.counters(), client.SHARED_HITS)
        if shared is not None:
            run.evidence.notes.append(f"{shared} tokens were found in the second tier")
        return
    with run.timed("cold request"):
        cold = ask(run, target, "cold")
        run.evidence.requests.append(cold)
    with run.timed("same prefix, engine's own cache, for its output"):
        run.evidence.requests.append(ask(run, target, "reference"))
    with run.timed("the second tier's copy"):
        # It is made after the answer went out.
        wanted = (cold.prompt_tokens or 0) // run.config.chunk_size
        deadline = time.monotonic() + run.config.limits.settle_s
        while True:
            copied = grown(before, target.counters(), client.SHARED_CHUNKS)
            if (copied or 0) >= wanted or time.monotonic() > deadline:
                break
            time.sleep(target.poll_s)
        if copied is not None:
            run.evidence.notes.append(f"{copied} chunks went to the second tier")


def _service_target(config: Config) -> Target:
    service = config.service
    url = service.url.rstrip("/").removesuffix("/v1")
    headers = {}
    if service.api_key_file is not None:
        try:
            key = Path(service.api_key_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise PhaseFailed("request-failed", "start", f"API key: {error}") from error
        headers["Authorization"] = f"Bearer {key}"
    log = CommandLog(service.log_command) if service.log_command else None
    metrics = service.metrics_urls or [f"{url}/metrics"]
    return Target(url, config.model, log, metrics, service.lmcache_metrics_urls, headers, 0.5)


def _service_pid(run: Run) -> int | None:
    """The service's main process as of now."""
    service = run.config.service
    if service.pid_command is None:
        return service.pid
    try:
        done = subprocess.run(service.pid_command, capture_output=True, timeout=30, check=False, text=True)
        return int(done.stdout.strip() or 0) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def note_service(run: Run) -> int | None:
    """Record the service's main process and the hash seeds of all its processes."""
    pid = _service_pid(run)
    if pid is None:
        return None
    run.evidence.pids.append(pid)
    for process in [pid, *descendants(pid)]:
        env = environment_of(process)
        if env is not None and not is_resource_tracker(process):
            run.evidence.hash_seeds[f"service/{title_of(process)}"] = env.get("PYTHONHASHSEED")
    if not run.evidence.hash_seeds:
        run.evidence.notes.append(f"environment of process {pid} is not readable: hash seed not judged")
    return pid


def _restart_service(run: Run, target: Target) -> None:
    """Run the restart hook and wait until the service answers again.

    Raises:
        PhaseFailed: the hook failed, or the service did not come back.
    """
    hook, limits = run.config.service.restart_command or [], run.config.limits
    before = _service_pid(run)
    try:
        done = subprocess.run(hook, capture_output=True, timeout=limits.start_s, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise PhaseFailed("restart-failed", "restart", str(error)) from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise PhaseFailed("restart-failed", "restart", f"{' '.join(hook)} ended with {done.returncode}: {said}")
    start = shown = time.monotonic()
    while not client.alive(f"{target.url}/health", target.headers):
        now = time.monotonic()
        if now - start > limits.start_s:
            raise PhaseFailed(
                "restart-failed", "restart", f"{target.url}/health does not answer after {now - start:.0f} s"
            )
        if now - shown > PROGRESS_S:
            run.say(f"  waiting for {target.url}/health")
            shown = now
        time.sleep(0.5)
    after = note_service(run)
    if run.config.service.pid_command is not None and before == after:
        raise PhaseFailed("restart-did-nothing", "restart", f"main process is still {after}")


def _add_log_after_restart(run: Run, text: str) -> None:
    """Split the log since a restart: what the old engine said on its way out, and what the new one says."""
    found = _NEW_ENGINE.search(text)
    start = text.rfind("\n", 0, found.start()) + 1 if found else 0
    run.logs.append(("service", text[:start], True))
    run.logs.append(("service", text[start:], False))


MODES: dict[str, Callable[[Run], None]] = {"mp": run_mp, "inprocess": run_inprocess, "service": run_service}
