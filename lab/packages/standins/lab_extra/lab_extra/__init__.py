"""A neutral package in two versions, for trying upgrades. It imitates nothing."""

__version__ = "@VERSION@"
