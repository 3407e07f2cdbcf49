"""Puts stand-ins where lmcache's own modules would need the real torch. Its configuration and logging stay real."""

import importlib
import sys
import types
from typing import Any

from lmcache_ascend.standin import adapter, engine

_OWN = {
    "lmcache.integration.vllm.utils": {"ENGINE_NAME": engine.ENGINE_NAME},
    "lmcache.integration.vllm.vllm_v1_adapter": {"LMCacheConnectorV1Impl": adapter.LMCacheConnectorV1Impl},
    "lmcache.integration.vllm.lmcache_connector_v1": {"LMCacheConnectorV1Dynamic": None},
    "lmcache.v1.cache_engine": {
        "LMCacheEngineBuilder": engine.LMCacheEngineBuilder,
        "LMCacheEngine": engine.LMCacheEngine,
    },
}
_MORE_KEYS: dict[str, tuple[type, Any]] = {
    "p2p_use_npu": (bool, False),
    "p2p_npu_buffer_size": (int, 2**30),
    "p2p_pull_mode": (bool, False),
    "p2p_delay_pull": (bool, False),
    "pd_pull_mode": (bool, False),
    "store_async": (bool, False),
    "store_async_max_queue_size": (int, 0),
}


def _to_bool(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1")


def _extend_configuration() -> None:
    """The device's own keys, in lmcache's own table."""
    config = importlib.import_module("lmcache.v1.config")
    base = importlib.import_module("lmcache.v1.config_base")
    old = config.LMCacheEngineConfig
    for key, (kind, default) in _MORE_KEYS.items():
        config._CONFIG_DEFINITIONS.setdefault(
            key, {"type": kind, "default": default, "env_converter": _to_bool if kind is bool else int}
        )
    extras = [
        "validate",
        "log_config",
        "get_extra_config_value",
        "get_lmcache_worker_ids",
        "get_lookup_server_worker_ids",
        "from_legacy",
        "update_config_from_env",
    ]
    config.LMCacheEngineConfig = base.create_config_class(
        config_name="LMCacheEngineConfig",
        config_definitions=config._CONFIG_DEFINITIONS,
        config_aliases=config._CONFIG_ALIASES,
        deprecated_configs=config._DEPRECATED_CONFIGS,
        namespace_extras={name: old.__dict__[name] for name in extras if name in old.__dict__},
    )


def install(patched: bool) -> None:
    """Replaces the modules; *patched* says whether the device is known to lmcache afterwards."""
    engine.LMCacheEngineBuilder.device_known = patched
    if patched:
        _extend_configuration()
    for name, content in _OWN.items():
        module = types.ModuleType(name, "Stand-in of the lmcache-fleet lab.")
        for key, value in content.items():
            if value is not None:
                setattr(module, key, value)
        if name.endswith("lmcache_connector_v1"):
            # vLLM's base class can only be imported when somebody asks for the connector
            module.__getattr__ = adapter.connector_attribute  # type: ignore[method-assign]
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        setattr(importlib.import_module(parent), leaf, module)
