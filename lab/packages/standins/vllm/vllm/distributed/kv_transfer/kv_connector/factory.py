"""Makes connectors by name, or from a module that the configuration names."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.logger import init_logger

logger = init_logger(__name__)


class KVConnectorFactory:
    """The registry."""

    _registry: dict[str, Callable[[], type[KVConnectorBase_V1]]] = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Makes a connector known by name; its module is imported when it is first wanted."""
        if name in cls._registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_connector(cls, config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any) -> KVConnectorBase_V1:
        """Makes the connector that *config* asks for."""
        transfer = config.kv_transfer_config
        if transfer is None or transfer.kv_connector is None:
            raise ValueError("Connector name is not set in KVTransferConfig")
        name = transfer.kv_connector
        if name in cls._registry:
            found = cls._registry[name]()
        else:
            found = cls._external(name, transfer.kv_connector_module_path)
        logger.info("Creating v1 connector with name: %s and engine_id: %s", found.__name__, transfer.engine_id)
        if name in cls._registry and "kv_cache_config" not in inspect.signature(found.__init__).parameters:
            return found(config, role)
        return found(config, role, kv_cache_config)

    @classmethod
    def get_connector_class_by_name(cls, name: str) -> type[KVConnectorBase_V1]:
        """The class of a registered connector."""
        if name not in cls._registry:
            raise ValueError(f"Connector '{name}' is not registered.")
        return cls._registry[name]()

    @staticmethod
    def _external(name: str, path: str | None) -> type[KVConnectorBase_V1]:
        if not path:
            raise ValueError(f"Unsupported connector type: {name}")
        module = importlib.import_module(path)
        try:
            found = getattr(module, name)
        except AttributeError as error:
            raise AttributeError(f"Class {name} not found in {path}") from error
        if len(inspect.signature(found.__init__).parameters) < 4:
            raise ValueError(
                f"Connector {found.__name__} uses deprecated 2-argument constructor signature. External v1 KV "
                "connectors must accept kv_cache_config as the third constructor argument and pass it to "
                "super().__init__()."
            )
        return found


_HERE = "vllm.distributed.kv_transfer.kv_connector.v1"
KVConnectorFactory.register_connector("LMCacheConnectorV1", f"{_HERE}.lmcache_connector", "LMCacheConnectorV1")
KVConnectorFactory.register_connector("LMCacheMPConnector", f"{_HERE}.lmcache_mp_connector", "LMCacheMPConnector")
