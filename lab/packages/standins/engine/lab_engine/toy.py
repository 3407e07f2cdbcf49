"""Pseudo KV instead of a model.

A token's KV is one number that depends on the model and on every token before it. The next token depends on the KV of
the whole sequence, so that KV which a cache gives back wrong gives another answer, as with a real model. Computing a
token takes time and loading it doesn't, so that a hit is seen in the time to the first token.
"""

import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MASK = (1 << 64) - 1
MS_PER_TOKEN = float(os.environ.get("LMCACHE_FLEET_LAB_MS_PER_TOKEN", "0.1"))
MS_PER_OUTPUT = float(os.environ.get("LMCACHE_FLEET_LAB_MS_PER_OUTPUT", "1"))
BLOCKS_KEPT = 4096


def kv_of(previous: int, token: int) -> int:
    """The pseudo KV of a token after a sequence whose last KV was *previous*."""
    value = ((previous ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & MASK
    return value ^ (value >> 31)


def _likely(state: int, token: int, count: int) -> dict[int, float]:
    """The likeliest tokens, *token* first, with numbers that depend on the KV."""
    first = -0.1 - (state >> 40) % 1000 / 2000
    return {35 + (token - 35 + 7 * rank) % 95: round(first - 0.8 * rank, 4) for rank in range(max(1, count))}


def kv_bytes_per_token(hf: dict[str, Any]) -> int:
    """Size of one token's keys and values in 16 bits, by a model's config.json."""
    heads = int(hf.get("num_attention_heads", 1))
    head_dim = int(hf.get("head_dim") or hf.get("hidden_size", 64) // max(1, heads))
    kv_heads = int(hf.get("num_key_value_heads", heads))
    return 2 * int(hf.get("num_hidden_layers", 1)) * kv_heads * head_dim * 2


def weights(path: Path) -> list[Path]:
    """The files with a model's weights."""
    return [entry for entry in sorted(path.iterdir()) if entry.suffix in (".safetensors", ".bin")]


def fingerprint(path: Path, hf: dict[str, Any]) -> int:
    """A number that differs between models."""
    seed = zlib.crc32(repr(sorted(hf.items(), key=str)).encode())
    for file in weights(path):
        with file.open("rb") as handle:
            seed = zlib.crc32(handle.read(65536), seed)
    return seed


@dataclass
class Request:
    """A request in the engine."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    arrival: float
    local_hit: int = 0
    external_hit: int = 0
    first_token: float = 0.0
    output: list[int] = field(default_factory=list)
    logprobs: int = 0
    likely: list[dict[int, float]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)


class PrefixCache:
    """An engine's own cache, by whole blocks."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: OrderedDict[int, list[int]] = OrderedDict()

    def _keys(self, tokens: list[int]) -> Iterator[int]:
        key = 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            key = zlib.crc32(repr(tokens[start : start + self.block_size]).encode(), key)
            yield key << 20 | start

    def match(self, tokens: list[int]) -> list[int]:
        """The KV of the longest cached prefix that leaves at least one token to compute."""
        kv: list[int] = []
        for key in self._keys(tokens[:-1]):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            kv += self._blocks[key]
        return kv

    def add(self, tokens: list[int], kv: list[int]) -> None:
        """Keeps the blocks of a prompt."""
        for number, key in enumerate(self._keys(tokens)):
            self._blocks[key] = kv[number * self.block_size : (number + 1) * self.block_size]
            self._blocks.move_to_end(key)
        while len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)


def prefill(seed: int, tokens: list[int], kv: list[int]) -> None:
    """Computes the KV of the tokens that *kv* doesn't cover, and puts it there."""
    time.sleep((len(tokens) - len(kv)) * MS_PER_TOKEN / 1000)
    previous = kv[-1] if kv else seed
    for token in tokens[len(kv) :]:
        previous = kv_of(previous, token)
        kv.append(previous)


def generate(request: Request, kv: list[int]) -> Iterator[int]:
    """The tokens after a prompt, as they come; they are noted in the request."""
    state, previous = 0, kv[-1]
    for value in kv:
        state = (state * 31 + value) & MASK
    for number in range(request.max_tokens):
        if number:
            time.sleep(MS_PER_OUTPUT / 1000)
        token = 35 + (state >> 17) % 95  # printable, in the byte tokenizer
        if request.logprobs:
            request.likely.append(_likely(state, token, request.logprobs))
        previous = kv_of(previous, token)
        state = (state * 31 + previous) & MASK
        request.output.append(token)
        yield token
