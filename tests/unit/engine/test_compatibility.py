"""The three upstream lines: each playbook passes, and every wrong mix of one is refused by a rule of its own."""

# ruff: noqa: E501 - a table of cases, one a line
from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lmcache_fleet.cli import main
from lmcache_fleet.cli_settings import setting
from lmcache_fleet.compatibility import findings, rules
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.repository import ROOT

A, B, C = "ascend", "ascend-dsv4", "ascend-mp"
MODULE = "lmcache_ascend.integration.vllm.lmcache_ascend_connector"
Change = Callable[[dict[str, Any]], None]


def fired(data: dict[str, Any], tmp_path: Path) -> list[str]:
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    read_playbook.cache_clear()
    return [finding.rule for finding in findings(check_document(read_playbook(path)))]


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / f"playbooks/{name}.yaml").read_text())
    return data


def step(data: dict[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = next(s[kind] for s in data["steps"] if kind in s and name in (None, s[kind].get("name")))
    return found


def var(**values: str) -> Change:
    return lambda data: data["vars"].update(values)


def connector(**fields: Any) -> Change:
    return lambda data: step(data, "service")["connector"].update(fields)


def server(value: Any) -> Change:
    return lambda data: step(data, "service").update(server=value)


def mode(value: str) -> Change:
    return lambda data: step(data, "verify").update(mode=value)


def without_patch(data: dict[str, Any]) -> None:
    step(data, "source")["patches"].pop()


def swapped(one: str, two: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        places = {s["packages"]["name"]: at for at, s in enumerate(data["steps"]) if "packages" in s}
        steps = data["steps"]
        steps[places[one]], steps[places[two]] = steps[places[two]], steps[places[one]]

    return change


def one_call(data: dict[str, Any]) -> None:
    step(data, "packages", "vllm")["pins"].append("vllm-ascend=={{ vllm }}")
    data["steps"] = [s for s in data["steps"] if s.get("packages", {}).get("name") != "vllm-ascend"]


def unowned(data: dict[str, Any]) -> None:
    step(data, "packages", "triton-ascend").pop("owns")


def from_wheel(data: dict[str, Any]) -> None:
    step(data, "packages", "lmcache").pop("no_binary")


# Line, what is changed, the rule that must fire; each is the negative twin of a playbook that passes.
WRONG: list[tuple[str, list[Change], str]] = [
    (A, [var(lmcache="0.4.5")], "lmcache-and-ascend-differ"),
    (A, [var(lmcache="0.4.3")], "lmcache-and-ascend-differ"),
    (A, [var(lmcache="0.5.6")], "old-ascend-on-new-lmcache"),
    (A, [var(lmcache_ascend_ref="v0.5.6")], "lmcache-and-mp-differ"),
    (A, [var(lmcache_ascend_ref="v0.5.6")], "in-process-on-mp-line"),
    (A, [var(lmcache_ascend_ref="dsv4_support_045")], "lmcache-and-dsv4-differ"),
    (A, [without_patch], "connector-two-arguments"),
    (A, [connector(module_path=None)], "connector-without-module"),
    (A, [connector(name="LMCacheAscendConnector", module_path=MODULE)], "module-of-another-line"),
    (A, [connector(name="LMCacheMPConnector")], "mp-on-old-line"),
    (A, [server({})], "server-without-mp"),
    (A, [mode("mp")], "proof-of-mp-in-process"),
    (A, [var(vllm="0.16.0", connector="LMCacheAscendConnector")], "connector-not-registered-yet"),
    (A, [var(vllm="0.26.0", connector="LMCacheAscendConnector")], "connector-not-registered-any-more"),
    (A, [var(vllm="0.19.0")], "module-path-needs-vllm"),
    (A, [one_call], "one-call-for-two-torches"),
    (A, [swapped("vllm", "vllm-ascend")], "one-call-for-two-torches"),
    (A, [swapped("triton-ascend", "vllm-ascend")], "triton-ascend-not-last"),
    (A, [unowned], "triton-unowned"),
    (A, [from_wheel], "lmcache-from-a-cuda-wheel"),
    (A, [lambda data: step(data, "lmcache_config").update(lmcache="0.4.5")], "settings-of-another-lmcache"),
    (A, [lambda data: step(data, "packages", "vllm-ascend").update(pins=["vllm-ascend==0.22.1"])], "vllm-and-ascend-differ"),
    (B, [var(lmcache="0.4.4")], "lmcache-and-dsv4-differ"),
    (B, [var(lmcache="0.5.6")], "lmcache-and-dsv4-differ"),
    (B, [var(lmcache_ascend_ref="v0.4.4")], "lmcache-and-ascend-differ"),
    (B, [var(lmcache_ascend_ref="v0.4.4")], "module-of-another-line"),
    (B, [var(vllm="0.21.0")], "line-needs-newer-vllm"),
    (B, [var(vllm="0.25.1")], "dsv4-on-newer-vllm"),
    (B, [connector(name="LMCacheMPConnector")], "mp-on-dsv4"),
    (C, [var(lmcache="0.4.5")], "lmcache-and-mp-differ"),
    (C, [var(lmcache_ascend_ref="v0.4.4")], "lmcache-and-ascend-differ"),
    (C, [var(lmcache_ascend_ref="v0.4.4")], "mp-on-old-line"),
    (C, [var(lmcache_ascend_ref="dsv4_support_045")], "mp-on-dsv4"),
    (C, [var(vllm="0.21.0")], "mp-needs-newer-vllm"),
    (C, [connector(name="LMCacheAscendConnectorV1Dynamic", module_path=f"{MODULE}_v1")], "in-process-on-mp-line"),
    (C, [server(None)], "mp-without-server"),
    (C, [mode("inprocess")], "proof-of-another-mode"),
    (C, [from_wheel], "lmcache-from-a-cuda-wheel"),
    ("cpu", [server(None)], "cpu-in-process"),
]  # fmt: skip


@pytest.mark.parametrize("name", [A, B, C, "cpu"])
def test_a_line_as_it_stands_passes(name: str, tmp_path: Path) -> None:
    assert fired(load(name), tmp_path) == []


def test_an_engine_whose_server_is_elsewhere_passes(tmp_path: Path) -> None:
    data = load(C)
    server(None)(data)
    connector(extra={"lmcache.mp.host": "tcp://10.0.0.5", "lmcache.mp.port": 5555})(data)
    assert "mp-without-server" not in fired(data, tmp_path)


@pytest.mark.parametrize(("name", "changes", "rule"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_mix_is_refused(name: str, changes: list[Change], rule: str, tmp_path: Path) -> None:
    data = copy.deepcopy(load(name))
    for change in changes:
        change(data)
    assert rule in fired(data, tmp_path)


def test_every_rule_is_seen_to_fire() -> None:
    # Rules over what other systems need have tests of their own.
    ours = {rule.id for rule in rules() if not (rule.note or rule.host or rule.playbook.names_anything)}
    assert ours <= {rule for _, _, rule in WRONG}


def test_the_registered_connector_needs_no_patch(tmp_path: Path) -> None:
    data = load(A)
    var(connector="LMCacheAscendConnector")(data)
    without_patch(data)
    assert fired(data, tmp_path) == []


def test_a_version_on_the_command_line_keeps_its_last_zero() -> None:
    assert setting("vllm=0.10") == ("vllm", "0.10")
    assert setting("share=0.5") == ("share", 0.5)
    assert setting("name=text") == ("name", "text")
    assert setting('list=["a"]') == ("list", ["a"])


def test_check_says_it_in_one_line_and_fails() -> None:
    done = CliRunner().invoke(main, ["check", str(ROOT / "playbooks/ascend-mp.yaml"), "--set", "lmcache=0.4.5"])
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if line]
    assert "LMCache-Ascend v0.5.6 runs on lmcache 0.5.6; pin lmcache to 0.5.6" in line
