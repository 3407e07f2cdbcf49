"""vLLM's own LMCache connector with LMCache-Ascend's device patches."""

import lmcache_ascend  # noqa: F401 - its import patches lmcache

# isort: split
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1


class LMCacheAscendConnector(LMCacheConnectorV1):
    """The same under the vendor's name."""
