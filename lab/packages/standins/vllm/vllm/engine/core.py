"""The stand-in engine: the toy instead of a model, vLLM's connectors around it."""

import itertools
import os
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from lab_engine import tokenizer, toy
from lab_engine.toy import PrefixCache, Request

from vllm import platforms
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.logger import init_logger
from vllm.plugins import load_general_plugins
from vllm.version import __version__

logger = init_logger(__name__)


class EngineDeadError(RuntimeError):
    """The engine ended and serves no more."""


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
        self._seed = toy.fingerprint(Path(self.model.model), self.model.hf)
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
        toy.prefill(self._seed, tokens, kv)
        with self._lock:
            if self.config.cache_config.enable_prefix_caching:
                self.cache.add(tokens, kv)
            if self.connectors:
                self.connectors[1].wait_for_save(request, kv)
        self.stats["prompt"] += len(tokens)
        request.first_token = time.monotonic() - started
        self.stats["ttft"] += request.first_token
        for token in toy.generate(request, kv):
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
