"""Real outputs of npu-smi parse to the right values, where the corpus is at hand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.parsers.npu_smi import PARSERS

_spec = importlib.util.spec_from_file_location("parser_corpus", Path(__file__).with_name("corpus.py"))
assert _spec and _spec.loader
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

KINDS = {"err": "info", "m": "map", "l": "list", "procmem": "proc-mem", "phyid": "phyid-remap"}
ERRORS = {"8005": "dcmi-init-failed", "8020": "device-in-use", "shared library": "library-missing"}
# What a reader must not take for a whole answer.
NOT_WHOLE = {"header-less fragment": "header-missing", "first row": "truncated", "text shows only": "elided"}


@pytest.mark.parametrize("row", corpus.rows("npu_smi"), ids=lambda row: row["file"])
def test_right_values(row: dict[str, Any]) -> None:
    if "missing" in row:
        pytest.skip(row["missing"])
    kind = re.sub(r"^\d+_", "", row["file"]).split("_")[0].removesuffix(".txt")
    answer = PARSERS[f"npu-smi-{KINDS.get(kind, kind)}"](corpus.text("npu_smi", row))
    wanted = row["expected"]
    if kind == "err":
        state = next((state for words, state in ERRORS.items() if words in wanted["error"]), None)
        assert answer["state"] not in {"ok", "unrecognized", "empty"}
        assert state in {None, answer["state"]}
        assert (answer["npu_count"], answer["chip_count"]) == (0, 0)
        return
    note = next((state for words, state in NOT_WHOLE.items() if words in wanted.get("note", "")), "ok")
    if "fixture" not in row["provenance"] and "excerpt" not in row["provenance"]:
        assert answer["state"] == note or note == "ok"
    if kind == "info":
        _check_info(answer, wanted)
    elif kind == "m":
        assert answer["map"] == wanted["map"]
        assert (answer["npu_count"], answer["chip_count"]) == (wanted["npus"], wanted["chips"])
        assert [die["name"] for die in answer["dies"]] == corpus.named(wanted["names"])
    elif kind == "l":
        assert answer["npu_count"] == wanted["npus"]
        assert answer["chip_count"] == (wanted["chips"] if isinstance(wanted["chips"], int) else None)
    elif kind == "topo":
        assert answer["npu_count"] == wanted["npus"]
        assert {key: answer["affinity"][key] for key in wanted["affinity"]} == wanted["affinity"]
    elif kind == "procmem":
        assert _processes(answer) == wanted["procs"]
    else:
        for key in ("soc", "health"):
            assert answer.get(key) == wanted.get(key, answer.get(key))
        for key, value in wanted.get("kv", {}).items():
            assert answer["kv"][key] == value


def _processes(answer: dict[str, Any]) -> list[list[Any]]:
    return [[p["npu_id"], p["chip_id"], p["pid"], p["name"], p["used_mb"]] for p in answer["processes"]]


def _check_info(answer: dict[str, Any], wanted: dict[str, Any]) -> None:
    chips = answer["chips"]
    assert (answer["npu_count"], answer["chip_count"]) == (wanted["npus"], wanted["chips"])
    assert [chip["name"] for chip in chips] == corpus.named(wanted["names"])
    assert [chip["health"] for chip in chips] == corpus.named(wanted["health"])
    assert {chip["memory_kind"] for chip in chips} == {wanted["mk"].split()[0]}
    assert [[chip["memory_used_mb"], chip["memory_total_mb"]] for chip in chips] == wanted["mem"]
    assert _processes(answer) == wanted.get("procs", [])
    if "procs" in wanted:
        assert answer["extra"]["process_table"]
