"""The connector that talks to ``lmcache server``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from lmcache import backend
from lmcache.logging import init_logger
from lmcache.mp.session import Session, check_kernels

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("lmcache.integration.vllm.lmcache_mp_connector")
_PATIENCE = 3.0

T = TypeVar("T")


class LMCacheMPConnector(KVConnectorBase_V1):
    """One side of the connector; each has its own connection."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_kernels()
        transfer, model = vllm_config.kv_transfer_config, vllm_config.model_config
        host = str(transfer.get_from_extra_config("lmcache.mp.host", "tcp://localhost")).removeprefix("tcp://")
        port = int(transfer.get_from_extra_config("lmcache.mp.port", 5555))
        self._session = Session(host, port, model.model, model.kv_bytes_per_token())
        self._healthy = True
        if self._ask(lambda: self._session.greet(_PATIENCE)) is not None:
            logger.info("Creating transfer context (device_type=%s, mode=lmcache_driven)", backend.DEVICE)

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            answer = question()
        except ConnectionError as error:
            if self._healthy:
                logger.warning("LMCache server is unhealthy — entering degraded mode (%s)", error)
            self._healthy = False
            return None
        if not self._healthy:
            logger.info("LMCache server is healthy again")
        self._healthy = True
        return answer

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """See the base class."""
        hit = self._ask(lambda: self._session.lookup(request.prompt_token_ids)) or 0
        request.lmcache_hit = hit
        need = hit - num_computed_tokens - (hit == request.num_tokens)
        return max(need, 0), False

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        """See the base class."""
        kv = self._ask(lambda: self._session.retrieve(request.prompt_token_ids, request.lmcache_hit))
        return list(kv[start : start + count]) if kv else []

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        """See the base class."""
        self._ask(lambda: self._session.store(request.prompt_token_ids, kv))
