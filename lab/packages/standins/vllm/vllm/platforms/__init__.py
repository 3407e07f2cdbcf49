"""The platform this process runs on."""

import importlib
from typing import Any

from vllm.logger import init_logger
from vllm.plugins import platform_class

logger = init_logger(__name__)
_current: Any = None


class UnspecifiedPlatform:
    """No platform was found."""

    device_type = ""


def current() -> Any:
    """The platform, found at the first call."""
    global _current
    if _current is None:
        path = platform_class()
        if path is None:
            logger.info("No platform detected, vLLM is running on UnspecifiedPlatform")
            _current = UnspecifiedPlatform()
        else:
            module, _, name = path.rpartition(".")
            _current = getattr(importlib.import_module(module), name)()
    return _current


def __getattr__(name: str) -> Any:
    if name == "current_platform":
        return current()
    raise AttributeError(name)
