"""Log lines as vLLM writes them, on standard output."""

import logging
import os
import sys

_FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        prefix = os.environ.get("_LAB_ENGINE_PREFIX", "") if record.name.startswith("vllm.engine") else ""
        return prefix + text


def init_logger(name: str) -> logging.Logger:
    """A logger below ``vllm`` with its one handler."""
    root = logging.getLogger("vllm")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(_Formatter(_FORMAT, datefmt="%m-%d %H:%M:%S"))
        root.addHandler(handler)
        root.setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
        root.propagate = False
    return logging.getLogger(name if name.startswith("vllm") else "vllm." + name)
