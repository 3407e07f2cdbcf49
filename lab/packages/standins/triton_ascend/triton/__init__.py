"""Stand-in for triton-ascend, for simulated hosts. It fills the same package as the community's triton."""

from triton import language

__version__ = "@VERSION@"
__all__ = ["language"]
