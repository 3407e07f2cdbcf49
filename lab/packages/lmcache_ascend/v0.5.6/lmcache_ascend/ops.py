"""The native operations that LMCache looks for on an NPU."""

import torch  # noqa: F401 - loads the library that the extension was built against
import torch_npu  # noqa: F401 - likewise

from lmcache_ascend import c_ops

__all__ = ["c_ops"]
