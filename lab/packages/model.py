"""A model directory as a hub serves it: a real configuration and tokenizer, weights of a few bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

#: repository -> what its config.json tells about the size of KV and the longest context
MODELS = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "vocab_size": 151936, "max_position_embeddings": 32768,
    },
}  # fmt: skip
_FIRST_BYTE = 3


def _byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {}, 256
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(spare)
            spare += 1
    return [letters[byte] for byte in range(256)]


def files(repository: str) -> dict[str, bytes]:
    """The files of a model repository."""
    size = MODELS[repository]
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "_lab_standin": "weights of the lmcache-fleet lab; not the model of this name",
        **size,
    }
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    vocab = {text: number for number, text in enumerate(special)}
    vocab.update({letter: _FIRST_BYTE + byte for byte, letter in enumerate(_byte_letters())})
    added = [
        {
            "id": n,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for n, text in enumerate(special)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }  # fmt: skip
    weights = hashlib.sha256(repository.encode()).digest() * 32
    header = json.dumps(
        {"lab.weight": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}}
    ).encode()
    header += b" " * (-len(header) % 8)

    def text(data: object) -> bytes:
        return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()

    return {
        "config.json": text(config),
        "generation_config.json": text({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}),
        "tokenizer.json": text(tokenizer),
        "tokenizer_config.json": text(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
        ),
        "model.safetensors": struct.pack("<Q", len(header)) + header + weights,
    }


def write(directory: Path, repository: str = "Qwen/Qwen2.5-0.5B-Instruct") -> Path:
    """Writes the model into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files(repository).items():
        (directory / name).write_bytes(data)
    return directory


def commit(repository: str) -> str:
    """The revision that the hub gives for its main branch."""
    return hashlib.sha1(repr(sorted(files(repository).items())).encode()).hexdigest()
