"""The community's language module: lacks what the vendor's kernels ask of it."""

constexpr = int
