"""HTTP to an engine and a cache server: one streamed request, metrics, the prefix cache. Never through a proxy."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

#: Metric names, first that exists wins. Those in brackets are made here of SGLang's one counter and its labels.
EXTERNAL_HITS = (
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_hits",
    "sglang:cached_tokens_total[external]",
)
LOCAL_HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "sglang:cached_tokens_total[device]")
PROMPT_TOKENS = ("vllm:prompt_tokens_total", "vllm:prompt_tokens", "sglang:prompt_tokens_total")
STORED_CHUNKS = ("lmcache_mp_l1_write_chunks_total",)
READ_CHUNKS = ("lmcache_mp_l1_read_chunks_total",)
SHARED_CHUNKS = ("lmcache_mp_l2_store_completed_objects_chunks_total",)
SHARED_HITS = ("lmcache_mp_lookup_hit_l2_tokens_total",)
STORED_TOKENS = ("lmcache:num_stored_tokens_total", "lmcache:num_stored_tokens")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_CACHED, _SOURCE = "sglang:cached_tokens_total", re.compile(r'\bcache_source="(\w+)"')
#: Requests that empty an engine's own prefix cache.
RESET = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}


class RequestFailed(Exception):
    """A request got no usable answer."""


@dataclass
class Answer:
    """An engine's answer to one completion.

    Args:
        prompt_tokens: as the engine counted them.
        output: token ids; the text in a list where the engine gives no ids.
        logprobs: at each position the likeliest token ids and their log probabilities.
        ttft_ms: time to the first piece of output.
        total_ms: time to its end.
        cached_tokens: as the engine counted them; None when it doesn't.
    """

    prompt_tokens: int | None = None
    output: list[int | str] = field(default_factory=list)
    logprobs: list[dict[str, float]] = field(default_factory=list)
    ttft_ms: float | None = None
    total_ms: float | None = None
    cached_tokens: int | None = None


def _connect(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection to a URL's host, and the path with its query."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout), path


def call(method: str, url: str, timeout: float, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and body of a request without a body.

    Raises:
        RequestFailed: no answer.
    """
    connection, path = _connect(url, timeout)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"{method} {url}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def alive(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether a URL answers 200."""
    try:
        return call("GET", url, 5.0, headers)[0] == 200
    except RequestFailed:
        return False


def metrics(urls: Iterable[str], headers: Mapping[str, str] | None = None) -> dict[str, float]:
    """Sum of every metric over its labels and over all URLs; empty when none could be read."""
    total: dict[str, float] = {}
    for url in urls:
        try:
            status, text = call("GET", url, 10.0, headers)
        except RequestFailed:
            continue
        if status == 200:
            for name, value in parse_metrics(text).items():
                total[name] = total.get(name, 0.0) + value
    return total


def parse_metrics(text: str) -> dict[str, float]:
    """Sum of every metric over its labels, from the Prometheus text format; SGLang's cached tokens also by source."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) is not None:
            try:
                value = float(match[3])
            except ValueError:
                continue
            found[match[1]] = found.get(match[1], 0.0) + value
            if match[1] == _CACHED and (source := _SOURCE.search(match[2] or "")):
                # Its own radix cache is on the device; LMCache excludes any other tier outside of it.
                name = f"{_CACHED}[{'device' if source[1] == 'device' else 'external'}]"
                found[name] = found.get(name, 0.0) + value
    if "sglang:prompt_tokens_total" in found:
        # A counter with labels shows from its first token on.
        for source_name in ("device", "external"):
            found.setdefault(f"{_CACHED}[{source_name}]", 0.0)
    return found


def metric(values: Mapping[str, float], names: Sequence[str]) -> int | None:
    """The first of some names that is there."""
    return next((int(values[name]) for name in names if name in values), None)


def reset_prefix_cache(
    url: str, timeout: float, headers: Mapping[str, str] | None = None, engine: str = "vllm"
) -> bool | None:
    """Empty the engine's own prefix cache.

    Args:
        url: base URL of the engine.
        timeout: seconds.
        headers: for the request.
        engine: which engine it is, a key of `RESET`.

    Returns:
        True when done, False when the engine could not just now, None when it has no such request.

    Raises:
        RequestFailed: no answer.
    """
    status, text = call("POST", f"{url}{RESET[engine]}", timeout, headers)
    if status in (404, 405, 501):
        return None
    if status != 200:
        return False
    try:
        # Older engines answer 200 with nothing, SGLang with a sentence.
        return bool(json.loads(text).get("success", True)) if text.strip() else True
    except (ValueError, AttributeError):
        return True


def complete(
    url: str,
    model: str,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    timeout: float,
    request_id: str,
    logprobs: int = 0,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One greedy completion of a prompt of token ids, streamed.

    Raises:
        RequestFailed: refused, broken off or too late.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if logprobs:
        body["logprobs"] = logprobs
    sent = {"Content-Type": "application/json", "X-Request-Id": request_id, **(headers or {})}
    status, said, answer = _post_stream(f"{url}/v1/completions", body, sent, timeout)
    if status == 400 and "logprob" in said:
        # An engine may be set to give none.
        body.pop("logprobs", None)
        status, said, answer = _post_stream(f"{url}/v1/completions", body, sent, timeout)
    if answer is None:
        raise RequestFailed(f"HTTP {status}: {said}")
    return answer


def _post_stream(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float
) -> tuple[int, str, Answer | None]:
    """Status, what a refusal says, and the answer when it was none."""
    connection, path = _connect(url, timeout)
    start = time.monotonic()
    try:
        connection.request("POST", path, body=json.dumps(body), headers=dict(headers))
        response = connection.getresponse()
        if response.status != 200:
            return response.status, response.read(400).decode("utf-8", "replace"), None
        return 200, "", _read_stream(response, start, timeout)
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"{url}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse, start: float, timeout: float) -> Answer:
    """Collect a stream of server-sent events."""
    answer, text = Answer(), ""
    ids: list[int | str] = []
    while True:
        line = response.readline()
        now = (time.monotonic() - start) * 1000
        if now > timeout * 1000:
            raise RequestFailed(f"no end after {timeout:.0f} s")
        if not line or line.strip() == b"data: [DONE]":
            break
        if not line.startswith(b"data:"):
            continue
        event = _event(line[5:])
        for choice in event.get("choices") or []:
            if answer.ttft_ms is None:
                answer.ttft_ms = round(now, 1)
            ids.extend(choice.get("token_ids") or [])
            answer.logprobs.extend(_likely(choice.get("logprobs")))
            text += choice.get("text") or ""
        _read_usage(event.get("usage"), answer)
    answer.total_ms = round((time.monotonic() - start) * 1000, 1)
    if not line:
        raise RequestFailed("the stream broke off")
    answer.output = ids or ([text] if text else [])
    return answer


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise RequestFailed(f"not JSON: {data[:200]!r}") from error
    if not isinstance(event, dict) or "error" in event:
        raise RequestFailed(f"the engine says: {data[:300].decode('utf-8', 'replace').strip()}")
    return event


def _likely(logprobs: Any) -> list[dict[str, float]]:
    """The likeliest token ids of each position."""
    if not isinstance(logprobs, dict):
        return []
    found = []
    for likely in logprobs.get("top_logprobs") or []:
        found.append({str(k).removeprefix("token_id:"): round(float(v), 4) for k, v in (likely or {}).items()})
    return found


def _read_usage(usage: Any, answer: Answer) -> None:
    if isinstance(usage, dict):
        answer.prompt_tokens = usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            answer.cached_tokens = details.get("cached_tokens")
