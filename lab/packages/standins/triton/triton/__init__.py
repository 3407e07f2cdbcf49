"""Stand-in for the community's triton, for simulated hosts. The vendor's triton-ascend has the same package name."""

from triton import language

__version__ = "@VERSION@"
__all__ = ["language"]
