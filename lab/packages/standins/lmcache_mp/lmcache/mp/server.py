"""``lmcache server``: keeps chunks for any number of engines on this host."""

import argparse
import array
import json
import signal
import socketserver
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lmcache.logging import init_logger
from lmcache.mp.protocol import keys, receive, send
from lmcache.version import __version__

logger = init_logger("lmcache.v1.multiprocess.server")


class Store:
    """Chunks in memory (L1) and in a directory (L2)."""

    def __init__(self, chunk_size: int, room: int, directory: str | None) -> None:
        self.chunk_size = chunk_size
        self.room = room
        self.directory = Path(directory) if directory else None
        if self.directory:
            self.directory.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.memory: OrderedDict[str, tuple[array.array, int]] = OrderedDict()
        self.used = 0
        self.counters: dict[str, int] = {}

    def count(self, name: str, amount: int) -> None:
        """Adds to a counter, which appears with its first addition."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def get(self, key: str) -> array.array | None:
        """A chunk from memory or from the directory."""
        if key in self.memory:
            self.memory.move_to_end(key)
            return self.memory[key][0]
        if self.directory and (self.directory / f"{key}.data").exists():
            chunk = array.array("Q")
            chunk.frombytes((self.directory / f"{key}.data").read_bytes())
            return chunk
        return None

    def put(self, key: str, chunk: array.array, size: int) -> None:
        """Keeps a chunk; the least recently used give way."""
        if key not in self.memory:
            self.memory[key] = (chunk, size)
            self.used += size
        while self.used > self.room and self.memory:
            self.used -= self.memory.popitem(last=False)[1][1]
            self.count("l1_evicted_chunks", 1)
        if self.directory:
            partial = self.directory / f"{key}.partial"
            partial.write_bytes(chunk.tobytes())
            partial.replace(self.directory / f"{key}.data")

    def clear(self) -> None:
        """Forgets what is in memory."""
        self.memory.clear()
        self.used = 0


class Handler(socketserver.StreamRequestHandler):
    """One engine's connection."""

    store: Store

    class _Both:
        def __init__(self, reader: Any, writer: Any) -> None:
            self.readline, self.read, self.write, self.flush = reader.readline, reader.read, writer.write, writer.flush

    def handle(self) -> None:
        """Answers until the engine goes away."""
        stream, store = self._Both(self.rfile, self.wfile), self.store
        while True:
            try:
                message, kv = receive(stream)
            except (EOFError, OSError):
                return
            with store.lock:
                answer, out = getattr(self, "do_" + message["what"])(message, kv)
            send(stream, answer, out)

    def do_hello(self, message: dict[str, Any], _: array.array) -> tuple[dict[str, Any], None]:
        logger.info("Registered context for instance (model=%s)", message["model"])
        return {"chunk_size": self.store.chunk_size}, None

    def do_lookup(self, message: dict[str, Any], _: array.array) -> tuple[dict[str, Any], None]:
        store, hit, memory = self.store, 0, 0
        wanted = keys(message["model"], message["tokens"], store.chunk_size)
        for key in wanted:
            if store.get(key) is None:
                break
            memory += key in store.memory
            hit += 1
        store.count("lookup_requested_tokens", len(message["tokens"]))
        store.count("lookup_hit_tokens", hit * store.chunk_size)
        logger.info("Prefetch request completed (L1+L2): %d/%d prefix hits (%d L1, %d L2)", hit, len(wanted), memory,
                    hit - memory)  # fmt: skip
        return {"hit": hit * store.chunk_size}, None

    def do_retrieve(self, message: dict[str, Any], _: array.array) -> tuple[dict[str, Any], array.array]:
        store, out = self.store, array.array("Q")
        begin = time.perf_counter()
        for key in keys(message["model"], message["tokens"], store.chunk_size)[: message["hit"] // store.chunk_size]:
            chunk = store.get(key)
            if chunk is None:
                break
            out += chunk
        store.count("l1_read_chunks", len(out) // store.chunk_size)
        store.count("num_finished_retrieves", 1)
        logger.info("Retrieved %d tokens in %.3f seconds", len(out), time.perf_counter() - begin)
        return {}, out

    def do_store(self, message: dict[str, Any], kv: array.array) -> tuple[dict[str, Any], None]:
        store, size = self.store, self.store.chunk_size
        begin = time.perf_counter()
        new = 0
        for number, key in enumerate(keys(message["model"], message["tokens"], size)):
            if store.get(key) is None:
                store.put(key, kv[number * size : (number + 1) * size], size * message["bytes_per_token"])
                new += size
        if new:
            store.count("l1_write_chunks", new // size)
            store.count("num_finished_stores", 1)
            logger.info("Stored %d tokens in %.3f seconds", new, time.perf_counter() - begin)
        return {"stored": new}, None


class Http(BaseHTTPRequestHandler):
    """The control interface; without any authentication, as the real one's."""

    store: Store
    config: dict[str, Any]

    def log_message(self, format: str, *args: Any) -> None:
        """No access lines."""

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        """Queries."""
        path = self.path.partition("?")[0]
        if path == "/healthcheck":
            self._send(200, json.dumps({"status": "healthy"}))
        elif path == "/status":
            self._send(200, json.dumps({"l1_chunks": len(self.store.memory), "l1_used_bytes": self.store.used}))
        elif path == "/config":
            self._send(200, json.dumps(self.config))
        elif path in ("/version", "/lmc_version"):
            self._send(200, json.dumps({"version": __version__}))
        elif path == "/metrics":
            lines = [f"# TYPE lmcache_mp_{name} counter\nlmcache_mp_{name}_total {value}.0"
                     for name, value in sorted(self.store.counters.items())]  # fmt: skip
            self._send(200, "\n".join(lines) + "\n" * bool(lines), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._send(404, json.dumps({"detail": "Not Found"}))

    def do_POST(self) -> None:
        """Commands."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/cache/clear":
            with self.store.lock:
                self.store.clear()
            self._send(200, json.dumps({"status": "ok"}))
        else:
            self._send(404, json.dumps({"detail": "Not Found"}))


class _Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmcache server``."""
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=5555)
    parser.add_argument("--l1-size-gb", type=float, required=True)
    parser.add_argument("--eviction-policy", choices=["LRU", "noop"], required=True)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--max-workers", type=int, default=1)
    parser.add_argument("--l2-adapter", default=None)
    parser.add_argument("--transport", choices=["zmq", "grpc"], default="zmq")
    modes = ["lmcache_driven", "engine_driven", "auto"]
    parser.add_argument("--supported-transfer-mode", choices=modes, default="lmcache_driven")
    parser.add_argument("--shm-name", default=None)
    parser.add_argument("--http-host", default="127.0.0.1")
    parser.add_argument("--http-port", type=int, default=8080)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    adapter = json.loads(args.l2_adapter) if args.l2_adapter else {}
    if adapter and adapter.get("type") != "fs":
        raise ValueError(f"Unknown L2 adapter type: {adapter.get('type')}")
    store = Store(args.chunk_size, int(args.l1_size_gb * 2**30), adapter.get("base_path"))
    engines = _Tcp((args.host, args.port), type("Bound", (Handler,), {"store": store}))
    config = {name: value for name, value in vars(args).items() if name not in ("func", "command")}
    control = ThreadingHTTPServer(
        (args.http_host, args.http_port), type("Bound", (Http,), {"store": store, "config": config})
    )
    control.daemon_threads = True
    for server in (engines, control):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    logger.info(
        "LMCache server is running on tcp://%s:%d, http://%s:%d", args.host, args.port, args.http_host, args.http_port
    )
    stop.wait()
    logger.info("Shutting down")
    engines.shutdown()
    control.shutdown()
    return 0
