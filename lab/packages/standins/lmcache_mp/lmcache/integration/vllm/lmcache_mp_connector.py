"""The connector that talks to ``lmcache server``."""

import array
import importlib
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from lmcache import backend
from lmcache.logging import init_logger
from lmcache.mp.protocol import Client

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("lmcache.integration.vllm.lmcache_mp_connector")


class LMCacheMPConnector(KVConnectorBase_V1):
    """One side of the connector; each has its own connection."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        try:
            importlib.import_module(backend.KERNELS)
        except ImportError as error:
            raise RuntimeError(backend.MISSING) from error
        transfer, model = vllm_config.kv_transfer_config, vllm_config.model_config
        host = str(transfer.get_from_extra_config("lmcache.mp.host", "tcp://localhost")).removeprefix("tcp://")
        self._client = Client(host, int(transfer.get_from_extra_config("lmcache.mp.port", 5555)))
        self._model = model.model
        self._bytes = model.kv_bytes_per_token()
        self._healthy = True
        self._chunk = 0
        answer = self._greet()
        if answer is not None:
            self._chunk = answer[0]["chunk_size"]
            logger.info("Creating transfer context (device_type=%s, mode=lmcache_driven)", backend.DEVICE)

    def _greet(self) -> tuple[dict[str, Any], array.array] | None:
        """The first question waits a little for a server that starts at the same moment."""
        hello = {"what": "hello", "model": self._model}
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                return self._client.ask(hello)
            except ConnectionError:
                time.sleep(0.1)
        return self._ask(hello)

    def _ask(self, message: dict[str, Any], kv: array.array | None = None) -> tuple[dict[str, Any], array.array] | None:
        try:
            answer = self._client.ask(message, kv)
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
        answer = self._ask({"what": "lookup", "model": self._model, "tokens": request.prompt_token_ids})
        hit = answer[0]["hit"] if answer else 0
        request.lmcache_hit = hit
        need = hit - num_computed_tokens - (hit == request.num_tokens)
        return max(need, 0), False

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        """See the base class."""
        message = {"what": "retrieve", "model": self._model, "tokens": request.prompt_token_ids}
        answer = self._ask({**message, "hit": request.lmcache_hit})
        return list(answer[1][start : start + count]) if answer else []

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        """See the base class."""
        message = {"what": "store", "model": self._model, "tokens": request.prompt_token_ids}
        self._ask({**message, "bytes_per_token": self._bytes}, array.array("Q", kv))
