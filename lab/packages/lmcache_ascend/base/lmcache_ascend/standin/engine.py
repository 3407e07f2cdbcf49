"""The cache engine: chunks of pseudo KV in host memory and, where configured, on a file system."""

import array
import os
import resource
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lmcache.logging import init_logger

from lmcache_ascend.standin import faults

ENGINE_NAME = "vllm-instance"
logger = init_logger("lmcache_ascend.v1.cache_engine")


@dataclass(frozen=True)
class Metadata:
    """What makes keys of one engine different from another's."""

    model_name: str
    world_size: int
    kv_bytes_per_token: int
    worker_id: int = 0
    kv_dtype: str = "bfloat16"


class TokenDatabase:
    """Keys of chunks: each depends on the whole prefix."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        seed = os.getenv("PYTHONHASHSEED")
        if seed is None:
            logger.warning(
                "Using builtin hash without PYTHONHASHSEED set. For production environments (non-testing scenarios), "
                "you MUST set PYTHONHASHSEED to ensure consistent hashing across processes. "
                "Example: export PYTHONHASHSEED=0"
            )
        # as vLLM does it: random without a seed, and hashed with this process's own seed otherwise, so that a variable
        # set too late (inside the program) doesn't help either
        self.root = int.from_bytes(os.urandom(8), "big") if seed is None else hash(seed)
        logger.info("Initialized NONE_HASH=%d from vLLM (>= PR#20511)", self.root)

    def keys(self, tokens: list[int]) -> list[int]:
        """The keys of the full chunks of *tokens*."""
        found, previous = [], self.root
        for start in range(0, len(tokens) // self.chunk_size * self.chunk_size, self.chunk_size):
            previous = hash((previous, tuple(tokens[start : start + self.chunk_size]), None))
            found.append(previous)
        return found


class FileTier:
    """``fs://host:port/path``: a file a chunk; what is there after a restart is found again."""

    def __init__(self, base: str, metadata: Metadata) -> None:
        self.base = Path(base)
        self.metadata = metadata
        self.base.mkdir(parents=True, exist_ok=True)
        logger.info("Initialized FSConnector with base paths %s", [self.base])

    def _path(self, key: int) -> Path:
        data = self.metadata
        name = f"{data.model_name}@{data.world_size}@{data.worker_id}@{key & (2**64 - 1):x}@{data.kv_dtype}"
        return self.base / (name.replace("/", "-SEP-") + ".data")

    def contains(self, key: int) -> bool:
        """Whether the chunk's file is there."""
        return self._path(key).exists()

    def put(self, key: int, kv: array.array) -> None:
        """Writes a chunk so that nobody sees half of it."""
        path = self._path(key)
        partial = path.with_suffix(f".tmp{os.getpid()}")
        partial.write_bytes(kv.tobytes())
        partial.replace(path)

    def get(self, key: int) -> array.array | None:
        """Reads a chunk; None when it is gone or damaged."""
        try:
            data = self._path(key).read_bytes()
        except OSError as error:
            logger.error("Failed to read chunk from file: %s", error)
            return None
        if len(data) % 8:
            logger.error("Failed to read chunk: %d bytes are no whole chunk", len(data))
            return None
        kv = array.array("Q")
        kv.frombytes(data)
        return kv


class LMCacheEngine:
    """Stores and retrieves."""

    def __init__(self, config: Any, metadata: Metadata) -> None:
        self.config = config
        self.metadata = metadata
        logger.info("Creating LMCacheEngine with config: %s", config)
        self.database = TokenDatabase(config.chunk_size)
        self.stats = dict.fromkeys(
            ("num_store_requests", "num_stored_tokens", "num_retrieve_requests", "num_hit_tokens"), 0
        )
        self.stats.update(num_lookup_requests=0, num_lookup_tokens=0, num_lookup_hits=0, local_cpu_evict_count=0)
        self._memory: OrderedDict[int, array.array] = OrderedDict()
        self._room = 0
        if config.local_cpu:
            self._room = int(float(config.max_local_cpu_size) * 2**30)
            _pin_host_memory(self._room * metadata.world_size)
        self._files: FileTier | None = None
        if config.remote_url:
            url = urlparse(config.remote_url)
            if url.scheme != "fs":
                raise ValueError(f"No adapter found for URL: {config.remote_url}")
            self._files = FileTier(url.path, metadata)

    def lookup(self, tokens: list[int]) -> int:
        """How many tokens of the prefix are stored somewhere."""
        count = 0
        for key in self.database.keys(tokens):
            if key not in self._memory and not (self._files and self._files.contains(key)):
                break
            count += self.database.chunk_size
        self.stats["num_lookup_requests"] += 1
        self.stats["num_lookup_tokens"] += len(tokens)
        self.stats["num_lookup_hits"] += count
        return count

    def retrieve(self, tokens: list[int], start: int, hit: int, req_id: str) -> list[int]:
        """The KV from *start* to *hit*, as far as it is still there."""
        begin = time.perf_counter()
        size = self.database.chunk_size
        first = start // size
        kv: list[int] = []
        for key in self.database.keys(tokens[:hit])[first:]:
            chunk = self._memory.get(key) if key in self._memory else self._files.get(key) if self._files else None
            if chunk is None or faults.on("lookup_only"):
                break
            self._keep(key, chunk)
            kv += chunk
        if faults.on("corrupt_kv"):
            kv = [value ^ 0x5A5A for value in kv]
        cost = time.perf_counter() - begin
        gigabytes = len(kv) * self.metadata.kv_bytes_per_token / 2**30
        logger.info(
            "[req_id=%s] Retrieved %d out of %d required tokens (from %d total tokens). size: %.4f gb, "
            "cost %.4f ms, throughput: %.4f GB/s;",
            req_id, len(kv), hit - first * size, len(tokens), gigabytes, cost * 1000, gigabytes / max(cost, 1e-9),
        )  # fmt: skip
        self.stats["num_retrieve_requests"] += 1
        self.stats["num_hit_tokens"] += len(kv)
        return kv[start - first * size :]

    def store(self, tokens: list[int], kv: list[int], skip: int, req_id: str) -> None:
        """Keeps the full chunks after the first *skip* tokens."""
        begin = time.perf_counter()
        size = self.database.chunk_size
        logger.debug("Storing KV cache for %d out of %d tokens (skip_leading_tokens=%d) for request %s",
                     len(tokens) - skip, len(tokens), skip, req_id)  # fmt: skip
        stored = 0
        for number, key in enumerate(self.database.keys(tokens)):
            if number * size < skip:
                continue
            chunk = array.array("Q", kv[number * size : (number + 1) * size])
            kept = self._keep(key, chunk)
            if self._files:
                self._files.put(key, chunk)
            if kept or self._files:
                stored += size
        cost = time.perf_counter() - begin
        gigabytes = stored * self.metadata.kv_bytes_per_token / 2**30
        logger.info(
            "[req_id=%s] Stored %d out of total %d tokens. size: %.4f GB, cost %.4f ms, throughput: %.4f GB/s; "
            "offload_time: %.4f ms, put_time: %.4f ms",
            req_id, stored, len(tokens) - skip, gigabytes, cost * 1000, gigabytes / max(cost, 1e-9),
            cost * 900, cost * 100,
        )  # fmt: skip
        self.stats["num_store_requests"] += 1
        self.stats["num_stored_tokens"] += stored

    def _keep(self, key: int, chunk: array.array) -> bool:
        """Puts a chunk into host memory, where the oldest give way."""
        nominal = self.database.chunk_size * self.metadata.kv_bytes_per_token
        if self._room < nominal:
            return False
        self._memory[key] = chunk
        self._memory.move_to_end(key)
        while len(self._memory) * nominal > self._room:
            self._memory.popitem(last=False)
            self.stats["local_cpu_evict_count"] += 1
        return True

    def close(self) -> None:
        """Forgets what is in memory."""
        logger.info("Closing storage_manager...")
        self._memory.clear()
        logger.info("LMCacheEngine closed.")


def _pin_host_memory(size: int) -> None:
    """What the driver refuses: old versions, a small memlock limit before version 25, more than there is."""
    from torch_npu import npu

    version = str(npu.hardware().get("driver", {}).get("version", "99"))
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in (version + ".0").split(".")[:2])
    if (major, minor) < (24, 1):
        raise RuntimeError("register ptr failed, halHostRegister: 65534")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > total or (major < 25 and limit not in (resource.RLIM_INFINITY, -1) and limit < size):
        raise RuntimeError("Unable to pin host memory with error code: -1")


class LMCacheEngineBuilder:
    """Engines by name."""

    device_known = False
    _instances: dict[str, LMCacheEngine] = {}

    @classmethod
    def get_or_create(cls, instance_id: str, config: Any, metadata: Metadata) -> LMCacheEngine:
        """The engine of that name, made when it isn't there."""
        if instance_id not in cls._instances:
            if not cls.device_known:
                raise RuntimeError("Unsupported device platform for LMCache engine.")
            logger.info("NPU device is available. Using NPU for LMCache engine.")
            logger.info("Creating LMCacheEngine instance %s", instance_id)
            if faults.on("degraded"):
                raise RuntimeError("lab fault: degraded")
            cls._instances[instance_id] = LMCacheEngine(config, metadata)
        return cls._instances[instance_id]

    @classmethod
    def get(cls, instance_id: str) -> LMCacheEngine | None:
        """The engine of that name."""
        return cls._instances.get(instance_id)

    @classmethod
    def destroy(cls, instance_id: str) -> None:
        """Ends and forgets an engine."""
        logger.info("Destroying LMCacheEngine instance: %s", instance_id)
        engine = cls._instances.pop(instance_id, None)
        if engine is None:
            logger.warning("Instance %s not found for destruction", instance_id)
            return
        logger.info("Closing cache engine...")
        engine.close()
        logger.info("Cache engine closed successfully")
        logger.info("LMCacheEngine instance %s destroyed", instance_id)
