"""Stand-in for torchvision, for simulated hosts."""

from torchvision.version import __version__

__all__ = ["__version__"]
