"""What a native build depends on, each part a field of its own, so that the reason of another build can be told."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_fleet.digest import digest
from lmcache_fleet.judge import Wanted, build_key, changes_of, key_differences
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import NativeBuildStep, Playbook
from lmcache_fleet.release import HostKey, HostReleases, ReleaseState

STEP = NativeBuildStep(source="src", package="lmcache_ascend", module="lmcache_ascend", version="0.4.4")
SOURCE = {"commit": "c" * 40, "submodules": {"third_party/hcomm": "d" * 40}, "patches": "p1"}
HOST: dict[str, Any] = {
    "arch": "aarch64", "os_id": "openeuler", "os_version": "24.03", "glibc": "2.38", "soc": "Ascend910B3",
    "toolkit": "9.1.0",
}  # fmt: skip
INSTALLED = {"torch": ["2.10.0"], "torch-npu": ["2.10.0.post4"], "lmcache": ["0.4.4"], "lmcache-ascend": ["0.4.4"]}


def wanted(source: dict[str, Any] | None = None, **host: Any) -> Wanted:
    playbook = Playbook.model_validate(
        {
            "apiVersion": "lmcache-fleet/v1",
            "name": "p",
            "steps": [{"source": {"name": "src", "repo": "r", "ref": "v1"}}, {"native_build": STEP.model_dump()}],
        }
    )
    key = HostKey(**{**HOST, **host})
    return Wanted(playbook, Layout("/opt/x"), key, None, {"src": {**SOURCE, **(source or {})}}, None)


def state(**parts: Any) -> ReleaseState:
    return ReleaseState(**{"name": "r", "python": "3.12.3", "distributions": INSTALLED, **parts})


@pytest.mark.parametrize(
    ("named", "source", "host", "parts"),
    [
        ("commit", {"commit": "e" * 40}, {}, {}),
        ("submodules.third_party/hcomm", {"submodules": {"third_party/hcomm": "f" * 40}}, {}, {}),
        ("patches", {"patches": "p2"}, {}, {}),
        ("soc", {}, {"soc": "Ascend910_9382"}, {}),
        ("arch", {}, {"arch": "x86_64"}, {}),
        ("toolkit", {}, {"toolkit": "9.0.0"}, {}),
        ("glibc", {}, {"glibc": "2.34"}, {}),
        ("python", {}, {}, {"python": "3.11.9"}),
        ("against.torch", {}, {}, {"distributions": {**INSTALLED, "torch": ["2.9.0"]}}),
        ("against.torch-npu", {}, {}, {"distributions": {**INSTALLED, "torch-npu": ["2.9.0"]}}),
        ("cxx_abi", {}, {}, {"torch_cxx_abi": "0"}),
    ],
)
def test_another_part_is_another_key_and_is_named(
    named: str, source: dict[str, Any], host: dict[str, Any], parts: dict[str, Any]
) -> None:
    first = build_key(STEP, wanted(), state())
    other_host, other = wanted(source, **host), state(**parts)
    second = build_key(STEP, other_host, other)
    assert digest(first) != digest(second)
    assert key_differences(first, second) == [named]
    record = {"native-lmcache_ascend": {"key": first}}
    built = state(**parts, records=record)
    (change,) = changes_of(STEP, other_host, HostReleases(), built)
    assert change.why == f"other {named}"


def test_a_build_of_lmcache_itself_is_the_same_before_and_after_it_is_installed() -> None:
    own = STEP.model_copy(update={"package": "lmcache", "module": "lmcache"})
    bare = {name: versions for name, versions in INSTALLED.items() if name != "lmcache"}
    assert build_key(own, wanted(), state(distributions=bare)) == build_key(own, wanted(), state())


def test_the_same_everything_is_no_change() -> None:
    key = build_key(STEP, wanted(), state())
    built = state(records={"native-lmcache_ascend": {"key": key}})
    assert changes_of(STEP, wanted(), HostReleases(), built) == []


@pytest.mark.parametrize(
    ("torch", "said", "abi"),
    [
        ("2.10.0+cpu", None, "1"),
        ("2.7.0", None, "1"),
        ("2.5.1", None, None),
        ("2.5.1", "0", "0"),
        ("2.10.0", "1", "1"),
    ],
)
def test_the_abi_is_torchs_own(torch: str, said: str | None, abi: str | None) -> None:
    seen = state(distributions={**INSTALLED, "torch": [torch]}, torch_cxx_abi=said)
    assert build_key(STEP, wanted(), seen)["cxx_abi"] == abi


def test_a_named_soc_is_the_hosts_soc() -> None:
    named = STEP.model_copy(update={"soc": "Ascend910B3"})
    assert build_key(named, wanted(soc=None), state()) == build_key(STEP, wanted(), state())
