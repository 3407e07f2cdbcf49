"""Stand-in for vllm-ascend, for simulated hosts."""

from vllm_ascend.version import __version__


def register() -> str:
    """Platform plugin: names the platform class."""
    return "vllm_ascend.platform.NPUPlatform"


def register_connector() -> None:
    """General plugin: makes the vendor's connectors known by name."""
    from vllm_ascend.distributed import register_connectors

    register_connectors()


__all__ = ["__version__", "register", "register_connector"]
