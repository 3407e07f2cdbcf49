"""The tiny model: the same bytes for the same seed, whole or not at all, and what vLLM and tokenizers expect."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "templates/programs/make_tiny_model.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tiny_model", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_tiny_model"] = module
    spec.loader.exec_module(module)
    return module


def make(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--out", str(out), "--size", "nano", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def hashes(out: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}


def test_same_seed_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert make(tmp_path / name, "--seed", seed).returncode == 0
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    different = {n for n, h in hashes(tmp_path / "a").items() if hashes(tmp_path / "c")[n] != h}
    assert different == {"model.safetensors", "manifest.json"}


def test_the_bytes_do_not_depend_on_python_or_machine(tmp_path: Path) -> None:
    """Fixed here so that a change of the recipe is noticed: evidence of two hosts compares models by these hashes."""
    make(tmp_path / "m", "--seed", "7")
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    assert manifest["files"]["model.safetensors"].startswith("a92e13c3d3fdc997")
    assert manifest["files"]["tokenizer.json"].startswith("60e925ff94c85f5c")


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    make(tmp_path / "m")
    found = hashes(tmp_path / "m")
    del found["manifest.json"]
    assert json.loads((tmp_path / "m/manifest.json").read_text())["files"] == found


def test_a_second_run_changes_nothing_and_mends_damage(tmp_path: Path) -> None:
    out = tmp_path / "m"
    make(out)
    before, stamp = hashes(out), (out / "config.json").stat().st_mtime_ns
    assert "unchanged" in make(out).stderr
    assert (out / "config.json").stat().st_mtime_ns == stamp
    (out / "model.safetensors").write_bytes(b"half")
    assert "made" in make(out).stderr
    assert hashes(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/precious").write_text("x")
    done = make(tmp_path / "m")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert (tmp_path / "m/precious").read_text() == "x"


def test_config_only_leaves_the_weights_out(tmp_path: Path) -> None:
    make(tmp_path / "m", "--config-only")
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        "config.json",
        "generation_config.json",
        "manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_weights_are_sound_safetensors(tmp_path: Path) -> None:
    make(tmp_path / "m")
    raw = (tmp_path / "m/model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    end = 0
    for entry in header.values():
        count = 1
        for extent in entry["shape"]:
            count *= extent
        assert entry["data_offsets"] == [end, end + 2 * count]
        end += 2 * count
    assert len(raw) == 8 + length + end
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert header["lm_head.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert "model.layers.1.self_attn.q_proj.bias" in header


@pytest.mark.parametrize("size", ["tiny", "nano"])
def test_the_tokenizer_covers_every_byte_and_the_middle_of_the_vocabulary_is_words(
    program: ModuleType, size: str
) -> None:
    value = program.tokenizer(program.SIZES[size])["model"]
    vocab = value["vocab"]
    assert sorted(vocab.values()) == list(range(program.SIZES[size].vocab))
    assert set(program.byte_characters()) <= set(vocab)
    if size == "tiny":
        middle = [token for token, number in vocab.items() if 512 <= number < 1536]
        assert all(len(token) == 5 and token[0] == program.byte_characters()[32] for token in middle)
    for merge in value["merges"]:
        first, second = merge.split(" ")
        assert {first, second, first + second} <= set(vocab)


def test_weights_are_spread_as_said(program: ModuleType) -> None:
    table = program.normal_table()
    values = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in table]
    mean = sum(values) / len(values)
    spread = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
    assert abs(mean) < 1e-3 and abs(spread - program.INIT_STD) < 1e-3
