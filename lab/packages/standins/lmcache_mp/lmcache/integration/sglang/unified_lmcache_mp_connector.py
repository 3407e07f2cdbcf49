"""The connector of SGLang's radix cache to ``lmcache server``."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lmcache.mp.session import Session, check_kernels

# As in the real one, which has no handler of LMCache's here: the lines are in SGLang's own form.
logger = logging.getLogger(__name__)
_TIMEOUT = 300.0

T = TypeVar("T")


class UnifiedLMCacheMPConnector:
    """Lookups, loads and stores of one engine."""

    def __init__(self, *, config_file: str | None, model_path: str, bytes_per_token: int, page_size: int) -> None:
        config: dict[str, Any] = yaml.safe_load(Path(config_file).read_text()) or {} if config_file else {}
        if not config.get("mp_host"):
            raise ValueError("LMCache MP config must define mp_host; pass --lmcache-config-file or LMCACHE_CONFIG_FILE")
        check_kernels()
        host = str(config["mp_host"]).removeprefix("tcp://")
        self._session = Session(host, int(config.get("mp_port", 5555)), model_path, bytes_per_token)
        timeout = float((config.get("extra_config") or {}).get("lmcache.mp.mq_timeout", _TIMEOUT))
        try:
            self.chunk_size = self._session.greet(timeout)
        except ConnectionError as error:
            raise TimeoutError from error
        if self.chunk_size % page_size:
            raise ValueError(
                f"LMCache chunk size {self.chunk_size} must be a positive multiple of every SGLang group "
                "tokens_per_block"
            )
        logger.info("UnifiedLMCacheMPConnector initialized succeed.")

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ConnectionError:
            logger.exception("LMCache %s failed", what)
            return None

    def load(self, tokens: list[int], start: int) -> list[int]:
        """The KV from *start* that the server has beyond it; one token at least is left to compute."""
        hit = self._ask("lookup submission", lambda: self._session.lookup(tokens)) or 0
        if hit <= start:
            return []
        kv = self._ask("retrieve", lambda: self._session.retrieve(tokens, hit))
        return list(kv[start : len(tokens) - 1]) if kv else []

    def store(self, tokens: list[int], kv: list[int]) -> None:
        """Keeps the KV of a prompt's whole chunks."""
        self._ask("store submission", lambda: self._session.store(tokens, kv))
