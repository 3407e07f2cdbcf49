"""What the connector and the server say to each other: a JSON line, and KV as 64-bit numbers behind it."""

import array
import hashlib
import json
import socket
from typing import Any


def keys(model: str, tokens: list[int], chunk_size: int) -> list[str]:
    """Keys of the whole chunks; no process's own hash seed is in them."""
    found, previous = [], hashlib.blake2b(model.encode(), digest_size=16)
    for start in range(0, len(tokens) // chunk_size * chunk_size, chunk_size):
        previous = hashlib.blake2b(
            previous.digest() + array.array("Q", tokens[start : start + chunk_size]).tobytes(), digest_size=16
        )
        found.append(previous.hexdigest())
    return found


def send(stream: Any, message: dict[str, Any], kv: array.array | None = None) -> None:
    """Writes one message."""
    data = kv.tobytes() if kv is not None else b""
    stream.write(json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data)
    stream.flush()


def receive(stream: Any) -> tuple[dict[str, Any], array.array]:
    """Reads one message; raises ``EOFError`` at the end."""
    line = stream.readline()
    if not line:
        raise EOFError
    message = json.loads(line)
    kv = array.array("Q")
    kv.frombytes(stream.read(message["bytes"]))
    return message, kv


class Client:
    """A connection that is made when it is needed."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._stream: Any = None

    def ask(self, message: dict[str, Any], kv: array.array | None = None) -> tuple[dict[str, Any], array.array]:
        """Sends a message and waits for its answer; raises ``OSError`` when nobody answers."""
        try:
            if self._stream is None:
                self._stream = socket.create_connection(self._address, timeout=5).makefile("rwb")
            send(self._stream, message, kv)
            return receive(self._stream)
        except (OSError, EOFError) as error:
            self._stream = None
            raise ConnectionError(str(error) or "the server closed the connection") from error
