"""A stand-in for offline vLLM with an in-process LMCache whose tier is a directory, FAKE_STORE."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FAULT = os.environ.get("FAKE_FAULT", "")
CHUNK = int(os.environ.get("LMCACHE_CHUNK_SIZE", "8"))


class SamplingParams:
    def __init__(self, **options: Any) -> None:
        self.options = options


class LLM:
    def __init__(self, model: str, kv_transfer_config: Any, **options: Any) -> None:
        assert options["enable_prefix_caching"] is False
        assert "vendor_plugin" in sys.modules or FAULT == "no-plugin"
        self.store = Path(os.environ["FAKE_STORE"])
        self.requests = 0
        self.external = 0
        print(f"INFO Creating v1 connector with name: {kv_transfer_config.kv_connector} and engine_id: 0")
        if FAULT == "degraded":
            print("\x1b[31mLMCache ERROR:\x1b[0m RuntimeError: Unsupported device platform for LMCache engine.")
            print(". System will operate in degraded mode (recompute).")
        elif FAULT != "no-plugin":
            print("LMCache INFO: NPU device is available. Using NPU for LMCache engine.")

    def get_metrics(self) -> list[Any]:
        return [
            SimpleNamespace(name="vllm:external_prefix_cache_hits", value=self.external),
            SimpleNamespace(name="vllm:prefix_cache_hits", value=0),
        ]

    def generate(self, prompts: list[dict[str, list[int]]], params: SamplingParams) -> list[Any]:
        ids = prompts[0]["prompt_token_ids"]
        if FAULT == "crash" and self.requests:
            raise MemoryError("Cannot allocate memory")
        number, self.requests = self.requests, self.requests + 1
        # A string's hash differs from process to process without PYTHONHASHSEED, as LMCache's builtin hash does.
        keys = [hash(json.dumps(ids[: (i + 1) * CHUNK])) for i in range(len(ids) // CHUNK)]
        found = 0
        for key in keys[: (len(ids) - 1) // CHUNK]:
            if FAULT == "degraded" or not (self.store / str(key)).exists():
                break
            found += 1
        fresh = [] if FAULT == "degraded" else keys[found:]
        for key in fresh:
            (self.store / str(key)).touch()
        if fresh:
            print(
                f"[req_id={number}] Stored {len(fresh) * CHUNK} out of total {len(ids)} tokens. size: 0.1 GB",
                flush=True,
            )
        if found:
            print(
                f"[req_id={number}] Retrieved {found * CHUNK} out of {found * CHUNK} required tokens (from {len(ids)})"
            )
        self.external += found * CHUNK
        digest = hashlib.sha256(json.dumps(ids).encode()).digest()
        output = SimpleNamespace(token_ids=[b + (FAULT == "corrupt" and found > 0) for b in digest[:6]])
        return [SimpleNamespace(outputs=[output], prompt_token_ids=ids, num_cached_tokens=found * CHUNK)]
