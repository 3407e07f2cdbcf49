"""A stand-in for torch with one accelerator."""

from __future__ import annotations


class npu:  # noqa: N801 - torch's name
    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0
