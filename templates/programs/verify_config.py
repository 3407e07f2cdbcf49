"""The configuration of a verification: strict JSON, read into dataclasses."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ENGINES = ("vllm", "sglang")
MODES = ("mp", "inprocess", "server", "service")


class ConfigError(Exception):
    """The configuration is unusable; the message names the key."""


@dataclass
class Limits:
    """How long things may take, in seconds.

    Args:
        total_s: the whole verification.
        start_s: an engine or server until it is ready.
        request_s: one request.
        stop_s: a process from being asked to stop until it is killed.
        settle_s: waiting for a store or a counter to show after a request.
    """

    total_s: float = 900.0
    start_s: float = 300.0
    request_s: float = 120.0
    stop_s: float = 20.0
    settle_s: float = 10.0


@dataclass
class Prompt:
    """What is asked.

    Args:
        tokens: prompt length; when left out four chunks and nine tokens, so few that the engine's own prefix cache and
            LMCache cover the same part of it, whatever the engine's block size.
        max_tokens: tokens to generate.
        seed: fixes the tokens together with the nonce.
        nonce: makes them unique to a run; drawn when left out, and written to the evidence.
        token_ids: lowest and one above the highest token id to use; the middle half of the model's vocabulary when left
            out, which keeps clear of single bytes and special tokens.
        logprobs: alternatives to ask for at each position, to tell a tie from a fault; when left out 5 in inprocess
            mode and 0 else: vLLM compiles a kernel for it on first use, and a service should not wait for that.
    """

    tokens: int | None = None
    max_tokens: int = 16
    seed: int = 0
    nonce: str | None = None
    token_ids: list[int] | None = None
    logprobs: int | None = None


@dataclass
class Engine:
    """The engine as a child process.

    Args:
        kind: `vllm` or `sglang` (mp, service).
        command: replaces `python -m vllm.entrypoints.openai.api_server` or `python -m sglang.launch_server`; the
            program's own options are appended (mp).
        args: further options (mp).
        env: environment on top of the common one.
        port: HTTP port on loopback; 0 picks a free one (mp).
        options: keyword arguments of vllm.LLM (inprocess).
        plugin_imports: modules to import after vllm, in every process (inprocess).
    """

    kind: str = "vllm"
    command: list[str] | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    plugin_imports: list[str] = field(default_factory=list)


@dataclass
class Server:
    """The LMCache server as a child process (mp, server).

    Args:
        command: replaces `python -m lmcache.cli.main server`; the program's own options are appended.
        args: further options.
        env: environment on top of the common one.
        port: ZMQ port on loopback; 0 picks a free one.
        http_port: HTTP port on loopback; 0 picks a free one.
        l1_size_gb: memory tier.
        l2_adapter: a second tier, as the server's --l2-adapter takes it.
        transfer_mode: --supported-transfer-mode; `auto` fits every engine.
        eviction_policy: --eviction-policy.
        restart: restart the server with the engine, to prove that the second tier is durable.
    """

    command: list[str] | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    http_port: int = 0
    l1_size_gb: float = 1.0
    l2_adapter: dict[str, Any] | None = None
    transfer_mode: str = "auto"
    eviction_policy: str = "LRU"
    restart: bool = False


@dataclass
class Client:
    """LMCache's own client, in the place of an engine (server).

    Args:
        command: replaces `python -m lmcache.cli.main bench server`; the program's own options are appended.
    """

    command: list[str] | None = None


@dataclass
class Service:
    """A service that runs already.

    Args:
        url: base URL of the OpenAI API, without /v1; in server mode of the LMCache server's HTTP side.
        rpc_url: where engines reach an LMCache server that runs already (server); one is started when left out.
        metrics_urls: the engine's metrics; `url`/metrics when left out.
        lmcache_metrics_urls: the LMCache server's metrics.
        restart_command: restarts the engine; returns when that is under way or done.
        log_command: prints the engine's (and server's) log on standard output, from its last start at least.
        pid: main process of the engine.
        pid_command: prints that process id; wins over `pid`, since it knows the new one after a restart.
        reset: `auto` tries to empty the engine's own prefix cache by a request, `never` does not.
        api_key_file: file with the API key.
        part: `all`; `store` and `retrieve` are the two halves of a proof across hosts, which only both together give.
    """

    url: str = ""
    rpc_url: str = ""
    metrics_urls: list[str] = field(default_factory=list)
    lmcache_metrics_urls: list[str] = field(default_factory=list)
    restart_command: list[str] | None = None
    log_command: list[str] | None = None
    pid: int | None = None
    pid_command: list[str] | None = None
    reset: str = "auto"
    api_key_file: str | None = None
    part: str = "all"


@dataclass
class Expect:
    """What must be seen.

    Args:
        connector_class: class of the KV connector; the connector's name when left out.
        connector_module: module it must come from; its module path when left out.
        device: `npu:0`, `cpu`; not judged when left out.
        log: texts that must appear in the engine's log.
        restart: `required` or `not-applicable`.
        hash_seed: `required`, `advised` or `ignored`; when left out `advised` in mp and server mode, whose keys are
            blake3 hashes, and `required` else.
        versions: distribution to version.
        forbidden_noise: names of harmless noise that is not to be let pass.
    """

    connector_class: str | None = None
    connector_module: str | None = None
    device: str | None = None
    log: list[str] = field(default_factory=list)
    restart: str = "required"
    hash_seed: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    forbidden_noise: list[str] = field(default_factory=list)


@dataclass
class Config:
    """A verification.

    Args:
        mode: `mp`, `inprocess`, `server` or `service`.
        model: directory of the model; in service mode the name that the service gives it; left out in server mode.
        chunk_size: tokens in a chunk of LMCache.
        connector: vLLM's kv_transfer_config; host and port of an mp server are filled in. SGLang has none.
        env: environment of all child processes.
        logs: directory for their logs; beside the evidence when left out.
    """

    mode: str
    model: str = ""
    chunk_size: int = 256
    connector: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    logs: str | None = None
    prompt: Prompt = field(default_factory=Prompt)
    limits: Limits = field(default_factory=Limits)
    engine: Engine = field(default_factory=Engine)
    server: Server = field(default_factory=Server)
    client: Client = field(default_factory=Client)
    service: Service = field(default_factory=Service)
    expect: Expect = field(default_factory=Expect)

    def server_elsewhere(self) -> bool:
        """Whether the LMCache server runs on another host, whose log and counters can't be read from here."""
        extra = self.connector.get("kv_connector_extra_config") or {}
        named = isinstance(extra, dict) and "lmcache.mp.host" in extra
        return self.mode == "service" and named and not self.service.lmcache_metrics_urls

    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.prompt.tokens if self.prompt.tokens is not None else 4 * self.chunk_size + 9

    def prompt_ids(self, purpose: str) -> list[int]:
        """Token ids of a prompt: the same for the same seed, nonce and purpose."""
        low, high = self.prompt.token_ids or _middle_of_vocabulary(self.model)
        source = random.Random(f"{self.prompt.seed}:{self.prompt.nonce}:{purpose}")  # noqa: S311 - not a secret
        return [source.randrange(low, high) for _ in range(self.prompt_tokens())]


def _middle_of_vocabulary(model: str) -> tuple[int, int]:
    """Ids that are ordinary words in about any vocabulary of the model's size."""
    try:
        size = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1000, 20000
    return (size // 4, size * 3 // 4) if isinstance(size, int) and size >= 8 else (1000, 20000)


T = TypeVar("T")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type as it is used in this module's dataclasses."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(v, arguments[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, arguments[1]) for v in value.values())
    if arguments:
        return any(_fits(value, a) for a in arguments)
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _as_text(value: Any, hint: Any) -> Any:
    """Numbers among options and variables as the text that a command gets; all else as it is."""

    def text(item: Any) -> Any:
        return str(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else item

    arguments = get_args(hint)
    if isinstance(value, list) and (list[str] in (hint, *arguments)):
        return [text(item) for item in value]
    if isinstance(value, dict) and hint == dict[str, str]:
        return {name: text(item) for name, item in value.items()}
    return value


def _read(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from JSON, unknown keys and wrong types refused."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or 'the configuration'} must be an object")
    hints = get_type_hints(kind)
    read: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            near = get_close_matches(key, hints, n=1)
            raise ConfigError(f"unknown key {path}" + (f"; did you mean {near[0]}?" if near else ""))
        hint = hints[key]
        if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
            read[key] = _read(hint, item, path)
        elif _fits(item := _as_text(item, hint), hint):
            read[key] = item
        else:
            raise ConfigError(f"{path} has the wrong type: {json.dumps(item)[:80]}")
    return kind(**read)


def _check_there(config: Mapping[str, Any]) -> None:
    needed = ("mode",) if config.get("mode") == "server" else ("mode", "model")
    missing = [name for name in needed if name not in config]
    if missing:
        raise ConfigError(f"missing key {', '.join(missing)}")


def _check(config: Config) -> None:
    """Refuse values that could not work.

    Raises:
        ConfigError: naming the key.
    """
    choices = {
        "mode": (config.mode, MODES),
        "engine.kind": (config.engine.kind, ENGINES),
        "expect.restart": (config.expect.restart, ("required", "not-applicable")),
        "expect.hash_seed": (config.expect.hash_seed, (None, "required", "advised", "ignored")),
        "service.reset": (config.service.reset, ("auto", "never")),
        "service.part": (config.service.part, ("all", "store", "retrieve")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            raise ConfigError(f"{key} is {value!r}, must be one of {', '.join(str(a) for a in allowed)}")
    brings_connector = config.engine.kind != "vllm"
    if config.mode == "inprocess" and brings_connector:
        raise ConfigError(f"engine.kind is {config.engine.kind!r}: inprocess mode is vLLM's; use mp")
    if config.mode in ("mp", "inprocess") and not brings_connector and not config.connector.get("kv_connector"):
        raise ConfigError("connector.kv_connector is missing")
    running = config.mode == "service" or config.service.rpc_url
    if running and not config.service.url.startswith(("http://", "https://")):
        raise ConfigError("service.url must be an http URL")
    named = config.expect.connector_class or config.connector.get("kv_connector")
    if config.mode == "service" and not brings_connector and not named:
        raise ConfigError("connector.kv_connector or expect.connector_class is missing")
    if config.chunk_size < 1 or config.prompt_tokens() < 1 or config.prompt.max_tokens < 1:
        raise ConfigError("chunk_size, prompt.tokens and prompt.max_tokens must be positive")
    ids = config.prompt.token_ids
    if ids is not None and (len(ids) != 2 or not 0 <= ids[0] < ids[1]):
        raise ConfigError("prompt.token_ids must be [low, high] with 0 <= low < high")
    if any(getattr(config.limits, f.name) <= 0 for f in fields(config.limits)):
        raise ConfigError("limits must be positive")


def parse(value: Any) -> Config:
    """Read a configuration from JSON values and fill in what depends on other keys.

    Raises:
        ConfigError: naming the key.
    """
    if isinstance(value, Mapping):
        _check_there(value)
    config = _read(Config, value, "")
    _check(config)
    expect = config.expect
    expect.connector_class = expect.connector_class or config.connector.get("kv_connector")
    expect.connector_module = expect.connector_module or config.connector.get("kv_connector_module_path")
    expect.hash_seed = expect.hash_seed or ("advised" if config.mode in ("mp", "server") else "required")
    if config.prompt.logprobs is None:
        config.prompt.logprobs = 5 if config.mode == "inprocess" else 0
    config.prompt.nonce = config.prompt.nonce or secrets.token_hex(8)
    return config


def load(path: Path) -> Config:
    """Read a configuration file.

    Raises:
        ConfigError: unreadable, not JSON, or not a configuration.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
