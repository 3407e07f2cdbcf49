"""vLLM's name for LMCache's MP connector."""

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector

__all__ = ["LMCacheMPConnector"]
