"""The vendor's connectors."""

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory


def register_connectors() -> None:
    """Registers them by name; only the one for LMCache exists in the stand-in."""
    name = "LMCacheAscendConnector"
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, "vllm_ascend.distributed.lmcache_ascend_connector", name)
