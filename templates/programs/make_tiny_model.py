#!/usr/bin/env python3
"""Make a tiny random Qwen2 model, the same bytes for the same seed, with nothing but the standard library.

    python make_tiny_model.py --out DIR --seed 7 [--size tiny|nano] [--config-only]

A trial of KV offload needs weights whose answers depend on the prompt, and needs them in seconds and without a hub.
Layers are untied and wide-spread (standard deviation 0.08): a two-layer tied model with the usual 0.02 answers one
constant word, which would hide a corrupted cache. Neither torch nor numpy nor tokenizers is used, so that it also runs
where torch is a stand-in, and so that the files do not depend on a library's version.

DIR appears whole or not at all. Exit status: 0 made or already there, 2 when DIR holds something else or the arguments
are bad.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import struct
import sys
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

MANIFEST = "manifest.json"
FORMAT = "lmcache-fleet/tiny-model/v1"
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
END_OF_TEXT = "<|endoftext|>"
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@dataclass(frozen=True)
class Size:
    """Dimensions of a model.

    Args:
        hidden: width of the residual stream.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        intermediate: width of the MLP.
        vocab: tokens, at least 512.
        positions: longest sequence.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int


SIZES = {
    # 3.4 M parameters, 6.8 MB: the one that a CPU engine answers from in milliseconds.
    "tiny": Size(256, 4, 4, 2, 64, 512, 2048, 32768),
    # For hosts whose engine never reads the weights.
    "nano": Size(64, 2, 1, 1, 64, 64, 512, 32768),
}
INIT_STD = 0.08


def config(size: Size) -> dict[str, object]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": size.vocab - 1,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initializer_range": INIT_STD,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": size.positions,
        "max_window_layers": size.layers,
        "model_type": "qwen2",
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": size.vocab,
    }


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def tokenizer(size: Size) -> dict[str, object]:
    """A byte-level BPE tokenizer.json whose upper ids are whole two-syllable words with their leading space."""
    space = byte_characters()[32]
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    merges = [(s[0], s[1]) for s in syllables]
    merges += [(space, s) for s in syllables]
    merges += [(space + a, b) for a in syllables for b in syllables]
    merges = merges[: size.vocab - 257]  # 256 bytes below, the end-of-text token above
    tokens = [*byte_characters(), *(a + b for a, b in merges)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": size.vocab - 1,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate([*tokens, END_OF_TEXT])},
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }


def tokenizer_config(size: Size) -> dict[str, object]:
    """The tokenizer_config.json that transformers reads."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": size.positions,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def tensors(size: Size) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and filling (`random`, `ones`, `zeros`) of each tensor, in file order."""
    query, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    yield "lm_head.weight", (size.vocab, size.hidden), "random"
    yield "model.embed_tokens.weight", (size.vocab, size.hidden), "random"
    for number in range(size.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (size.hidden,), "ones"
        yield f"{layer}.mlp.down_proj.weight", (size.hidden, size.intermediate), "random"
        yield f"{layer}.mlp.gate_proj.weight", (size.intermediate, size.hidden), "random"
        yield f"{layer}.mlp.up_proj.weight", (size.intermediate, size.hidden), "random"
        yield f"{layer}.post_attention_layernorm.weight", (size.hidden,), "ones"
        for name, width in (("q", query), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{name}_proj.bias", (width,), "zeros"
            yield f"{layer}.self_attn.{name}_proj.weight", (width, size.hidden), "random"
        yield f"{layer}.self_attn.o_proj.weight", (size.hidden, query), "random"
    yield "model.norm.weight", (size.hidden,), "ones"


def bfloat16(value: float) -> int:
    """The bfloat16 nearest to a value, as its 16 bits (ties away from zero: good enough for noise)."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x8000) >> 16


def normal_table() -> array[int]:
    """The normal distribution's 65536 quantiles as bfloat16.

    Sixteen random bits look a weight up: far quicker in plain Python than drawing each from a normal distribution.
    """
    normal = NormalDist(0.0, INIT_STD)
    return array("H", (bfloat16(normal.inv_cdf((i + 0.5) / 65536)) for i in range(65536)))


def little_endian(values: array[int]) -> bytes:
    """Bytes of 16-bit values in the order that safetensors wants."""
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def fill(count: int, filling: str, table: array[int], source: random.Random) -> bytes:
    """The bytes of one tensor."""
    if filling == "zeros":
        return bytes(2 * count)
    if filling == "ones":
        return struct.pack("<H", bfloat16(1.0)) * count
    drawn = array("H", source.randbytes(2 * count))
    if sys.byteorder == "big":
        drawn.byteswap()
    return little_endian(array("H", [table[i] for i in drawn]))


def write_weights(path: Path, size: Size, seed: int) -> None:
    """Write model.safetensors: eight bytes of header length, the header as JSON, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset, plan = 0, []
    for name, shape, filling in tensors(size):
        count = 1
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + 2 * count]}
        offset += 2 * count
        plan.append((count, filling))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    table, source = normal_table(), random.Random(seed)  # noqa: S311 - weights, not secrets
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for count, filling in plan:
            out.write(fill(count, filling, table, source))


def write_json(path: Path, value: object) -> None:
    """Write JSON in one fixed form."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest(directory: Path, size: str, seed: int, config_only: bool) -> dict[str, object]:
    """What the directory holds: each file but the manifest itself, by its hash."""
    files = {p.name: sha256(p) for p in sorted(directory.iterdir()) if p.name != MANIFEST}
    return {"format": FORMAT, "size": size, "seed": seed, "config_only": config_only, "files": files}


def write_model(directory: Path, size: str, seed: int, config_only: bool) -> None:
    """Write every file of the model, the manifest last."""
    dimensions = SIZES[size]
    write_json(directory / "config.json", config(dimensions))
    write_json(directory / "generation_config.json", {"eos_token_id": dimensions.vocab - 1, "do_sample": False})
    write_json(directory / "tokenizer.json", tokenizer(dimensions))
    write_json(directory / "tokenizer_config.json", tokenizer_config(dimensions))
    if not config_only:
        write_weights(directory / "model.safetensors", dimensions, seed)
    write_json(directory / MANIFEST, manifest(directory, size, seed, config_only))


def existing(directory: Path) -> dict[str, object] | None:
    """The manifest of a directory that this program made; None when there is none."""
    try:
        found = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def intact(directory: Path, size: str, seed: int, config_only: bool) -> bool:
    """Whether the directory already holds just this model, every byte of it."""
    found = existing(directory)
    return found is not None and found == manifest(directory, size, seed, config_only)


def make(directory: Path, size: str, seed: int, config_only: bool) -> bool:
    """Make the model at the directory.

    Returns:
        False when it was there already.

    Raises:
        FileExistsError: the directory holds something that this program did not make.
    """
    if intact(directory, size, seed, config_only):
        return False
    if directory.exists() and (not directory.is_dir() or (any(directory.iterdir()) and existing(directory) is None)):
        raise FileExistsError(f"{directory} exists and was not made by this program; give another --out or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        fresh = work / "model"
        fresh.mkdir(mode=0o755)
        write_model(fresh, size, seed, config_only)
        if directory.exists():
            directory.rename(work / "old")
        fresh.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and make the model."""
    parser = argparse.ArgumentParser(description="Make a tiny random model for a trial of KV offload.")
    parser.add_argument("--out", required=True, type=Path, help="directory to make")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--config-only", action="store_true", help="leave the weights out")
    options = parser.parse_args(arguments)
    out = Path(os.path.abspath(options.out))  # noqa: PTH100 - resolve() would follow a symlink that is to be replaced
    try:
        made = make(out, options.size, options.seed, options.config_only)
    except OSError as error:
        print(f"make_tiny_model: {error}", file=sys.stderr)
        return 2
    total = sum(p.stat().st_size for p in out.iterdir())
    print(f"make_tiny_model: {'made' if made else 'unchanged'}: {out} ({total} bytes)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
