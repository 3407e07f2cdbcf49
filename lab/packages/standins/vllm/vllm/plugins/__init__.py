"""Plugins by entry point: what makes vLLM know a platform it doesn't bring itself."""

import importlib.metadata
import os

from vllm.logger import init_logger

logger = init_logger(__name__)
_loaded = False


def _named(group: str) -> list[importlib.metadata.EntryPoint]:
    allowed = os.environ.get("VLLM_PLUGINS")
    found = list(importlib.metadata.entry_points(group=group))
    if allowed is not None:
        found = [entry for entry in found if entry.name in allowed.split(",")]
    return found


def platform_class() -> str | None:
    """The class path that the one active platform plugin names."""
    active = []
    for entry in _named("vllm.platform_plugins"):
        logger.info("Available plugins for group vllm.platform_plugins:")
        logger.info("- %s -> %s", entry.name, entry.value)
        path = entry.load()()
        if path is not None:
            active.append((entry.name, path))
    if len(active) > 1:
        raise RuntimeError(f"Only one platform plugin can be activated, but got: {[name for name, _ in active]}")
    if not active:
        return None
    logger.info("Platform plugin %s is activated", active[0][0])
    return active[0][1]


def load_general_plugins() -> None:
    """Runs the general plugins once."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    for entry in _named("vllm.general_plugins"):
        entry.load()()
