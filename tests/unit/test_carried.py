"""Which units keep `current` where it is for a playbook that runs no service."""

from __future__ import annotations

import pytest

from facts.units import Unit
from lmcache_fleet.layout import Layout
from lmcache_fleet.units import SERVER_UNIT, SGLANG_UNIT, VLLM_UNIT
from operations.release import starting_from

LAYOUT = Layout("/opt/x")


def unit(file: str, state: str, program: str = "/opt/x/current/bin/vllm") -> Unit:
    return Unit(f"[Service]\nExecStart={program}\n", {"UnitFileState": file, "ActiveState": state})


@pytest.mark.parametrize("state", ["active", "activating", "deactivating", "reloading"])
def test_one_that_runs_starts_from_current_though_it_is_disabled(state: str) -> None:
    assert starting_from(LAYOUT, {VLLM_UNIT: unit("disabled", state)}) == (VLLM_UNIT,)


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_one_that_is_enabled_starts_with_the_host_and_a_disabled_one_no_more(state: str) -> None:
    assert starting_from(LAYOUT, {VLLM_UNIT: unit("enabled", state)}) == (VLLM_UNIT,)
    assert starting_from(LAYOUT, {VLLM_UNIT: unit("disabled", state)}) == ()


def test_of_any_engine_and_of_this_prefix_alone() -> None:
    units = {
        SERVER_UNIT: unit("enabled", "active", "/opt/x/current/bin/lmcache-server"),
        VLLM_UNIT: unit("enabled", "active", "/opt/xy/current/bin/vllm"),
        SGLANG_UNIT: unit("enabled", "active", "/opt/x/current/bin/sglang"),
    }
    assert starting_from(LAYOUT, units) == (SERVER_UNIT, SGLANG_UNIT)
    assert starting_from(LAYOUT, {name: Unit(None) for name in units}) == ()
