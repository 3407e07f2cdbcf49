"""One engine's dealings with ``lmcache server``: what it asks, of which model."""

import array
import importlib
import time
from typing import Any

from lmcache import backend
from lmcache.mp.protocol import Client


class Session:
    """A connection for one model; raises ``ConnectionError`` where nobody answers."""

    def __init__(self, host: str, port: int, model: str, bytes_per_token: int) -> None:
        self._client = Client(host, port)
        self._model = model
        self._bytes = bytes_per_token

    def greet(self, patience: float) -> int:
        """The server's chunk size; waits for a server that starts at the same moment."""
        until = time.monotonic() + patience
        while True:
            try:
                return int(self._client.ask({"what": "hello", "model": self._model})[0]["chunk_size"])
            except ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def lookup(self, tokens: list[int]) -> int:
        """How many of the first tokens the server has KV of."""
        return int(self._client.ask({"what": "lookup", "model": self._model, "tokens": tokens})[0]["hit"])

    def retrieve(self, tokens: list[int], hit: int) -> array.array:
        """The KV of the first *hit* tokens; less where some is gone meanwhile."""
        return self._client.ask({"what": "retrieve", "model": self._model, "tokens": tokens, "hit": hit})[1]

    def store(self, tokens: list[int], kv: list[int]) -> None:
        """Keeps KV."""
        message: dict[str, Any] = {"what": "store", "model": self._model, "tokens": tokens}
        self._client.ask({**message, "bytes_per_token": self._bytes}, array.array("Q", kv))


def check_kernels() -> None:
    """Raises where this build has no kernels for its device."""
    try:
        importlib.import_module(backend.KERNELS)
    except ImportError as error:
        raise RuntimeError(backend.MISSING) from error
