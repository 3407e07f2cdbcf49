"""The worker: what must be right on the host before the first token."""

import ctypes
import os
from typing import Any

from vllm.logger import init_logger

logger = init_logger("vllm.engine.worker")


class NPUWorker:
    """Holds the devices of all ranks of one engine."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.utilization = config.cache_config.gpu_memory_utilization
        self._checked = False
        self._bytes = 0

    def init_device(self) -> None:
        """The checks in the order in which the real worker meets them."""
        import torch_npu

        npu = torch_npu.npu
        if npu.is_initialized() and os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork") != "spawn":
            raise RuntimeError(
                "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
                "'spawn' start method"
            )
        try:
            ctypes.CDLL("libatb.so")
        except OSError as error:
            raise OSError(str(error)) from None
        ranks, count = self.config.parallel_config.world_size, npu.device_count()
        if ranks > count:
            raise AssertionError(
                f"local_world_size ({ranks}) must be less than or equal to the number of visible devices ({count})."
            )
        for device in range(ranks):
            npu.set_device(device)
            free, total = npu.mem_get_info(device)
            wanted = int(total * self.utilization)
            if free < wanted:
                raise ValueError(
                    f"Free memory on device ({free / 2**30:.2f}/{total / 2**30:.2f} GiB) on startup is less than "
                    f"desired GPU memory utilization ({self.utilization}, {wanted / 2**30:.2f} GiB). Decrease GPU "
                    "memory utilization or reduce GPU memory used by other processes."
                )
            npu.hold(device, max(1, wanted // 2**20 - npu.hardware()["chips"]["idle_mb"]))
            self._bytes += wanted // 2
        npu.set_device(0)
        logger.info("Using device npu:0 (%s)", npu.get_device_name())

    def before_inference(self) -> None:
        """The vendor's kernels are compiled with triton at the first inference."""
        if self._checked:
            return
        import triton.language as tl

        if not hasattr(tl, "constexpr_function"):
            raise AttributeError("module 'triton.language' has no attribute 'constexpr_function'")
        # compiled kernels are written below the working directory
        os.makedirs("kernel_meta", exist_ok=True)
        self._checked = True

    def cache_bytes(self) -> int:
        """Room for KV on the devices."""
        return self._bytes

    def release(self) -> None:
        """Gives the devices back."""
        import torch_npu

        torch_npu.npu.release()
