"""Stand-in for torchaudio, for simulated hosts."""

from torchaudio.version import __version__

__all__ = ["__version__"]
