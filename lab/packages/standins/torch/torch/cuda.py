"""No CUDA device on a simulated host."""


def is_available() -> bool:
    """Whether a CUDA device can be used."""
    return False


def device_count() -> int:
    """Number of CUDA devices."""
    return 0
