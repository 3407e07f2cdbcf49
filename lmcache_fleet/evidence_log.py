"""Reading the logs of vLLM and LMCache: figures, proof, faults, and noise that is known to be harmless.

Pure and stdlib only, like `evidence`, and carried to the target with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ERROR, WARNING = "error", "warning"
MAX_LINES = 20
MAX_LINE = 400


@dataclass(slots=True)
class BadLine:
    """A log line that speaks against the run.

    Args:
        fault: id in `FAULTS`.
        source: which process's log.
        line: the line, without colour and cut to a readable length.
        stopping: it was written after the process had been asked to stop.
    """

    fault: str
    source: str
    line: str
    stopping: bool = False


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def strip_ansi(text: str) -> str:
    """Text without terminal colours; LMCache colours its log even in a file."""
    return _ANSI.sub("", text)


@dataclass(frozen=True, slots=True)
class Noise:
    """A message that looks bad and is known to be harmless.

    Args:
        name: what it is allowed by.
        pattern: regular expression for its line.
        at_exit: harmless only once the process was asked to stop.
        why: the reason to let it pass.
    """

    name: str
    pattern: re.Pattern[str]
    at_exit: bool
    why: str


NOISE = (
    Noise(
        "zmq-pfd-revents",
        re.compile(r"Assertion failed: pfd\.revents"),
        False,
        "ZMQ loses a race with the engine's exit; the exit status stays 0",
    ),
    Noise(
        "engine-core-exit",
        re.compile(
            r"Engine ?[Cc]ore.*(died unexpectedly|exited|shut ?down|terminated)|EngineDeadError"
            r"|[Ww]orker proc.*(died|terminated)|Parent process exited"
        ),
        True,
        "the front end notices that its core went first",
    ),
    Noise(
        "output-handler-at-exit",
        re.compile(r"\[async_llm\.py:\d+\]"),
        True,
        "vLLM's front end logs the end of its core as an error, traceback and all, when it is asked to stop",
    ),
    Noise(
        "exit-cancelled",
        re.compile(r"CancelledError|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|Context was terminated"),
        True,
        "what was pending when the process was asked to stop",
    ),
    Noise(
        "resource-tracker",
        re.compile(r"resource_tracker: (There appear to be|.*No such file or directory)"),
        False,
        "Python counts shared objects that another process already removed",
    ),
    Noise(
        "process-group-not-destroyed",
        re.compile(r"destroy_process_group\(\) was not called"),
        False,
        "torch's advice at exit",
    ),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A log message that speaks against the run.

    Args:
        id: name of the finding.
        pattern: regular expression for its line.
        message: what it says.
        cause: the likely reason.
        remedy: what to do.
        fatal: waiting any longer is of no use.
        severity: `error` or `warning`.
    """

    id: str
    pattern: re.Pattern[str]
    message: str
    cause: str
    remedy: str
    fatal: bool = False
    severity: str = ERROR


FAULTS = (
    Fault(
        "transfer-mode-mismatch",
        re.compile(r"No handler registered for operation \w*register_kv_cache\w*", re.I),
        "the LMCache server does not know the transfer mode that the engine asks for",
        "the server was started with its default transfer mode (lmcache_driven), the engine uses another "
        "(engine_driven); the engine then hangs in start for ever",
        "start the server with --supported-transfer-mode auto, or set the same mode on both sides",
        fatal=True,
    ),
    Fault(
        "unsupported-platform",
        re.compile(r"Unsupported device platform for LMCache engine"),
        "LMCache found no device that it supports",
        "LMCache's device detection saw another accelerator than the engine's: the vendor plugin was not imported, or "
        "not after vllm, or this LMCache has no support for the device",
        "import the vendor's plugin after vllm in every process; on a CPU use the MP connector, LMCache 0.5.6 or later",
    ),
    Fault(
        "no-device-connector",
        re.compile(r"No supported \w+ connector found"),
        "LMCache's in-process engine has no connector for this device",
        "the in-process connector does not support the device; only the MP connector may",
        "use LMCacheMPConnector with an LMCache server, or the vendor's own connector",
    ),
    Fault(
        "degraded-mode",
        re.compile(r"System will operate in degraded mode"),
        "LMCache gave up at start and runs in degraded mode: the engine answers and caches nothing",
        "LMCache's engine could not start; the line before says why",
        "mend the reason in the bad lines; /health will not show it",
    ),
    Fault(
        "hashseed-missing",
        re.compile(r"Using builtin hash without PYTHONHASHSEED set"),
        "token hashes are random in each process: nothing stored by one process is found by another",
        "PYTHONHASHSEED is not set",
        "set PYTHONHASHSEED to one fixed number for every engine and server process of the fleet",
    ),
    Fault(
        "connector-signature",
        re.compile(r"deprecated 2-argument constructor signature"),
        "vLLM refuses the connector: its constructor does not take kv_cache_config",
        "LMCache-Ascend v0.4.4 and older with a vLLM that dropped the two-argument form",
        "apply the connector patch or take a connector made for this vLLM",
        fatal=True,
    ),
    Fault(
        "connector-not-found",
        re.compile(r"Unsupported connector type|Connector '\S+' is not registered|Class \S+ not found in \S*connector"),
        "vLLM does not know the connector",
        "a wrong connector name or module path, or the plugin that registers it was not loaded",
        "check kv_connector and kv_connector_module_path against the installed plugin",
        fatal=True,
    ),
    Fault(
        "library-missing",
        re.compile(
            r"\blib(atb|hccl|ascend_hal|ascendcl|runtime|cudart|cuda|numa)[\w.-]*\.so[\w.]*: cannot open shared object"
        ),
        "a vendor library cannot be loaded",
        "the toolkit's environment was not sourced for this process, or the driver is not there",
        "put the toolkit_env step before the service, and check the driver",
        fatal=True,
    ),
    Fault(
        "triton-mixture",
        re.compile(r"'>=' not supported between instances of 'NoneType' and 'tuple'"),
        "torch found another triton than the vendor's",
        "community triton was installed over triton-ascend",
        "reinstall triton-ascend with --force-reinstall --no-deps as the last step",
    ),
    Fault(
        "out-of-memory",
        re.compile(
            r"out of memory|OutOfMemoryError|\bMemoryError\b|Cannot allocate memory|No space left on device"
            r"|No available memory for the cache blocks|oom-kill",
            re.I,
        ),
        "memory, device memory or disk ran out",
        "the model, the engine's KV cache and LMCache's tier together need more than there is",
        "lower gpu_memory_utilization, VLLM_CPU_KVCACHE_SPACE, max_model_len or LMCache's size; free /dev/shm and disk",
    ),
    Fault(
        "pinned-memory",
        re.compile(r"Unable to pin host memory|halHostRegister|register ptr failed|aclrtMallocHost"),
        "host memory could not be pinned",
        "the memlock limit, an old driver, or one allocation too large",
        "set LimitMEMLOCK=infinity in the unit, take driver 24.1 or later, or lower LMCACHE_MAX_LOCAL_CPU_SIZE",
    ),
    Fault(
        "transfer-error",
        re.compile(
            r"^(?=.*\b(LMCache WARNING|ERROR|CRITICAL)\b)(?=.*(?i:fail|unable|exception|mismatch|timed out))"
            r"(?=.*(?i:\b(retriev|store\b|storing|transfer\b(?!-)|prefetch|offload|kv load|layout)))"
        ),
        "LMCache failed to store, transfer or load KV data",
        "layout or transfer between engine and cache went wrong",
        "read the lines around it; a wrong chunk size, a full tier and mixed versions are the usual reasons",
    ),
    Fault(
        "cache-server-unreachable",
        re.compile(
            r"LMCache.*(server|heartbeat).*(unreachable|timed out|unhealthy|not responding|lost)"
            r"|Failed to connect to.*LMCache",
            re.I,
        ),
        "the engine lost the LMCache server",
        "the server is not running, another port was configured, or it died",
        "check that the server runs and that lmcache.mp.host and lmcache.mp.port name it",
    ),
    Fault(
        "engine-died",
        re.compile(
            r"EngineDeadError|EngineCore encountered (a fatal error|an issue)|Engine core initialization failed"
            r"|EngineCore failed to start|died unexpectedly|WorkerProc (failed|hit an exception)"
            r"|(Scheduler|DetokenizerManager|TokenizerManager) hit an exception|Received sigquit from a child process"
        ),
        "the engine died",
        "an error in the engine core or a worker; the lines before say which",
        "read the engine's log from its first error",
        fatal=True,
    ),
    Fault(
        "engine-stalled",
        re.compile(r"No available shared memory broadcast block found in \d+ seconds"),
        "a worker has not answered the engine for a minute",
        "a worker hangs, usually in its call to the cache server",
        "compare transfer modes and ports of engine and server",
        severity=WARNING,
    ),
    Fault(
        "port-in-use",
        re.compile(r"[Aa]ddress already in use"),
        "a port is taken",
        "another process, perhaps an older run, listens there",
        "stop it or choose another port",
    ),
    Fault(
        "traceback",
        re.compile(r"Traceback \(most recent call last\)"),
        "a Python error in the log",
        "see the line",
        "read the log from its first error",
    ),
    Fault(
        "log-error",
        re.compile(r"^(\([^)]*\) )?(ERROR|CRITICAL)\b|\bLMCache (ERROR|CRITICAL)\b"),
        "an error line in the log",
        "see the line",
        "read the log around it",
    ),
)
FAULTS_BY_ID = {fault.id: fault for fault in FAULTS}
GENERIC_FAULTS = frozenset({"traceback", "log-error"})

_STORED = re.compile(r"Stored (\d+) (?:out of total (\d+) )?tokens")
_RETRIEVED = re.compile(r"Retrieved (\d+) (?:out of (\d+)(?: required)?(?: out of total \d+)? )?tokens")
# vLLM names the connector that it makes; SGLang's tells by itself that it is there.
_CONNECTOR = re.compile(r"Creating v1 connector with name: (\S+)|\b(\w*LMCacheMP\w*Connector) initialized")
# LMCache ends each line with (file:line:module). The echo of the command line names the module too, and proves nothing.
_ORIGIN = re.compile(r"\(\w+\.py:\d+:([\w.]+)\)\s*$")
_CONNECTOR_MODULE = re.compile(r"\.integration\.|connector[^.]*$")
_DEVICE = re.compile(r"Creating transfer context \(device_type=(\w+)|Using (\w+) for LMCache engine")
_CHUNK = re.compile(r"TokenHasher initialized: chunk_size=(\d+)|LMCache config.*?\bchunk_size['\"]?\s*[:=]\s*(\d+)")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$")
_ALSO_PROOF = re.compile(
    r"Creating transfer context|Registered non-\w+ context|Prefetch request completed|transfer strategy"
)


@dataclass(slots=True)
class LogFacts:
    """What a stretch of log says.

    Args:
        stored: sum of tokens stored.
        retrieved: sum of tokens retrieved.
        stores: lines that said so.
        retrieves: lines that said so.
        connector_class: connector that the engine made.
        connector_modules: connector modules that wrote a line.
        device: device of the KV cache.
        chunk_size: tokens in a chunk.
        proof: lines that prove something.
        noise: harmless messages by name.
        bad: lines against it.
    """

    stored: int = 0
    retrieved: int = 0
    stores: int = 0
    retrieves: int = 0
    connector_class: str | None = None
    connector_modules: list[str] = field(default_factory=list)
    device: str | None = None
    chunk_size: int | None = None
    proof: list[str] = field(default_factory=list)
    noise: dict[str, int] = field(default_factory=dict)
    bad: list[BadLine] = field(default_factory=list)


def _noise_of(line: str, stopping: bool, forbidden: Sequence[str]) -> str | None:
    for noise in NOISE:
        if noise.name not in forbidden and (stopping or not noise.at_exit) and noise.pattern.search(line):
            return noise.name
    return None


def faults_of(line: str) -> list[Fault]:
    """The faults that a line tells of: all specific ones, or else the first general one."""
    found = [fault for fault in FAULTS if fault.pattern.search(line)]
    return [fault for fault in found if fault.id not in GENERIC_FAULTS] or found[:1]


def _read_figures(line: str, facts: LogFacts) -> None:
    """Collect what a harmless line says about tokens, connector, device and chunk size."""
    if found := _STORED.search(line):
        facts.stored += int(found[1])
        facts.stores += 1
        facts.proof.append(line[:MAX_LINE])
    elif found := _RETRIEVED.search(line):
        facts.retrieved += int(found[1])
        facts.retrieves += 1
        facts.proof.append(line[:MAX_LINE])
    elif found := _CONNECTOR.search(line):
        facts.connector_class = found[1] or found[2]
        facts.proof.append(line[:MAX_LINE])
    elif _ALSO_PROOF.search(line):
        facts.proof.append(line[:MAX_LINE])
    if found := _DEVICE.search(line):
        facts.device = (found[1] or found[2]).lower()
    if found := _CHUNK.search(line):
        facts.chunk_size = int(found[1] or found[2])
    origin = _ORIGIN.search(line)
    if origin and _CONNECTOR_MODULE.search(origin[1]) and origin[1] not in facts.connector_modules:
        facts.connector_modules.append(origin[1])


def read_log(text: str, source: str, stopping: bool = False, forbidden_noise: Sequence[str] = ()) -> LogFacts:
    """Read a stretch of log.

    Args:
        text: as written, colours and all.
        source: name of the process, for the bad lines.
        stopping: it was written after the process had been asked to stop.
        forbidden_noise: names of noise that counts as bad here.
    """
    facts = LogFacts()
    lines = [line.rstrip() for line in strip_ansi(text).splitlines()]
    for number, line in enumerate(lines):
        if name := _noise_of(line, stopping, forbidden_noise):
            facts.noise[name] = facts.noise.get(name, 0) + 1
            continue
        faults = faults_of(line)
        if not faults:
            _read_figures(line, facts)
            continue
        shown = line.strip()
        if faults[0].id == "traceback":
            shown = _exception_after(lines, number) or shown
            if stopping and _noise_of(shown, stopping, forbidden_noise):
                continue
        facts.bad.extend(BadLine(fault.id, source, shown[:MAX_LINE], stopping) for fault in faults)
    return facts


def _exception_after(lines: Sequence[str], start: int) -> str | None:
    """The line that names the exception of the traceback that starts at a line."""
    for line in lines[start + 1 : start + 200]:
        text = re.sub(r"^\([^)]*\) (?:ERROR|CRITICAL)?[^\]]*\] ?", "", line)
        if (found := _EXCEPTION.match(text)) is not None:
            return found[1]
    return None


def fatal_fault(text: str) -> Fault | None:
    """The first fault in a log after which waiting is of no use."""
    for line in strip_ansi(text).splitlines():
        fatal = next((fault for fault in faults_of(line) if fault.fatal), None)
        if fatal is not None and _noise_of(line, False, ()) is None:
            return fatal
    return None


def few_bad_lines(lines: Iterable[BadLine]) -> list[BadLine]:
    """At most `MAX_LINES` bad lines: the first of each kind, then general ones in order; repeats are dropped."""
    seen: dict[tuple[str, str], BadLine] = {}
    for line in lines:
        seen.setdefault((line.fault, line.line), line)
    specific = [b for b in seen.values() if b.fault not in GENERIC_FAULTS]
    general = [b for b in seen.values() if b.fault in GENERIC_FAULTS]
    return (specific + general)[:MAX_LINES]


def few_proof_lines(lines: Sequence[str]) -> list[str]:
    """At most a dozen proof lines: first and last of those with token counts, then the first others."""
    unique = list(dict.fromkeys(lines))
    counts = [line for line in unique if _STORED.search(line) or _RETRIEVED.search(line)]
    others = [line for line in unique if line not in counts]
    return [*(counts if len(counts) <= 8 else counts[:4] + counts[-4:]), *others[:4]]
