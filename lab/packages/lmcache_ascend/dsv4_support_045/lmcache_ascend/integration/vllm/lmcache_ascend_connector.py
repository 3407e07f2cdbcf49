"""The in-process connector of this line."""

import lmcache_ascend  # noqa: F401 - its import patches lmcache

# isort: split
from typing import TYPE_CHECKING, Any

from lmcache.integration.vllm.lmcache_connector_v1 import LMCacheConnectorV1Dynamic
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class LMCacheAscendConnector(LMCacheConnectorV1Dynamic):
    """Takes the three arguments that vLLM gives today."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
