"""vLLM's own in-process LMCache connector."""

import traceback
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


class _Degraded:
    """LMCache that could not start: everything is computed again."""

    def __init__(self, reason: str) -> None:
        logger.error(
            "Failed to initialize LMCacheManager components: %s. System will operate in degraded mode (recompute).",
            reason,
        )

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        return 0

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        return []

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        return None

    def shutdown(self) -> None:
        return None


class LMCacheConnectorV1(KVConnectorBase_V1):
    """Hands everything to the adapter that LMCache brings."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._lmcache_engine: Any
        import lmcache

        try:
            from lmcache.integration.vllm.vllm_v1_adapter import LMCacheConnectorV1Impl
        except Exception:
            logger.debug("lmcache %s without a device patch: %s", lmcache.__version__, traceback.format_exc())
            self._lmcache_engine = _Degraded("RuntimeError: Unsupported device platform for LMCache engine.\n")
        else:
            self._lmcache_engine = LMCacheConnectorV1Impl(vllm_config, role, self)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """See the base class."""
        return self._lmcache_engine.get_num_new_matched_tokens(request, num_computed_tokens), False

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        """See the base class."""
        return self._lmcache_engine.start_load_kv(request, start, count)

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        """See the base class."""
        self._lmcache_engine.wait_for_save(request, kv)

    def shutdown(self) -> None:
        """See the base class."""
        self._lmcache_engine.shutdown()
