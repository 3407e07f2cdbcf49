"""Between vLLM's connector and the cache engine."""

import importlib
import os
import traceback
from typing import Any

from lmcache.logging import init_logger

from lmcache_ascend.standin.engine import ENGINE_NAME, LMCacheEngine, LMCacheEngineBuilder, Metadata

logger = init_logger("lmcache.integration.vllm.vllm_v1_adapter")
_config: Any = None


def get_config() -> Any:
    """lmcache's own configuration, read once a process from its file or from the environment."""
    global _config
    if _config is None:
        kind = importlib.import_module("lmcache.v1.config").LMCacheEngineConfig
        file = os.environ.get("LMCACHE_CONFIG_FILE")
        if file is None:
            logger.warning(
                "No LMCache configuration file is set. Trying to read configurations from the environment variables."
            )
            _config = kind.from_env()
        else:
            logger.info("Loading LMCache config file %s", file)
            _config = kind.from_file(file)
            _config.update_config_from_env()
        _config.validate()
        _config.log_config()
    return _config


class LMCacheConnectorV1Impl:
    """One side of the connector."""

    def __init__(self, vllm_config: Any, role: Any, parent: Any) -> None:
        self._parent = parent
        self._hits: dict[str, int] = {}
        self.engine: LMCacheEngine | None = None
        self.config = get_config()
        transfer = vllm_config.kv_transfer_config
        for key, value in (transfer.kv_connector_extra_config or {}).items():
            if key.startswith("lmcache.") and hasattr(self.config, key[8:]):
                setattr(self.config, key[8:], value)
                logger.info("Updated config %s from vLLM extra config", key[8:])
        model = vllm_config.model_config
        metadata = Metadata(model.model, vllm_config.parallel_config.world_size, model.kv_bytes_per_token())
        self._may_save = transfer.kv_role != "kv_consumer" and not os.environ.get("LMCACHE_FORCE_SKIP_SAVE")
        self._may_load = transfer.kv_role != "kv_producer"
        try:
            self.engine = LMCacheEngineBuilder.get_or_create(ENGINE_NAME, self.config, metadata)
        except Exception as error:
            logger.error(
                "Failed to initialize LMCacheManager components: %s. System will operate in degraded mode (recompute).",
                "".join(traceback.format_exception(error)),
            )
        version = importlib.import_module("lmcache").__version__
        logger.info(
            "LMCache initialized for role %s with version %s, lmcache cache_engine metadata: %s",
            role,
            version,
            metadata,
        )

    def _alive(self) -> LMCacheEngine | None:
        return LMCacheEngineBuilder.get(ENGINE_NAME) if self.engine else None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """How many tokens can be loaded beyond the computed ones."""
        engine = self._alive()
        if engine is None or not self._may_load:
            return 0
        hit = engine.lookup(request.prompt_token_ids)
        need = hit - num_computed_tokens
        if hit == request.num_tokens:
            need -= 1  # the last token is always computed
        logger.info(
            "Reqid: %s, Total tokens %d, Inference Engine computed tokens: %d, LMCache hit tokens: %d, "
            "need to load: %d",
            request.request_id, request.num_tokens, num_computed_tokens, hit, max(need, 0),
        )  # fmt: skip
        request.lmcache_hit = hit
        least = int(self.config.min_retrieve_tokens or 0)
        return 0 if need <= 0 or need < least else need

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        """Loads."""
        engine = self._alive()
        if engine is None:
            return []
        return engine.retrieve(request.prompt_token_ids, start, request.lmcache_hit, request.request_id)[:count]

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        """Saves what isn't stored yet, in whole chunks."""
        engine = self._alive()
        if engine is None or not self._may_save:
            return
        tokens = request.prompt_token_ids
        length = len(tokens) // engine.database.chunk_size * engine.database.chunk_size
        skip = getattr(request, "lmcache_hit", 0)
        if skip < length:
            engine.store(tokens[:length], kv[:length], skip, request.request_id)

    def metrics(self) -> dict[str, float]:
        """Counters for the engine's own exposition."""
        engine = self._alive()
        return dict(engine.stats) if engine else {}

    def shutdown(self) -> None:
        """Ends the cache engine."""
        if self._alive() is not None:
            LMCacheEngineBuilder.destroy(ENGINE_NAME)


def connector_attribute(name: str) -> Any:
    """Makes lmcache's connector class when it is first asked for: its base is vLLM's."""
    if name != "LMCacheConnectorV1Dynamic":
        raise AttributeError(name)
    from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1

    class LMCacheConnectorV1Dynamic(LMCacheConnectorV1):
        """The same connector under the name for loading by module path."""

    return LMCacheConnectorV1Dynamic
