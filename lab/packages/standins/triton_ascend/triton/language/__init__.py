"""The vendor's language module."""

constexpr = int


def constexpr_function(function):
    """What the vendor's kernels are decorated with."""
    return function
