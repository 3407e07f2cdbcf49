"""The HTTP server with OpenAI's interface."""

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from typing import Any

from lab_engine.http import Connection, Listener
from lab_engine.toy import Request

from sglang.srt.scheduler import Model, Scheduler
from sglang.srt.server_args import check

logger = logging.getLogger("sglang.srt.entrypoints.http_server")
_TIME = "%Y-%m-%d %H:%M:%S"
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Server:
    """The engine and what all requests share."""

    def __init__(self, args: argparse.Namespace, engine: Scheduler) -> None:
        self.args, self.engine = args, engine
        self.names = [args.served_model_name or args.model_path]
        self.started = int(time.time())
        self.ready = False
        self.leaving = False

    def metrics(self) -> str:
        """The exposition text. A counter shows from its first token on."""
        count = self.engine.counters
        base = f'engine_type="unified",model_name="{self.names[0]}",pp_rank="0",tp_rank="0"'
        samples = [
            ("num_running_reqs", "gauge", base, self.engine.running),
            ("num_queue_reqs", "gauge", base, 0),
        ]
        if count["finished"]:
            stream = f'is_streaming="false",{base}'
            samples += [
                ("prompt_tokens_total", "counter", stream, count["prompt"]),
                ("generation_tokens_total", "counter", stream, count["generated"]),
                ("num_requests_total", "counter", stream, count["finished"]),
            ]
        for source in ("device", "host"):
            if count[source]:
                samples.append(("cached_tokens_total", "counter", f'cache_source="{source}",{base}', count[source]))
        lines: list[str] = []
        for name, kind, labels, value in samples:
            head = f"# TYPE sglang:{name} {kind}"
            if head not in lines:
                lines += [f"# HELP sglang:{name} Stand-in.", head]
            lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
        return "\n".join(lines) + "\n"


class Handler(Connection):
    """One connection."""

    shared: Server
    stopped_by = "matched_stop"

    def log_message(self, format: str, *args: Any) -> None:
        """Access lines as uvicorn writes them for SGLang."""
        host, port = self.client_address[:2]
        status = args[1] if len(args) > 1 else ""
        sys.stdout.write(f'[{time.strftime(_TIME)}] INFO:     {host}:{port} - "{self.requestline}" {status}\n')

    def do_GET(self) -> None:
        """Queries."""
        path, shared = self.path.partition("?")[0], self.shared
        if path in ("/health", "/health_generate"):
            self.send_whole(200 if shared.ready and not shared.leaving else 503, b"", "text/plain")
        elif path == "/metrics" and shared.args.enable_metrics:
            self.send_whole(200, shared.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/v1/models":
            name, limit = shared.names[0], shared.engine.model.context_len
            card = {"id": name, "object": "model", "created": shared.started, "owned_by": "sglang", "root": name}
            self.send_as_json({"object": "list", "data": [{**card, "parent": None, "max_model_len": limit}]})
        elif path == "/flush_cache":
            self._flush()
        else:
            self.send_as_json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        """Commands."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/flush_cache":
            self._flush()
            return
        if path != "/v1/completions":
            self.send_as_json({"detail": "Not Found"}, 404)
            return
        try:
            body = json.loads(raw or b"{}")
            number = uuid.uuid4().hex
            tokens, wanted = self.tokens_of(body.get("prompt")), int(body.get("max_tokens") or 16)
            request = self.shared.engine.new_request(tokens, wanted, number)
            request.logprobs = int(body.get("logprobs") or 0)
            self.answer(body, request, number, chat=False)
        except (ValueError, KeyError, TypeError) as error:
            told = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            self.send_as_json(told, 400)
        except BrokenPipeError:
            self.close_connection = True

    def _flush(self) -> None:
        done = self.shared.engine.flush_cache()
        text = _FLUSHED if done else "Flush cache failed.\n"
        self.send_whole(200 if done else 400, text.encode(), "text/plain")

    def usage(self, request: Request) -> dict[str, Any]:
        """What a request took, with cached tokens where that was asked for at the start."""
        usage = super().usage(request)
        cached = request.local_hit + request.external_hit
        if self.shared.args.enable_cache_report and cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage


def launch_server(args: argparse.Namespace) -> int:
    """Starts the scheduler, serves until SIGTERM; gives the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=args.log_level.upper(), format="[%(asctime)s] %(message)s", datefmt=_TIME, force=True)
    check(args)
    logger.info("server_args=%s", str(args).replace("Namespace", "ServerArgs"))
    model = Model(args)
    try:
        engine = Scheduler(args, model)
    except Exception:
        # The real one's scheduler is a process of its own, and takes the whole tree with it.
        logger.error("Scheduler hit an exception: %s", traceback.format_exc())
        logger.error("Received sigquit from a child process. It usually means the child failed.")
        sys.stdout.flush()
        # A container's first process can't be killed from inside; the real one ends with 0 then.
        os.kill(os.getpid(), signal.SIGKILL)
        return 0
    shared = Server(args, engine)
    server = Listener((args.host, args.port), type("BoundHandler", (Handler,), {"shared": shared}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    sys.stdout.write(f"[{time.strftime(_TIME)}] INFO:     Uvicorn running on http://{args.host}:{args.port}\n")
    if not args.skip_server_warmup:
        text = engine.tokenizer.encode("The capital city of France is")
        for _ in engine.run(engine.new_request(text, 8, "warmup")):
            pass
    shared.ready = True
    logger.info("The server is fired up and ready to roll!")
    while not stop.is_set():
        stop.wait(0.1)
    shared.leaving = True
    logger.warning("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
    while engine.running:
        time.sleep(0.05)
    logger.info("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    server.shutdown()
    engine.release()
    return 0
