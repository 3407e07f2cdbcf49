"""The NPU platform."""

from typing import Any


class NPUPlatform:
    """What vLLM asks of a platform."""

    device_type = "npu"
    device_name = "npu"

    def make_worker(self, config: Any) -> Any:
        """The worker for one engine."""
        from vllm_ascend.worker import NPUWorker

        return NPUWorker(config)
