"""The stand-in engine: pseudo KV instead of a model.

A token's KV is one number that depends on the model and on every token before it. The next token depends on the KV of
the whole sequence, so that KV which a cache gives back wrong gives another answer, as with a real model. Computing a
token takes time and loading it doesn't, so that a hit is seen in the time to the first token.
"""

import itertools
import os
import threading
import time
import traceback
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vllm import platforms, tokenizer
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.logger import init_logger
from vllm.plugins import load_general_plugins
from vllm.version import __version__

logger = init_logger(__name__)

MASK = (1 << 64) - 1
MS_PER_TOKEN = float(os.environ.get("LMCACHE_FLEET_LAB_MS_PER_TOKEN", "0.1"))
MS_PER_OUTPUT = float(os.environ.get("LMCACHE_FLEET_LAB_MS_PER_OUTPUT", "1"))
BLOCKS_KEPT = 4096


class EngineDeadError(RuntimeError):
    """The engine ended and serves no more."""


def kv_of(previous: int, token: int) -> int:
    """The pseudo KV of a token after a sequence whose last KV was *previous*."""
    value = ((previous ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & MASK
    return value ^ (value >> 31)


def _likely(state: int, token: int, count: int) -> dict[int, float]:
    """The likeliest tokens, *token* first, with numbers that depend on the KV."""
    first = -0.1 - (state >> 40) % 1000 / 2000
    return {35 + (token - 35 + 7 * rank) % 95: round(first - 0.8 * rank, 4) for rank in range(max(1, count))}


@dataclass
class Request:
    """A request in the engine."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    arrival: float
    local_hit: int = 0
    external_hit: int = 0
    first_token: float = 0.0
    output: list[int] = field(default_factory=list)
    logprobs: int = 0
    likely: list[dict[int, float]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)


class PrefixCache:
    """The engine's own cache, by whole blocks."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: OrderedDict[int, list[int]] = OrderedDict()

    def _keys(self, tokens: list[int]) -> Iterator[int]:
        key = 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            key = zlib.crc32(repr(tokens[start : start + self.block_size]).encode(), key)
            yield key << 20 | start

    def match(self, tokens: list[int]) -> list[int]:
        """The KV of the longest cached prefix that leaves at least one token to compute."""
        kv: list[int] = []
        for key in self._keys(tokens[:-1]):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            kv += self._blocks[key]
        return kv

    def add(self, tokens: list[int], kv: list[int]) -> None:
        """Keeps the blocks of a prompt."""
        for number, key in enumerate(self._keys(tokens)):
            self._blocks[key] = kv[number * self.block_size : (number + 1) * self.block_size]
            self._blocks.move_to_end(key)
        while len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)


class Engine:
    """One engine: a worker on the platform's device, a scheduler, a connector on each side."""

    def __init__(self, config: VllmConfig) -> None:
        self.config = config
        self.model = config.model_config
        self.dead: str | None = None
        self.running = 0
        self.stats: dict[str, float] = dict.fromkeys(
            (
                "local_queries",
                "local_hits",
                "external_queries",
                "external_hits",
                "prompt",
                "generated",
                "finished",
                "ttft",
            ),
            0,
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        os.environ["_LAB_ENGINE_PREFIX"] = f"(EngineCore pid={os.getpid()}) "
        load_general_plugins()
        platform = platforms.current()
        if not platform.device_type:
            raise RuntimeError("Failed to infer device type, please set the environment variable VLLM_TARGET_DEVICE")
        logger.info("Initializing a V1 LLM engine (v%s) with config: model=%r", __version__, self.model.model)
        self.worker = platform.make_worker(config)
        self.worker.init_device()
        self.tokenizer = tokenizer.load(self.model.model)
        self._seed = self._fingerprint()
        self.cache = PrefixCache(config.cache_config.block_size)
        self.connectors = []
        if config.kv_transfer_config is not None:
            try:
                for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
                    self.connectors.append(KVConnectorFactory.create_connector(config, role, object()))
            except Exception:
                logger.error("EngineCore failed to start.\n%s", traceback.format_exc())
                self.worker.release()
                raise
        free = self.worker.cache_bytes()
        logger.info("GPU KV cache size: %s tokens", f"{free // max(1, self.model.kv_bytes_per_token()):,}")
        logger.info("init engine (profile, create kv cache, warmup model) took 0.05 seconds")

    def _fingerprint(self) -> int:
        """A number that differs between models."""
        seed = zlib.crc32(repr(sorted(self.model.hf.items(), key=str)).encode())
        for path in sorted(Path(self.model.model).iterdir()):
            if path.suffix in (".safetensors", ".bin"):
                with path.open("rb") as handle:
                    seed = zlib.crc32(handle.read(65536), seed)
        return seed

    def new_request(self, prompt: list[int], max_tokens: int | None, request_id: str | None = None) -> Request:
        """Checks a prompt as vLLM does."""
        limit = self.model.max_model_len
        if not prompt:
            raise ValueError("The decoder prompt cannot be empty")
        if len(prompt) >= limit:
            raise ValueError(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of {limit}. "
                "Make sure that `max_model_len` is no smaller than the number of text tokens."
            )
        wanted = 16 if max_tokens is None else max_tokens
        number = str(next(self._numbers)) if request_id is None else request_id
        return Request(number, prompt, min(wanted, limit - len(prompt)), time.time())

    def run(self, request: Request) -> Iterator[int]:
        """Computes a request; gives its tokens as they come."""
        if self.dead:
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        self.running += 1
        try:
            yield from self._run(request)
        except Exception as error:
            if not isinstance(error, GeneratorExit):
                self.dead = str(error)
                logger.error("EngineCore encountered a fatal error.\n%s", traceback.format_exc())
            raise
        finally:
            self.running -= 1

    def _run(self, request: Request) -> Iterator[int]:
        started = time.monotonic()
        self.worker.before_inference()
        tokens = request.prompt_token_ids
        kv: list[int] = []
        with self._lock:
            if self.config.cache_config.enable_prefix_caching:
                kv = self.cache.match(tokens)
                self.stats["local_queries"] += len(tokens)
                self.stats["local_hits"] += len(kv)
            request.local_hit = len(kv)
            if self.connectors:
                scheduler, worker = self.connectors
                count, _ = scheduler.get_num_new_matched_tokens(request, len(kv))
                self.stats["external_queries"] += len(tokens) - len(kv)
                if count > 0:
                    loaded = worker.start_load_kv(request, len(kv), count)
                    kv = kv + loaded
                    request.external_hit = len(loaded)
                    self.stats["external_hits"] += len(loaded)
        time.sleep((len(tokens) - len(kv)) * MS_PER_TOKEN / 1000)
        previous = kv[-1] if kv else self._seed
        for token in tokens[len(kv) :]:
            previous = kv_of(previous, token)
            kv.append(previous)
        with self._lock:
            if self.config.cache_config.enable_prefix_caching:
                self.cache.add(tokens, kv)
            if self.connectors:
                self.connectors[1].wait_for_save(request, kv)
        self.stats["prompt"] += len(tokens)
        request.first_token = time.monotonic() - started
        self.stats["ttft"] += request.first_token
        state = 0
        for value in kv:
            state = (state * 31 + value) & MASK
        for number in range(request.max_tokens):
            if number:
                time.sleep(MS_PER_OUTPUT / 1000)
            token = 35 + (state >> 17) % 95  # printable, in the byte tokenizer
            if request.logprobs:
                request.likely.append(_likely(state, token, request.logprobs))
            previous = kv_of(previous, token)
            state = (state * 31 + previous) & MASK
            request.output.append(token)
            self.stats["generated"] += 1
            yield token
        self.stats["finished"] += 1

    def reset_prefix_cache(self) -> None:
        """Forgets the engine's own cache, not the connector's."""
        with self._lock:
            self.cache.clear()

    def shutdown(self) -> None:
        """Ends the connectors and gives the devices back."""
        for connector in self.connectors:
            connector.shutdown()
        self.connectors = []
        self.worker.release()
