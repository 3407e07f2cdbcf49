"""Log lines as LMCache writes them: coloured, on standard error."""

import logging
import os

_COLOURS = {"INFO": "32;20", "WARNING": "33;20", "ERROR": "31;20"}


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        colour = _COLOURS.get(record.levelname, "1")
        text = f"\x1b[{colour}m[{self.formatTime(record)}] LMCache {record.levelname}:\x1b[0m {record.getMessage()} "
        return text + f"\x1b[3m({record.filename}:{record.lineno}:{record.name})\x1b[0m"


def init_logger(name: str) -> logging.Logger:
    """A logger with its own handler."""
    logger = logging.getLogger(name)
    logger.handlers.clear()
    logger.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.setLevel(os.environ.get("LMCACHE_LOG_LEVEL", "INFO").upper())
    return logger
