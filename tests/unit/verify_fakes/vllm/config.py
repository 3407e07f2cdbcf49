"""The part of vllm.config that the verification uses."""

from __future__ import annotations

from typing import Any


class KVTransferConfig:
    def __init__(self, kv_connector: str, **options: Any) -> None:
        self.kv_connector, self.options = kv_connector, options
