"""Text to tokens: with the model's own tokenizer where it can be loaded, byte by byte otherwise."""

from pathlib import Path
from typing import Any

_OFFSET = 3  # the first ids are the usual special tokens


class ByteTokenizer:
    """One token a byte."""

    def encode(self, text: str) -> list[int]:
        """Text to ids."""
        return [byte + _OFFSET for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        """Ids to text; ids that are no byte become a space."""
        return bytes(i - _OFFSET if _OFFSET <= i < 256 + _OFFSET else 32 for i in ids).decode(errors="replace")


class FileTokenizer:
    """A ``tokenizer.json``."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def encode(self, text: str) -> list[int]:
        """Text to ids."""
        return list(self._loaded.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """Ids to text."""
        return str(self._loaded.decode(ids))


def load(model: str) -> ByteTokenizer | FileTokenizer:
    """The tokenizer of a model directory."""
    file = Path(model) / "tokenizer.json"
    if file.exists():
        try:
            from tokenizers import Tokenizer

            return FileTokenizer(Tokenizer.from_file(str(file)))
        except Exception:
            return ByteTokenizer()
    return ByteTokenizer()
