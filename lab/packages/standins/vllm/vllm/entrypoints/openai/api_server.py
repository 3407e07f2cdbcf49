"""The HTTP server with OpenAI's interface."""

import argparse
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab_engine.http import Connection, Listener
from lab_engine.toy import Request

from vllm.engine.arguments import IGNORED, USED, make_config
from vllm.engine.core import Engine, EngineDeadError
from vllm.entrypoints.llm import exit_noise
from vllm.logger import init_logger
from vllm.version import __version__

logger = init_logger("vllm.entrypoints.openai.api_server")

SERVER = [
    "uvicorn_log_level",
    "disable_uvicorn_access_log",
    "allow_credentials",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
    "ssl_keyfile",
    "ssl_certfile",
    "root_path",
    "middleware",
    "chat_template",
    "response_role",
    "enable_auto_tool_choice",
    "tool_call_parser",
    "reasoning_parser",
    "max_log_len",
    "enable_log_requests",
    "disable_log_requests",
    "log_config_file",
    "disable_fastapi_docs",
    "lora_modules",
    "prompt_adapters",
    "return_tokens_as_token_ids",
    "api_server_count",
    "headless",
    "disable_frontend_multiprocessing",
    "h11_max_incomplete_event_size",
    "h11_max_header_count",
    "enable_server_load_tracking",
    "enable_force_include_usage",
    "shutdown_timeout",
]


def _flag(name: str) -> list[str]:
    return sorted({"--" + name.replace("_", "-"), "--" + name})


def make_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of ``vllm serve``."""
    types = {"max_model_len": int, "gpu_memory_utilization": float, "block_size": int}
    for name, default in USED.items():
        if isinstance(default, bool):
            parser.add_argument(*_flag(name), action=argparse.BooleanOptionalAction, default=None)
        elif name == "served_model_name":
            parser.add_argument(*_flag(name), nargs="+", default=None)
        elif name != "model":
            kind = types.get(name, int if isinstance(default, int) else str)
            parser.add_argument(*_flag(name), type=kind, default=None)
    parser.add_argument("--model", default=None)
    parser.add_argument("--tp", "-tp", dest="tensor_parallel_size", type=int, default=None)
    for name in IGNORED + SERVER:
        parser.add_argument(*_flag(name), nargs="?", const=True, default=None)
    parser.add_argument("--host", default=None)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds", default=None)
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"))
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--config", default=None)
    return parser


def apply_config_file(words: list[str]) -> list[str]:
    """Puts the entries of a ``--config`` file before the other options, so that the command line wins."""
    if "--config" not in words:
        return words
    import yaml

    at = words.index("--config")
    entries = yaml.safe_load(Path(words[at + 1]).read_text()) or {}
    extra: list[str] = []
    for key, value in entries.items():
        if value is True:
            extra.append(f"--{key}")
        elif value is not False and value is not None:
            extra += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*extra, *words[:at], *words[at + 2 :]]


class Server:
    """The engine and what all requests share."""

    def __init__(self, args: argparse.Namespace, engine: Engine) -> None:
        self.args = args
        self.engine = engine
        names = args.served_model_name or [args.model]
        self.names = [names] if isinstance(names, str) else list(names)
        self.started = int(time.time())
        self.dev = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        self.fatal = threading.Event()

    def metrics(self) -> str:
        """The exposition text."""
        stats, name = self.engine.stats, self.names[0]
        label = f'{{engine="0",model_name="{name}"}}'
        finished = f'{{engine="0",finished_reason="length",model_name="{name}"}}'
        lines: list[str] = []

        def add(kind: str, metric: str, value: float, labels: str = label) -> None:
            base = metric.removesuffix("_total") if kind == "counter" else metric
            lines.append(f"# HELP vllm:{base} Stand-in.")
            lines.append(f"# TYPE vllm:{base} {kind}")
            lines.append(f"vllm:{metric}{labels} {float(value)}")

        add("gauge", "num_requests_running", self.engine.running)
        add("gauge", "num_requests_waiting", 0)
        add("gauge", "kv_cache_usage_perc", min(1.0, len(self.engine.cache) / 4096))
        add("counter", "prefix_cache_queries_total", stats["local_queries"])
        add("counter", "prefix_cache_hits_total", stats["local_hits"])
        add("counter", "external_prefix_cache_queries_total", stats["external_queries"])
        add("counter", "external_prefix_cache_hits_total", stats["external_hits"])
        add("counter", "prompt_tokens_total", stats["prompt"])
        add("counter", "generation_tokens_total", stats["generated"])
        add("counter", "num_preemptions_total", 0)
        add("counter", "request_success_total", stats["finished"], finished)
        lines.append("# HELP vllm:time_to_first_token_seconds Stand-in.")
        lines.append("# TYPE vllm:time_to_first_token_seconds histogram")
        lines.append(
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="{name}"}} {stats["finished"]}'
        )
        lines.append(f"vllm:time_to_first_token_seconds_count{label} {stats['finished']}")
        lines.append(f"vllm:time_to_first_token_seconds_sum{label} {stats['ttft']}")
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            for connector in self.engine.connectors:
                inner = getattr(connector, "_lmcache_engine", None)
                for metric, value in (getattr(inner, "metrics", dict)() or {}).items():
                    lines.append(f"# TYPE lmcache:{metric} counter")
                    lines.append(f'lmcache:{metric}_total{{model_name="{name}"}} {float(value)}')
        return "\n".join(lines) + "\n"


class Handler(Connection):
    """One connection."""

    shared: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Access lines as uvicorn writes them."""
        if not self.shared.args.disable_uvicorn_access_log:
            host, port = self.client_address[:2]
            sys.stdout.write(f'INFO:     {host}:{port} - "{self.requestline}" {args[1] if len(args) > 1 else ""}\n')

    def do_GET(self) -> None:
        """Queries."""
        path = self.path.partition("?")[0]
        shared = self.shared
        if path in ("/health", "/ping"):
            self.send_whole(503 if shared.engine.dead else 200, b"", "text/plain")
        elif path == "/metrics":
            self.send_whole(200, shared.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/version":
            self.send_as_json({"version": __version__})
        elif path == "/load":
            self.send_as_json({"server_load": shared.engine.running})
        elif path == "/v1/models" and self._allowed():
            models = [
                {"id": name, "object": "model", "created": shared.started, "owned_by": "vllm",
                 "root": shared.args.model, "parent": None, "max_model_len": shared.engine.model.max_model_len}
                for name in shared.names
            ]  # fmt: skip
            self.send_as_json({"object": "list", "data": models})
        elif path != "/v1/models":
            self.send_as_json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        """Commands."""
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        path = self.path.partition("?")[0]
        routes: dict[str, Callable[[dict[str, Any]], None]] = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        if path == "/reset_prefix_cache" and self.shared.dev:
            self.shared.engine.reset_prefix_cache()
            self.send_whole(200, b"", "text/plain")
            return
        if path not in routes:
            self.send_as_json({"detail": "Not Found"}, 404)
            return
        if not self._allowed():
            return
        try:
            body = json.loads(raw or b"{}")
        except ValueError as error:
            self._error(400, f"JSON decode error: {error}", "BadRequestError")
            return
        try:
            routes[path](body)
        except EngineDeadError as error:
            self._error(500, str(error), "InternalServerError")
            self.shared.fatal.set()
        except (ValueError, KeyError, TypeError) as error:
            self._error(400, str(error), "BadRequestError")
        except BrokenPipeError:
            self.close_connection = True
        except Exception as error:
            self._error(500, f"EngineCore encountered an issue. {error}", "InternalServerError")
            self.shared.fatal.set()

    def _request_id(self) -> str:
        """The caller's own id, where one is given."""
        return self.headers.get("X-Request-Id") or uuid.uuid4().hex

    def _allowed(self) -> bool:
        key = self.shared.args.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.send_as_json({"error": "Unauthorized"}, 401)
            return False
        return True

    def _known(self, body: dict[str, Any]) -> bool:
        name = body.get("model")
        if name is not None and name not in self.shared.names:
            self._error(404, f"The model `{name}` does not exist.", "NotFoundError")
            return False
        return True

    def _completions(self, body: dict[str, Any]) -> None:
        if self._known(body):
            tokens = self.tokens_of(body.get("prompt"))
            number = f"cmpl-{self._request_id()}"
            request = self.shared.engine.new_request(tokens, body.get("max_tokens", 16), f"{number}-0")
            request.logprobs = int(body.get("logprobs") or 0)
            self.answer(body, request, number, chat=False)

    def _chat(self, body: dict[str, Any]) -> None:
        if self._known(body):
            text = "".join(f"<|{m['role']}|>{m['content']}\n" for m in body["messages"]) + "<|assistant|>"
            number = f"chatcmpl-{self._request_id()}"
            wanted = body.get("max_completion_tokens") or body.get("max_tokens", 16)
            request = self.shared.engine.new_request(self.tokens_of(text), wanted, number)
            self.answer(body, request, number, chat=True)

    def usage(self, request: Request) -> dict[str, Any]:
        """What a request took, with cached tokens where that was asked for at the start."""
        usage = super().usage(request)
        if self.shared.args.enable_prompt_tokens_details:
            cached = request.local_hit + request.external_hit
            usage["prompt_tokens_details"] = {"cached_tokens": cached} if cached else None
        return usage

    def _tokenize(self, body: dict[str, Any]) -> None:
        tokens = self.tokens_of(body["prompt"] if "prompt" in body else str(body["messages"]))
        limit = self.shared.engine.model.max_model_len
        self.send_as_json({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    def _detokenize(self, body: dict[str, Any]) -> None:
        self.send_as_json({"prompt": self.shared.engine.tokenizer.decode(body["tokens"])})

    def _error(self, status: int, message: str, kind: str) -> None:
        self.send_as_json({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def run_server(args: argparse.Namespace) -> int:
    """Starts the engine, serves until SIGTERM or until the engine dies; gives the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logger.info("vLLM API server version %s", __version__)
    given = {name: getattr(args, name) for name in [*USED, *IGNORED] if getattr(args, name, None) is not None}
    logger.info("non-default args: %s", given)
    engine = Engine(make_config(**given))
    shared = Server(args, engine)
    handler = type("BoundHandler", (Handler,), {"shared": shared})
    server = Listener((args.host or "0.0.0.0", args.port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    logger.info("Starting vLLM API server 0 on http://%s:%d", args.host or "0.0.0.0", args.port)
    for route in ("/health", "/metrics", "/v1/models", "/v1/completions", "/tokenize"):
        logger.info("Route: %s", route)
    sys.stdout.write("INFO:     Application startup complete.\n")
    while not stop.is_set() and not shared.fatal.is_set():
        stop.wait(0.1)
    if shared.fatal.is_set():
        time.sleep(0.3)  # let the answer that carries the error out
        logger.error("AsyncLLM output_handler failed: EngineDeadError")
        server.shutdown()
    else:
        sys.stdout.write("INFO:     Shutting down\n")
        # No new connections; requests in flight get --shutdown-timeout seconds, by default none, and are then cut off.
        server.shutdown()
        server.server_close()
        until = time.monotonic() + float(args.shutdown_timeout or 0)
        while engine.running and time.monotonic() < until:
            time.sleep(0.05)
    engine.shutdown()
    sys.stdout.write("INFO:     Application shutdown complete.\n")
    exit_noise()
    return 1 if shared.fatal.is_set() else 0


def main(words: list[str] | None = None) -> int:
    """``python -m vllm.entrypoints.openai.api_server``."""
    parser = make_parser(argparse.ArgumentParser(prog="api_server.py", allow_abbrev=False))
    args = parser.parse_args(apply_config_file(sys.argv[1:] if words is None else words))
    if not args.model:
        parser.error("a model is needed")
    return run_server(args)


if __name__ == "__main__":
    sys.exit(main())
