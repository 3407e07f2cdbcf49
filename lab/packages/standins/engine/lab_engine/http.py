"""One connection of an HTTP server with OpenAI's interface."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lab_engine.toy import Request


class Connection(BaseHTTPRequestHandler):
    """What engines answer alike.

    An engine's own handler has `shared`, with the `engine` (its `tokenizer` and `run`) and the `names` of its model.
    """

    protocol_version = "HTTP/1.1"
    shared: Any
    #: A choice's key for what stopped it.
    stopped_by = "stop_reason"

    def usage(self, request: Request) -> dict[str, Any]:
        """What a request took."""
        out = len(request.output)
        return {
            "prompt_tokens": request.num_tokens, "total_tokens": request.num_tokens + out,
            "completion_tokens": out, "prompt_tokens_details": None,
        }  # fmt: skip

    def tokens_of(self, prompt: Any) -> list[int]:
        """A prompt as tokens."""
        if isinstance(prompt, str):
            return self.shared.engine.tokenizer.encode(prompt)
        if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
            return list(prompt)
        if isinstance(prompt, list) and len(prompt) == 1:
            return self.tokens_of(prompt[0])
        raise ValueError("Either prompt or prompt_embeds must be provided and non-empty.")

    def answer(self, body: dict[str, Any], request: Request, number: str, chat: bool) -> None:
        """Run a request and send what comes of it, whole or as it comes."""
        engine, decode = self.shared.engine, self.shared.engine.tokenizer.decode
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": number, "object": kind, "created": int(time.time()), "model": self.shared.names[0]}
        if not body.get("stream"):
            ids = list(engine.run(request))
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length", self.stopped_by: None}
            if chat:
                choice["message"] = {"role": "assistant", "content": decode(ids)}
            else:
                choice["text"] = decode(ids)
                choice["logprobs"] = self._logprobs(body, request, 0)
            if body.get("return_token_ids"):
                choice["token_ids"], choice["prompt_token_ids"] = ids, request.prompt_token_ids
            self.send_as_json({**head, "choices": [choice], "usage": self.usage(request)})
            return
        tokens = engine.run(request)
        first = next(tokens)  # an engine that fails must fail before the status line is sent
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        head["object"] = "chat.completion.chunk" if chat else kind
        count, pending = 0, [first]
        while pending:
            token = pending.pop()
            count += 1
            text = decode([token])
            last = count == request.max_tokens
            choice = {"index": 0, "logprobs": None, "finish_reason": "length" if last else None}
            choice.update({"delta": {"content": text}} if chat else {"text": text})
            if request.likely:
                choice["logprobs"] = self._logprobs(body, request, count - 1, count)
            if body.get("return_token_ids"):
                choice["token_ids"] = [token]
            self._event({**head, "choices": [choice]})
            pending.extend([following for following in [next(tokens, None)] if following is not None])
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**head, "choices": [], "usage": self.usage(request)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _logprobs(
        self, body: dict[str, Any], request: Request, start: int, end: int | None = None
    ) -> dict[str, Any] | None:
        """The likeliest tokens as the completions interface gives them."""
        if not request.likely:
            return None
        as_ids = body.get("return_tokens_as_token_ids")

        def name(token: int) -> str:
            return f"token_id:{token}" if as_ids else self.shared.engine.tokenizer.decode([token])

        rows = list(zip(request.output, request.likely, strict=False))[start:end]
        return {
            "tokens": [name(token) for token, _ in rows],
            "token_logprobs": [likely[token] for token, likely in rows],
            "top_logprobs": [{name(one): value for one, value in likely.items()} for _, likely in rows],
            "text_offset": [],
        }

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def send_as_json(self, data: Any, status: int = 200) -> None:
        """Send an answer that is JSON."""
        self.send_whole(status, json.dumps(data).encode(), "application/json")

    def send_whole(self, status: int, data: bytes, kind: str) -> None:
        """Send an answer whose length is known."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Listener(ThreadingHTTPServer):
    """The listening side. A peer that goes away, such as a health check, is nothing to write about."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection failed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
