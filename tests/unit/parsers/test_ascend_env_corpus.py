"""Real version files and listings parse to the right values, where the corpus is at hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.parsers.ascend_env import PARSERS

_spec = importlib.util.spec_from_file_location("parser_corpus", Path(__file__).with_name("corpus.py"))
assert _spec and _spec.loader
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

KINDS = {
    "driver_version": "ascend-driver-info",
    "firmware_version": "ascend-firmware-info",
    "ascend_install_info": "ascend-install-info",
    "nnae_install": "ascend-toolkit-info",
    "toolkit_install": "ascend-toolkit-info",
    "ops_install": "ascend-toolkit-info",
    "version_cfg": "ascend-version-cfg",
    "nnal": "ascend-nnal-info",
    "mindie": "ascend-mindie-info",
    "collect_env": "collect-env",
    "lspci": "lspci-ascend",
    "ls_": "ls-toolkit",
    "hccn": "hccn-conf",
}


@pytest.mark.parametrize("row", corpus.rows("ascend_env"), ids=lambda row: row["file"])
def test_right_values(row: dict[str, Any]) -> None:
    if "missing" in row:
        pytest.skip(row["missing"])
    kind = next(kind for words, kind in KINDS.items() if words in row["file"])
    answer = PARSERS[kind](corpus.text("ascend_env", row))
    assert answer["state"] == "ok"
    for key, value in row["expected"].items():
        if key != "note":
            # Where two values are told apart in words, the file's own comes first.
            assert answer[key] == (value.split(" (")[0] if isinstance(value, str) else value)
