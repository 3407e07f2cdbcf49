"""The scheduler: radix cache, LMCache below it, and the toy in the place of a model."""

import argparse
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lab_cards
from lab_engine import tokenizer, toy
from lab_engine.toy import PrefixCache, Request

logger = logging.getLogger("sglang.srt.managers.scheduler")


class Model:
    """A model as its config.json describes it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.path = Path(args.model_path)
        if not (self.path / "config.json").exists():
            raise OSError(f"{args.model_path} does not appear to have a file named config.json.")
        self.hf: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        derived = int(self.hf.get("max_position_embeddings", 32768))
        self.context_len = args.context_length or derived
        if self.context_len > derived:
            raise ValueError(
                f"Warning: User-specified context_length ({self.context_len}) is greater than the derived "
                f"context_length ({derived}). To allow overriding this maximum, set the env var "
                "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
            )


class Scheduler:
    """One engine: a worker that holds the cards, the radix cache, and LMCache's connector when that is asked for."""

    def __init__(self, args: argparse.Namespace, model: Model) -> None:
        self.args, self.model = args, model
        self.running = 0
        self.counters = dict.fromkeys(("prompt", "generated", "device", "host", "finished"), 0)
        self._lock = threading.Lock()
        self.tokenizer = tokenizer.load(str(model.path))
        if not lab_cards.hardware():
            raise RuntimeError("No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.")
        self._worker = lab_cards.Worker(
            SimpleNamespace(
                parallel_config=SimpleNamespace(world_size=args.tp_size * args.pp_size),
                cache_config=SimpleNamespace(gpu_memory_utilization=args.mem_fraction_static),
            )
        )
        self._worker.init_device()
        if not toy.weights(model.path):
            raise RuntimeError(f"Cannot find any model weights with `{model.path}`")
        self._seed = toy.fingerprint(model.path, model.hf)
        width = toy.kv_bytes_per_token(model.hf)
        logger.info("max_total_num_tokens=%d, context_len=%d", self._worker.cache_bytes() // width, model.context_len)
        self._cache = PrefixCache(args.page_size)
        self._lmcache = None
        if args.enable_lmcache:
            from lmcache.integration.sglang.unified_lmcache_mp_connector import UnifiedLMCacheMPConnector

            self._lmcache = UnifiedLMCacheMPConnector(
                config_file=args.lmcache_config_file,
                model_path=args.model_path,
                bytes_per_token=width,
                page_size=args.page_size,
            )

    def new_request(self, prompt: list[int], max_tokens: int, number: str) -> Request:
        """Checks a prompt as SGLang does."""
        limit = self.model.context_len
        if len(prompt) >= limit:
            raise ValueError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({limit} tokens)."
            )
        if len(prompt) + max_tokens > limit:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested "
                f"a total of {len(prompt) + max_tokens} tokens."
            )
        return Request(number, prompt, max_tokens, time.time())

    def run(self, request: Request) -> Iterator[int]:
        """Computes a request; gives its tokens as they come."""
        self.running += 1
        try:
            self._worker.before_inference()
            kv = self._prefill(request)
            yield from toy.generate(request, kv)
            # Counted when a request is done, cached tokens among the rest.
            with self._lock:
                self.counters["prompt"] += request.num_tokens
                self.counters["generated"] += len(request.output)
                self.counters["device"] += request.local_hit
                self.counters["host"] += request.external_hit
                self.counters["finished"] += 1
        finally:
            self.running -= 1

    def _prefill(self, request: Request) -> list[int]:
        tokens = request.prompt_token_ids
        kv: list[int] = []
        with self._lock:
            if not self.args.disable_radix_cache:
                kv = self._cache.match(tokens)
            request.local_hit = len(kv)
            if self._lmcache:
                loaded = self._lmcache.load(tokens, len(kv))
                request.external_hit = len(loaded)
                kv = kv + loaded
        toy.prefill(self._seed, tokens, kv)
        with self._lock:
            if not self.args.disable_radix_cache:
                self._cache.add(tokens, kv)
            if self._lmcache:
                self._lmcache.store(tokens, kv)
        return kv

    def flush_cache(self) -> bool:
        """Empties the radix cache, not LMCache; not while requests run."""
        if self.running:
            logger.warning(
                "Cache not flushed because there are pending requests. #queue-req: 0, #running-req: %d", self.running
            )
            return False
        with self._lock:
            self._cache.clear()
        logger.info("Cache flushed successfully!")
        return True

    def release(self) -> None:
        """Gives the cards back."""
        self._worker.release()
