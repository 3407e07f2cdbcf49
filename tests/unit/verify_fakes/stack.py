"""A stand-in for `lmcache server`, `lmcache bench server`, vLLM's API server and SGLang, just true enough for the
verification program.

FAKE_FAULT names what goes wrong. The first argument is the role: `server`, `client`, `engine` or `sglang`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

FAULT = os.environ.get("FAKE_FAULT", "")
CHUNK = int(os.environ.get("FAKE_CHUNK", "8"))


def say(text: str) -> None:
    print(text, flush=True)


def options(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")


class ServerHandler(Handler):
    chunks: ClassVar[set[str]] = set()
    writes = 0
    reads = 0
    hits = 0

    def do_GET(self) -> None:
        if self.path == "/healthcheck":
            self.answer("{}")
        else:
            self.answer(
                f"lmcache_mp_l1_write_chunks_total {float(ServerHandler.writes)}\n"
                f"lmcache_mp_l1_read_chunks_total {float(ServerHandler.reads)}\n"
                f"lmcache_mp_lookup_hit_tokens_total {float(ServerHandler.hits)}\n"
            )

    def do_POST(self) -> None:
        keys: list[str] = self.body()
        if self.path == "/store":
            fresh = [k for k in keys if k not in ServerHandler.chunks] if FAULT != "keeps-nothing" else []
            ServerHandler.chunks.update(fresh)
            ServerHandler.writes += len(fresh)
            if fresh:
                say(f"\x1b[32;20m[2026-01-01] LMCache INFO:\x1b[0m Stored {len(fresh) * CHUNK} tokens in 0.1 s")
        found = 0
        for key in keys:
            if key not in ServerHandler.chunks:
                break
            found += 1
        if self.path == "/retrieve" and found:
            say(f"LMCache INFO: Retrieved {found * CHUNK} tokens in 0.1 seconds")
            ServerHandler.reads += found
        ServerHandler.hits += found * CHUNK
        self.answer(found)


def run_server(arguments: list[str]) -> None:
    given = options(arguments)
    say(f"LMCache INFO: TokenHasher initialized: chunk_size={CHUNK}, hash_algorithm=blake3")
    if FAULT == "mismatch":
        say("LMCache ERROR: No handler registered for operation register_kv_cache_engine_driven_context")
    if FAULT == "server-dies":
        say("OSError: [Errno 98] Address already in use")
        sys.exit(3)
    for port in (given["--port"], given["--http-port"]):
        server = ThreadingHTTPServer(("127.0.0.1", int(port)), ServerHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


def keys_of(prompt: list[int]) -> list[str]:
    whole = len(prompt) // CHUNK
    return [hashlib.sha256(json.dumps(prompt[: (i + 1) * CHUNK]).encode()).hexdigest() for i in range(whole)]


def run_client(arguments: list[str]) -> None:
    """Asks twice for one prefix, as `lmcache bench server` does, and prints what that prints."""
    given = options(arguments)
    address = given["--rpc-url"].removeprefix("tcp://").replace("localhost", "127.0.0.1")
    first = int(given["--start"])
    prompt = [first] + [9906] * int(given["--num-tokens"])
    keys = keys_of(prompt)
    told = f"  [seq {first}"
    if FAULT == "client-dies":
        say("RuntimeError: REGISTER_KV_CACHE failed for rank 0 (instance_id=1000)")
        sys.exit(1)
    if FAULT == "client-hangs":
        time.sleep(600)

    def cache(verb: str) -> int:
        connection = http.client.HTTPConnection(address)
        connection.request("POST", verb, json.dumps(keys))
        return int(connection.getresponse().read())

    for kind in ("cold", "warm"):
        # A lookup and a retrieve are one here: the fake counts what it finds.
        found = cache("/retrieve")
        if kind == "cold" and found and FAULT == "forgets":
            found = 0
        say(f"{told}/{kind}] LOOKUP: {found}/{len(keys)} chunks hit (1.5 ms)")
        if found:
            say(f"{told}/{kind}] RETRIEVE: retrieved ({found * CHUNK} tokens, 2.0 ms, 1 workers)")
        if found < len(keys):
            cache("/store")
            # It says so whatever the server made of it: the server's own counters decide.
            say(f"{told}/{kind}] STORE: stored ({(len(keys) - found) * CHUNK} tokens, 2.5 ms, 1 writers)")
        if kind == "warm" or not found:
            digest = hashlib.sha256(json.dumps([keys, FAULT == "corrupt" and kind == "warm"]).encode()).hexdigest()
            say(f"{told}/{kind}] CHECKSUM: {digest[:16]} ({len(keys)} chunks)")
    say("Done.")


class EngineHandler(Handler):
    transfer: ClassVar[dict[str, Any]] = {}
    local: ClassVar[set[str]] = set()
    count: ClassVar[dict[str, int]] = {"prompt": 0, "external": 0, "local": 0}

    def cache_port(self) -> int:
        return int(self.transfer["kv_connector_extra_config"]["lmcache.mp.port"])

    def cache(self, verb: str, keys: list[str]) -> int:
        if FAULT in ("degraded", "no-external"):
            return 0
        connection = http.client.HTTPConnection("127.0.0.1", self.cache_port())
        connection.request("POST", verb, json.dumps(keys))
        return int(connection.getresponse().read())

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer("", 503 if FAULT in ("mismatch", "hang") else 200)
        else:
            self.answer(
                f'vllm:external_prefix_cache_hits_total{{engine="0"}} {float(self.count["external"])}\n'
                f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.count["local"])}\n'
                f'vllm:prompt_tokens_total{{engine="0"}} {float(self.count["prompt"])}\n'
            )

    def do_POST(self) -> None:
        if self.path == "/reset_prefix_cache":
            if FAULT in ("no-reset", "no-external"):
                self.answer("", 404)
                return
            EngineHandler.local.clear()
            self.answer({"success": True})
            return
        self.complete(self.body()["prompt"])

    def complete(self, prompt: list[int]) -> None:
        if FAULT == "dies":
            say("(EngineCore pid=1) ERROR 12-01 09:00:00 [core.py:1] EngineCore encountered a fatal error.")
            os._exit(1)
        if FAULT == "oom":
            say("torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB")
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "slow":
            time.sleep(60)
        keys = keys_of(prompt)
        reusable = keys[: (len(prompt) - 1) // CHUNK]
        local = sum(1 for k in reusable if k in self.local)
        external = 0 if local else self.cache("/retrieve", reusable)
        self.cache("/store", keys)
        self.count["prompt"] += len(prompt)
        self.count["local"] += local * CHUNK
        self.count["external"] += external * CHUNK
        self.local.update(keys)
        seed = hashlib.sha256(json.dumps(prompt).encode()).digest()
        ids = [b + (1 if FAULT == "corrupt" and external else 0) for b in seed[:6]]
        self.send_response(200)
        self.end_headers()
        for token in ids:
            self.event({"choices": [{"text": "x", "token_ids": [token]}]})
        self.event({"choices": [], "usage": {"prompt_tokens": len(prompt)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


def run_engine(arguments: list[str]) -> None:
    given = options(arguments)
    EngineHandler.transfer = json.loads(given["--kv-transfer-config"])
    say("(APIServer pid=1) INFO non-default args: {}")
    name = EngineHandler.transfer["kv_connector"]
    say(f"(Worker pid=2) INFO Creating v1 connector with name: {name} and engine_id: 0")
    say("LMCache INFO: Creating transfer context (device_type=cpu, mode=engine_driven) (a.py:1:lmcache.a_connector)")
    if FAULT == "degraded":
        say("LMCache ERROR: No supported cpu connector found. . System will operate in degraded mode (recompute).")
    if FAULT == "hashseed":
        say("LMCache WARNING: Using builtin hash without PYTHONHASHSEED set. This may cause cache misses.")
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), EngineHandler).serve_forever()


class SglangHandler(EngineHandler):
    port: ClassVar[int] = 0

    def cache_port(self) -> int:
        return self.port

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.answer("", 200 if self.path == "/health" else 404)
            return
        # A counter with labels is there once it has counted.
        told = {"device": self.count["local"], "host": self.count["external"]}
        lines = [
            f'sglang:cached_tokens_total{{model_name="m",cache_source="{source}"}} {float(count)}\n'
            for source, count in told.items()
            if count
        ]
        if self.count["prompt"]:
            lines.append(f'sglang:prompt_tokens_total{{model_name="m"}} {float(self.count["prompt"])}\n')
        self.answer("".join(lines))

    def do_POST(self) -> None:
        if self.path == "/flush_cache":
            EngineHandler.local.clear()
            self.answer("Cache flushed.\n")
        elif self.path == "/v1/completions":
            self.complete(self.body()["prompt"])
        else:
            self.answer("", 404)


def run_sglang(arguments: list[str]) -> None:
    flags = ("--enable-lmcache", "--enable-metrics", "--enable-cache-report")
    assert set(flags) <= set(arguments), arguments
    given = options([word for word in arguments if word not in flags])
    text = Path(given["--lmcache-config-file"]).read_text(encoding="utf-8")
    place = dict(line.split(": ") for line in text.splitlines())
    assert place["mp_host"] == "127.0.0.1"
    SglangHandler.port = int(place["mp_port"])
    say("[2026-01-01 09:00:00] server_args={}")
    if FAULT == "no-kernel":
        say("[2026-01-01 09:00:01] Scheduler hit an exception: Traceback (most recent call last):")
        threading.Event().wait()
    if FAULT != "no-external":
        say(f"LMCache INFO: UnifiedLMCacheMPConnector initialized succeed. (u.py:1:{SGLANG_CONNECTOR})")
    ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), SglangHandler).serve_forever()


SGLANG_CONNECTOR = "lmcache.integration.sglang.unified_lmcache_mp_connector"

if __name__ == "__main__":
    {"server": run_server, "client": run_client, "engine": run_engine, "sglang": run_sglang}[sys.argv[1]](sys.argv[2:])
