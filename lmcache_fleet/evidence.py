"""Evidence that a release offloads its KV cache: what was seen, read from logs, judged and shown.

Pure and stdlib only: the verification program carries this module to the target (see `PROGRAM_FILES`) and runs it under
the release's Python (3.10 or later); the control machine judges and renders the same JSON again.

A healthy answer is no evidence. What counts: tokens stored by a cold request; tokens that the engine took from outside
for the same prefix, with its own prefix cache out of the way; the same from a new process; equal outputs; a clean log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from lmcache_fleet.evidence_log import ERROR, FAULTS_BY_ID, GENERIC_FAULTS, WARNING, BadLine

FORMAT = "lmcache-fleet/evidence/v1"

#: What a target needs to run the verification: path below the target's directory -> path below the repository.
PROGRAM_FILES = {
    "verify.py": "templates/programs/verify.py",
    "verify_children.py": "templates/programs/verify_children.py",
    "verify_client.py": "templates/programs/verify_client.py",
    "verify_config.py": "templates/programs/verify_config.py",
    "verify_engine.py": "templates/programs/verify_engine.py",
    "verify_modes.py": "templates/programs/verify_modes.py",
    "verify_server.py": "templates/programs/verify_server.py",
    "lmcache_fleet/__init__.py": "lmcache_fleet/__init__.py",
    "lmcache_fleet/evidence.py": "lmcache_fleet/evidence.py",
    "lmcache_fleet/evidence_log.py": "lmcache_fleet/evidence_log.py",
}


@dataclass(slots=True)
class Request:
    """One request and what it moved.

    Args:
        phase: `cold`, `reference` (the engine's own prefix cache, for its output), `hit` or `restart`.
        prompt_tokens: as the engine counted them; None when it did not say.
        output: generated token ids, or the text in a one-element list where the engine returns no ids; of LMCache's own
            client the digest of the KV that it sent or got.
        logprobs: at each position the likeliest tokens and their log probabilities; empty where the engine gives none.
        ttft_ms: time to the first token, or of the whole request where the engine gives no better.
        total_ms: time of the whole request.
        stored: tokens that LMCache said it stored; None when nothing could tell.
        external_hits: tokens that the engine took from its KV connector (vllm:external_prefix_cache_hits).
        local_hits: tokens that the engine took from its own prefix cache (vllm:prefix_cache_hits).
        retrieved: tokens that LMCache logged as retrieved.
        cached_tokens: cached tokens as the answer itself counted them, whatever their origin.
        busy: other requests ran meanwhile, so counters are lower bounds.
    """

    phase: str
    prompt_tokens: int | None = None
    output: list[int | str] = field(default_factory=list)
    logprobs: list[dict[str, float]] = field(default_factory=list)
    ttft_ms: float | None = None
    total_ms: float | None = None
    stored: int | None = None
    external_hits: int | None = None
    local_hits: int | None = None
    retrieved: int | None = None
    cached_tokens: int | None = None
    busy: bool = False

    def offloaded(self) -> int | None:
        """Tokens that came from outside the engine.

        The engine's own counter decides where there is one: LMCache's lookup counters also rise for a prefix that the
        engine then serves from its own cache.
        """
        return self.retrieved if self.external_hits is None else self.external_hits


#: Log probabilities (nats) closer than this are a tie that rounding may decide either way. Computing the rest of a
#: prompt instead of all of it moves bfloat16 results by some hundredths; wrong KV data move them by whole units.
TIE = 0.25


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an output compares with the cold one.

    Args:
        phase: whose output.
        equal: the same tokens as cold or as from the engine's own prefix cache, or as cold up to a tie.
        same_as: `cold` or `reference` when every token is the same as there.
        tie_at: position of the tie from which they differ; None when every token is the same.
        gap: greatest difference of a log probability up to there; None where the engine gives none.
    """

    phase: str
    equal: bool
    same_as: str | None = None
    tie_at: int | None = None
    gap: float | None = None


def compare(cold: Request, other: Request, reference: Request | None = None) -> Comparison:
    """Compare an output with the cold one.

    A cold request computes its whole prompt, a hit only the rest, and rounds otherwise; greedy decoding then may part
    at a tie, and what comes after is not comparable. That is the engine's way and not LMCache's doing: a hit in the
    engine's own prefix cache, which LMCache has no part in, does the same, and is the reference. Where the engine
    gives log probabilities, outputs also count as equal when each deems the other's token about as likely where they
    part.
    """
    if cold.output != other.output and reference is not None and reference.output == other.output:
        return Comparison(other.phase, True, "reference")
    pairs = list(zip(cold.output, other.output, strict=False))
    parted = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    same = len(pairs) if parted is None else parted
    gap = _greatest_gap(cold, other, same)
    if parted is None:
        equal = len(cold.output) == len(other.output)
        return Comparison(other.phase, equal, "cold" if equal else None, None, gap)
    tie = _tie(cold, parted, other.output[parted]) and _tie(other, parted, cold.output[parted])
    tie = tie and (gap or 0.0) <= TIE
    return Comparison(other.phase, tie, None, parted if tie else None, gap)


def _greatest_gap(cold: Request, other: Request, same: int) -> float | None:
    """The greatest difference between the log probabilities of the first tokens, which are the same."""
    if min(len(cold.logprobs), len(other.logprobs)) < same or same == 0:
        return None
    gaps = []
    for i in range(same):
        token = str(cold.output[i])
        if token in cold.logprobs[i] and token in other.logprobs[i]:
            gaps.append(abs(cold.logprobs[i][token] - other.logprobs[i][token]))
    return round(max(gaps), 4) if gaps else None


def _tie(request: Request, position: int, rival: int | str) -> bool:
    """Whether a request could as well have gone on with another token."""
    if position >= len(request.logprobs):
        return False
    likely = request.logprobs[position]
    own = likely.get(str(request.output[position]))
    return own is not None and str(rival) in likely and own - likely[str(rival)] <= TIE


@dataclass(slots=True)
class Incident:
    """Something that kept the program from finishing a phase.

    Args:
        kind: id in `INCIDENTS`.
        phase: what was being done.
        detail: what exactly was seen.
    """

    kind: str
    phase: str
    detail: str


@dataclass(slots=True)
class Exit:
    """How a child process ended.

    Args:
        code: exit status; negative for a signal.
        asked: this program had asked it to stop.
        killed: it did not stop when asked, and was killed.
    """

    code: int | None
    asked: bool
    killed: bool = False


@dataclass(slots=True)
class Finding:
    """A verdict on one point.

    Args:
        id: stable name, for `explain`.
        severity: `error` fails the verification, `warning` does not.
        message: what was seen, in one line.
        cause: the likely reason.
        remedy: what to do.
    """

    id: str
    severity: str
    message: str
    cause: str
    remedy: str


@dataclass(slots=True)
class Evidence:
    """All that a verification saw. `tokens`, `ttft_ms`, `outputs_equal` and `ok` are derived and written for readers.

    Args:
        mode: `mp`, `inprocess`, `server` or `service`.
        started: UTC, ISO 8601.
        finished: UTC, ISO 8601.
        versions: distribution name to version, and `python`.
        device: where the KV cache lives, as the process or its log said (`cpu`, `npu:0`).
        connector: `class`, `module` and `source` of the KV connector that was loaded.
        chunk_size: tokens in a chunk, as configured.
        chunk_size_seen: tokens in a chunk, as LMCache logged it.
        requests: the measured requests in order.
        server_elsewhere: the LMCache server is on another host: nothing here can tell of a store but a later hit.
        warm_up: the first request of each engine process is not measured: its time is mostly first-use cost.
        hash_seeds: process to its PYTHONHASHSEED; None when it has none.
        pids: main process id of each engine, in order of start.
        log_text_seen: expected log text to whether it was seen.
        proof: a few log lines that prove the offload.
        noise: known harmless messages seen, by name, with their number.
        bad_lines: log lines against it.
        exits: child process to how it ended.
        incidents: what kept a phase from finishing.
        notes: remarks of the program on how it measured.
        durations_s: phase to seconds.
        findings: verdicts.
    """

    mode: str
    started: str = ""
    finished: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    connector: dict[str, str | None] = field(default_factory=dict)
    chunk_size: int = 256
    chunk_size_seen: int | None = None
    requests: list[Request] = field(default_factory=list)
    server_elsewhere: bool = False
    warm_up: bool = False
    hash_seeds: dict[str, str | None] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)
    log_text_seen: dict[str, bool] = field(default_factory=dict)
    proof: list[str] = field(default_factory=list)
    noise: dict[str, int] = field(default_factory=dict)
    bad_lines: list[BadLine] = field(default_factory=list)
    exits: dict[str, Exit] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    durations_s: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def request(self, phase: str) -> Request | None:
        """The request of a phase; None when it did not get that far."""
        return next((r for r in self.requests if r.phase == phase), None)

    def chunk(self) -> int:
        """Tokens in a chunk: what LMCache said rather than what it was told."""
        return self.chunk_size_seen or self.chunk_size

    def comparisons(self) -> list[Comparison]:
        """Later outputs compared with the cold one; those that the engine's own cache gave say nothing of LMCache."""
        cold = self.request("cold")
        if cold is None or not cold.output:
            return []
        reference = self.request("reference")
        if reference is not None and (reference.external_hits or not reference.local_hits):
            reference = None  # it did not come from the engine's own cache
        others = [r for r in self.requests if r.phase in ("hit", "restart") and r.output]
        others = [r for r in others if r.offloaded() or not r.local_hits]
        return [compare(cold, other, reference) for other in others]

    def outputs_equal(self) -> bool | None:
        """Whether every later output equals the cold one, ties apart; None with nothing to compare."""
        comparisons = self.comparisons()
        return all(c.equal for c in comparisons) if comparisons else None

    def ok(self) -> bool:
        """Whether the evidence proves the offload, by its own findings."""
        return bool(self.finished) and not any(f.severity == ERROR for f in self.findings)

    def has_engine(self) -> bool:
        """Whether an engine was asked, rather than an LMCache server by LMCache's own client."""
        return self.mode != "server"

    def as_json(self) -> dict[str, Any]:
        """The evidence as JSON values, derived figures included."""
        cold, reference = self.request("cold"), self.request("reference")
        hit, restart = self.request("hit"), self.request("restart")
        tokens = {
            "prompt": cold.prompt_tokens if cold else None,
            "stored": cold.stored if cold else None,
            "hit_after_reset": hit.offloaded() if hit else None,
            "retrieved_after_restart": restart.offloaded() if restart else None,
        }
        ttft = {
            "cold": cold.ttft_ms if cold else None,
            "own_cache": reference.ttft_ms if reference else None,
            "hit": hit.ttft_ms if hit else None,
            "after_restart": restart.ttft_ms if restart else None,
        }
        derived = {
            "format": FORMAT,
            "ok": self.ok(),
            "tokens": tokens,
            "ttft_ms": ttft,
            "outputs_equal": self.outputs_equal(),
            "comparisons": [asdict(c) for c in self.comparisons()],
        }
        return {**derived, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evidence:
        """Read evidence back.

        Raises:
            ValueError: not evidence, or of a format that this version does not know.
        """
        if value.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}: format is {value.get('format')!r}")
        try:
            evidence = _build(cls, value)
            evidence.requests = [_build(Request, r) for r in value.get("requests", [])]
            evidence.bad_lines = [_build(BadLine, b) for b in value.get("bad_lines", [])]
            evidence.incidents = [_build(Incident, i) for i in value.get("incidents", [])]
            evidence.findings = [_build(Finding, f) for f in value.get("findings", [])]
            evidence.exits = {name: _build(Exit, e) for name, e in value.get("exits", {}).items()}
        except (TypeError, AttributeError) as error:
            raise ValueError(f"damaged evidence: {error}") from error
        return evidence


T = TypeVar("T")


def _build(kind: type[T], value: Mapping[str, Any]) -> T:
    """A dataclass from a mapping; keys that it does not know are a newer writer's and are left out."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: v for k, v in value.items() if k in names})


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the release was meant to show.

    Args:
        connector_class: class name of the KV connector.
        connector_module: module that must have provided it.
        device: `npu:0`; without a number any device of the kind will do. None: not judged.
        log_text: texts that must appear in the engine's log.
        restart: `required`, or `not-applicable` where no tier outlives the engine.
        hash_seed: `required`, `advised` (a warning) or `ignored`.
        versions: distribution to the version that must be installed.
        forbidden_noise: names in `NOISE` that are not to be taken as harmless here.
    """

    connector_class: str | None = None
    connector_module: str | None = None
    device: str | None = None
    log_text: Sequence[str] = ()
    restart: str = "required"
    hash_seed: str = "required"
    versions: Mapping[str, str] = field(default_factory=dict)
    forbidden_noise: Sequence[str] = ()


# --- judging ----------------------------------------------------------------------------------------------------------

INCIDENTS: dict[str, tuple[str, str, str]] = {
    "engine-died": (
        "the engine ended by itself",
        "an error in start or while serving",
        "read the bad lines and the engine's log",
    ),
    "server-died": (
        "the LMCache server ended by itself",
        "an error in start or while serving",
        "read the bad lines and the server's log",
    ),
    "start-timeout": (
        "the engine or server did not come up in time",
        "a hang in start (transfer modes of engine and server that differ are one reason), or a slow disk or compile",
        "read the last lines of its log; raise limits.start_s only if it was still making progress",
    ),
    "start-abandoned": (
        "waiting for the start was given up",
        "the log shows a fault after which it never comes up",
        "mend the fault that the other findings name",
    ),
    "time-limit": (
        "the verification took longer than it may",
        "something hung or the machine is very busy",
        "see in which phase it was; raise limits.total_s if it was still making progress",
    ),
    "interrupted": ("the verification was interrupted", "a signal", "run it again"),
    "request-failed": (
        "a request failed",
        "the engine refused it, died or did not answer in time",
        "read the detail and the engine's log",
    ),
    "client-failed": (
        "LMCache's own client failed",
        "the server refused it, died or did not answer in time, or this LMCache has no `lmcache bench server`",
        "read the detail and the server's log",
    ),
    "reset-failed": (
        "the engine's own prefix cache could not be emptied",
        "the engine is not in development mode (VLLM_SERVER_DEV_MODE=1), or blocks were still held",
        "let the program start the engine itself, give a restart hook, or switch development mode on, on loopback only",
    ),
    "restart-failed": (
        "the restart hook failed or the service did not come back",
        "see the detail",
        "run the hook by hand and read the service's log",
    ),
    "restart-did-nothing": (
        "the service's main process is the same after the restart",
        "the restart hook does not restart this service",
        "give the hook of the service that answers at the URL",
    ),
    "log-unreadable": (
        "the service's log could not be read",
        "the log command failed or says nothing",
        "check the command and the rights to run it",
    ),
    "program-error": ("the verification program failed", "a fault of its own", "report it with the detail"),
}


def judge(evidence: Evidence, expectations: Expectations) -> list[Finding]:
    """Judge what was seen. No findings of severity `error` means that the offload is proven.

    Args:
        evidence: what was seen; its own findings are not read.
        expectations: what should have been seen.
    """
    findings = [
        *_judge_bad_lines(evidence),
        *_judge_incidents(evidence),
        *_judge_prompt(evidence),
        *_judge_setting(evidence, expectations),
        *_judge_hash_seeds(evidence, expectations),
        *_judge_cold(evidence),
        *_judge_hit(evidence),
        *_judge_restart(evidence, expectations),
        *_judge_outputs(evidence),
        *_judge_exits(evidence),
    ]
    unique: dict[str, Finding] = {}
    for finding in findings:
        unique.setdefault(finding.id, finding)
    return sorted(unique.values(), key=lambda f: f.severity != ERROR)


def judge_part(evidence: Evidence) -> list[Finding]:
    """Judge one host's half of a proof across hosts: only what went wrong there; the rest needs both halves.

    Args:
        evidence: what was seen on one host.
    """
    return [*_judge_bad_lines(evidence), *_judge_incidents(evidence)]


def _judge_incidents(evidence: Evidence) -> Iterable[Finding]:
    for incident in evidence.incidents:
        message, cause, remedy = INCIDENTS.get(incident.kind, (incident.kind, "unknown", "read the detail"))
        yield Finding(incident.kind, ERROR, f"{message} ({incident.phase}): {incident.detail}", cause, remedy)


def _judge_bad_lines(evidence: Evidence) -> Iterable[Finding]:
    named = {bad.source for bad in evidence.bad_lines if bad.fault not in GENERIC_FAULTS}
    for bad in evidence.bad_lines:
        fault = FAULTS_BY_ID.get(bad.fault)
        # A process whose log names its fault needs no further finding for each traceback that follows from it.
        if fault is None or (bad.fault in GENERIC_FAULTS and bad.source in named):
            continue
        # What a process says on its way out cannot undo what was measured before.
        severity = WARNING if bad.stopping else fault.severity
        yield Finding(fault.id, severity, f"{fault.message} [{bad.source}]: {bad.line}", fault.cause, fault.remedy)


def _judge_prompt(evidence: Evidence) -> Iterable[Finding]:
    cold, chunk = evidence.request("cold"), evidence.chunk()
    if evidence.chunk_size_seen not in (None, evidence.chunk_size):
        yield Finding(
            "chunk-size-differs",
            WARNING,
            f"LMCache uses chunks of {evidence.chunk_size_seen} tokens, the playbook says {evidence.chunk_size}",
            "the running LMCache reads another configuration",
            "compare its configuration file and LMCACHE_* environment with the release's",
        )
    if cold is not None and cold.prompt_tokens is not None and cold.prompt_tokens < chunk + 1:
        yield Finding(
            "prompt-below-chunk",
            ERROR,
            f"the prompt has {cold.prompt_tokens} tokens, a chunk {chunk}: nothing can be stored and found again",
            "LMCache stores whole chunks only, and the last prompt token is always computed",
            f"use prompts of at least {chunk + 1} tokens, better {2 * chunk + 1}",
        )


def _same_device(seen: str, wanted: str) -> bool:
    """Whether a device is the wanted one; either may come without its number."""
    kinds_agree = seen.partition(":")[0] == wanted.partition(":")[0]
    return seen == wanted or (kinds_agree and (":" not in seen or ":" not in wanted))


def _judge_setting(evidence: Evidence, expectations: Expectations) -> Iterable[Finding]:
    yield from _judge_connector(evidence, expectations)
    if expectations.device is not None and not (evidence.device and _same_device(evidence.device, expectations.device)):
        yield Finding(
            "wrong-device",
            ERROR,
            f"the KV cache is on {evidence.device or 'no device that could be seen'}, expected {expectations.device}",
            "the vendor's plugin was not loaded, or the device is not visible to the process",
            "check the plugin, its import order and the device nodes in the service's sandbox",
        )
    for text in expectations.log_text:
        if not evidence.log_text_seen.get(text, False):
            yield Finding(
                "log-text-missing",
                ERROR,
                f"the log never says {text!r}",
                "the part that writes it was not loaded, or the log level hides it",
                "set VLLM_LOGGING_LEVEL=INFO and check the plugin",
            )
    for name, version in expectations.versions.items():
        if evidence.versions.get(name) != version:
            yield Finding(
                "version-differs",
                ERROR,
                f"{name} is {evidence.versions.get(name, 'not installed')}, expected {version}",
                "the environment is not the release's",
                "run the verification with the release's Python",
            )


def _judge_connector(evidence: Evidence, expectations: Expectations) -> Iterable[Finding]:
    seen, module = evidence.connector.get("class"), evidence.connector.get("module")
    wanted = expectations.connector_class
    if wanted is not None and seen != wanted:
        yield Finding(
            "connector-not-loaded",
            ERROR,
            f"the engine made {'no connector that its log tells of' if seen is None else 'connector ' + seen}, "
            f"expected {wanted}",
            "kv-transfer-config was not passed, names another connector, or the start failed before",
            "check the engine's command line",
        )
    elif expectations.connector_module is not None and module not in (None, expectations.connector_module):
        yield Finding(
            "connector-module-differs",
            ERROR,
            f"connector {seen} came from {module}, expected {expectations.connector_module}",
            "a connector of the same name is registered by another package (vllm brings its own copy)",
            "set kv_connector_module_path",
        )


def _judge_hash_seeds(evidence: Evidence, expectations: Expectations) -> Iterable[Finding]:
    if expectations.hash_seed == "ignored":
        return
    severity = ERROR if expectations.hash_seed == "required" else WARNING
    missing = [name for name, seed in evidence.hash_seeds.items() if seed in (None, "", "random")]
    values = {seed for seed in evidence.hash_seeds.values() if seed not in (None, "", "random")}
    fault = FAULTS_BY_ID["hashseed-missing"]
    if missing:
        yield Finding(
            "hashseed-missing",
            severity,
            f"no PYTHONHASHSEED in the environment of {', '.join(missing)}",
            fault.cause + ": " + fault.message,
            fault.remedy,
        )
    if len(values) > 1:
        yield Finding(
            "hashseed-differs",
            severity,
            f"processes run with different PYTHONHASHSEED: {', '.join(sorted(str(v) for v in values))}",
            "it is set in some places by hand",
            fault.remedy,
        )


def _judge_cold(evidence: Evidence) -> Iterable[Finding]:
    cold = evidence.request("cold")
    if cold is None:
        if not evidence.incidents:
            yield Finding("no-cold-request", ERROR, "no cold request was measured", "unknown", "read the log")
        return
    if (cold.offloaded() or 0) > 0:
        yield Finding(
            "cold-not-cold",
            ERROR,
            f"{cold.offloaded()} tokens of the cold prompt were in the cache already",
            "the prompt is not unique to this run",
            "leave prompt.nonce out so that each run makes its own prompt",
        )
    # Where nothing can tell of the store, a hit of what was cold a moment ago does.
    told = (
        evidence.server_elsewhere
        and cold.stored is None
        and any((request.offloaded() or 0) > 0 for request in evidence.requests)
    )
    if not cold.stored and not told:
        yield Finding(
            "nothing-stored",
            ERROR,
            "the cold request stored no token"
            if cold.stored == 0
            else "nothing tells that the cold request stored anything: no log line, no metric",
            _why_nothing(evidence),
            "mend what the other findings name; then run again",
        )


def _why_nothing(evidence: Evidence) -> str:
    """The likeliest reason for an empty cache among what was seen."""
    faults = {bad.fault for bad in evidence.bad_lines}
    if faults & {"degraded-mode", "unsupported-platform", "no-device-connector"}:
        return "LMCache runs in degraded mode: the engine starts, answers and passes /health, and caches nothing"
    cold = evidence.request("cold")
    if cold and cold.prompt_tokens is not None and cold.prompt_tokens < evidence.chunk():
        return "the prompt is shorter than a chunk"
    if not evidence.has_engine():
        return "the server took nothing in: its memory tier, its chunk size, or an error in its log"
    if evidence.connector.get("class") is None:
        return "no KV connector was loaded"
    return "the connector is there and stores nothing: role, chunk size, or an error in the log"


def _judge_hit(evidence: Evidence) -> Iterable[Finding]:
    hit = evidence.request("hit")
    if hit is None:
        restart = evidence.request("restart")
        if not evidence.incidents and not (restart and restart.offloaded()):
            yield Finding("no-hit", ERROR, "no request for a hit was measured", "unknown", "read the log")
        return
    yield from _judge_offload(evidence, hit, "no-hit", "the same prefix again")
    if hit.busy:
        yield Finding(
            "busy-service",
            WARNING,
            "other requests ran while it was measured; their tokens were subtracted from the counters",
            "the service is in use",
            "repeat on a quiet or drained host for exact figures",
        )


def _judge_offload(evidence: Evidence, request: Request, finding_id: str, what: str) -> Iterable[Finding]:
    """Judge a request that should have been served from outside the engine."""
    got = request.offloaded()
    if not got and (request.local_hits or 0) > 0:
        yield Finding(
            "hit-from-engine-prefix-cache",
            ERROR,
            f"{what}: {request.local_hits} tokens came from the engine's own prefix cache and none from LMCache",
            "the engine's prefix cache answered first; that says nothing about the offload",
            "reset it (VLLM_SERVER_DEV_MODE=1, POST /reset_prefix_cache), switch it off, or restart the engine between",
        )
    elif not got:
        yield Finding(
            finding_id,
            ERROR,
            f"{what}: no token came from LMCache"
            + ("" if got == 0 else " as far as can be told (no metric and no log line)"),
            _why_no_hit(evidence, request),
            "mend what the other findings name; then run again",
        )
    elif request.prompt_tokens and got < (whole := (request.prompt_tokens - 1) // evidence.chunk() * evidence.chunk()):
        yield Finding(
            "partial-hit",
            WARNING,
            f"{what}: {got} of {whole} tokens in whole chunks came from LMCache",
            "part of the prefix was evicted, not yet stored, or still in the engine's own cache",
            "give LMCache's tier more room",
        )


def _why_no_hit(evidence: Evidence, request: Request) -> str:
    cold = evidence.request("cold")
    if cold is not None and not cold.stored:
        return _why_nothing(evidence)
    if any(seed in (None, "", "random") for seed in evidence.hash_seeds.values()):
        return "PYTHONHASHSEED is not set, so another process computes other keys"
    if request.phase == "restart" and evidence.has_engine():
        return "the tier did not outlive the engine, or the new process computes other keys (model path, hash seed)"
    return "it was stored but not found: evicted, or looked up under another key"


def _judge_restart(evidence: Evidence, expectations: Expectations) -> Iterable[Finding]:
    restart = evidence.request("restart")
    if restart is not None:
        what = "a new engine process" if evidence.has_engine() else "a new client process"
        yield from _judge_offload(evidence, restart, "no-hit-after-restart", what)
    elif expectations.restart == "required" and not evidence.incidents:
        yield Finding(
            "restart-not-shown",
            ERROR,
            "no retrieve by a new engine process was measured",
            "no restart was made",
            "give a restart hook, or say restart: not-applicable where no tier outlives the engine",
        )


def _judge_outputs(evidence: Evidence) -> Iterable[Finding]:
    equal = evidence.outputs_equal()
    if equal is False:
        differing = [c.phase for c in evidence.comparisons() if not c.equal]
        yield Finding(
            "outputs-differ",
            ERROR,
            f"the output with cached KV differs from the cold one ({', '.join(differing)})",
            "what came back is not what was stored: layout, dtype or a corrupted tier; or sampling is not greedy",
            "do not serve with this release; compare versions of connector and engine, and clear the tier",
        )
    elif equal is None and any(_said_nothing(evidence, r) for r in evidence.requests):
        yield Finding(
            "outputs-not-compared",
            ERROR,
            "an answer was empty",
            "the engine generated nothing",
            "read the engine's log",
        )
    gaps = [c for c in evidence.comparisons() if c.equal and c.gap is not None and c.gap > TIE]
    if gaps:
        yield Finding(
            "logprobs-differ",
            WARNING,
            f"the tokens are the same, but their log probabilities differ by up to {max(c.gap or 0 for c in gaps):.2f}",
            "KV data that is not quite what was stored: a lossy tier, another dtype",
            "compare with the engine's own prefix cache; a quantised tier does this by design",
        )
    cold = evidence.request("cold")
    if cold is not None and len(cold.output) > 3 and len(set(cold.output)) == 1:
        yield Finding(
            "outputs-tell-nothing",
            WARNING,
            "the model repeats one token, so equal outputs prove little",
            "a model too small or of too narrow a spread",
            "verify with the real model, or one of make_tiny_model.py",
        )


def _said_nothing(evidence: Evidence, request: Request) -> bool:
    """Whether a later answer is empty; a client that got nothing back has nothing to compare, and that is told."""
    got = evidence.has_engine() or bool(request.offloaded())
    return request.phase in ("hit", "restart") and not request.output and got


def _judge_exits(evidence: Evidence) -> Iterable[Finding]:
    for name, exit_ in evidence.exits.items():
        if exit_.killed:
            yield Finding(
                "had-to-be-killed",
                WARNING,
                f"{name} did not stop when asked and was killed",
                "it hung",
                "read the end of its log; a service unit needs a TimeoutStopSec",
            )
        elif not exit_.asked and exit_.code != 0:
            oom = exit_.code in (-9, 137)
            yield Finding(
                "out-of-memory" if oom else "bad-exit",
                ERROR,
                f"{name} ended with {exit_.code}",
                "killed from outside, by the kernel's out-of-memory killer as a rule" if oom else "an error of its own",
                FAULTS_BY_ID["out-of-memory"].remedy if oom else "read its log",
            )


# --- showing ----------------------------------------------------------------------------------------------------------


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:,.0f}{unit}" if unit == "" else f"{value:,.1f}{unit}"


def render(evidence: Evidence, width: int = 110) -> str:
    """The evidence as a short table for people.

    Args:
        evidence: judged evidence.
        width: longest line.
    """
    versions = " ".join(f"{name} {version}" for name, version in evidence.versions.items())
    connector = evidence.connector.get("class") or ("none seen" if evidence.has_engine() else "LMCache's own client")
    device = evidence.device or ("?" if evidence.has_engine() else "the host")
    verdict = "PROVEN" if evidence.ok() else "NOT PROVEN"
    lines = [
        f"KV offload {verdict}   mode {evidence.mode}, {connector} on {device}",
        f"  {versions}"[:width],
        f"  {'request':<10}{'prompt':>8}{'stored':>8}{'from LMCache':>14}{'own cache':>11}{'first token':>14}",
    ]
    for request in evidence.requests:
        lines.append(
            f"  {request.phase:<10}{_number(request.prompt_tokens):>8}{_number(request.stored):>8}"
            f"{_number(request.offloaded()):>14}{_number(request.local_hits):>11}{_number(request.ttft_ms, ' ms'):>14}"
        )
    equal = {True: "equal", False: "DIFFERENT", None: "not compared"}[evidence.outputs_equal()]
    ties = [f"{c.phase} from token {c.tie_at}" for c in evidence.comparisons() if c.tie_at is not None]
    equal += f" up to a tie ({', '.join(ties)})" if ties else ""
    as_own = [c.phase for c in evidence.comparisons() if c.same_as == "reference"]
    equal += f" ({', '.join(as_own)} as from the engine's own cache)" if as_own else ""
    lines.append(
        f"  outputs {equal}; chunk {evidence.chunk()} tokens; took {evidence.durations_s.get('total', 0):.0f} s"
    )
    if evidence.noise:
        lines.append("  harmless: " + ", ".join(f"{name} x{count}" for name, count in sorted(evidence.noise.items())))
    for finding in evidence.findings:
        lines.append(f"  {finding.severity.upper()} {finding.id}: {finding.message}"[:width])
        lines.append(f"    cause: {finding.cause}"[:width])
        lines.append(f"    remedy: {finding.remedy}"[:width])
    return "\n".join(lines)
