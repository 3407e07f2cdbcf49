"""The performance page says of each goal whether it was reached, by the figures that were measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import ROOT
from benchmarks.measure import run as measured
from benchmarks.page import RESULTS, goals, page, ratios, write_pages
from benchmarks.peers import NAMES


def run(wall: float, cpu: float = 1.0) -> dict[str, Any]:
    return {"wall_s": wall, "cpu_s": cpu, "peak_mib": 100.0, "runs_wall_s": [wall]}


@pytest.fixture
def results() -> dict[str, Any]:
    seconds = dict(zip(NAMES, (2.0, 10.0, 30.0, 20.0), strict=True))
    measured = ("converged", "dry_run", "one_line_changed", "one_pin_changed", "first_converge")
    traffic = {"commands_per_host": 1.0, "kib_per_host": 20.0}
    scale = [
        {"command": name, "hosts": hosts, "delay_s": delay, **run(cpu, cpu)}
        for name in ("pyinfra -y", "lmcache-fleet plan")
        for hosts, cpu in ((10, 1.2), (500, 11.0))
        for delay in (0.0, 0.05)
    ]
    return {
        "date": "2026-01-01",
        "command": "scripts/bench",
        "machine": {"cpus": 2, "arch": "x86_64", "python": "3.11.0"},
        "hosts": 4,
        "runs": 5,
        "pyinfra_start": run(0.5),
        "peers": {
            name: {**{what: run(wall) for what in measured}, "traffic": traffic} for name, wall in seconds.items()
        },
        "warm": {
            "first_converge_warm_store": {**run(10.0), "steps": [["apt", 4.0], ["env", 0.2], ["proof", 2.5]]},
            "reimage_to_verified": run(9.0),
        },
        "ssh_true": {str(hosts): {"converged": run(2.0), "ssh_true": run(0.3)} for hosts in (1, 2, 4)},
        "scale": scale,
    }


def test_every_goal_is_judged_by_its_figure(results: dict[str, Any]) -> None:
    assert ratios(results, "converged") == {"stock pyinfra": 5, "ansible": 15, "ansible + mitogen": 10}
    found = goals(results)
    assert [goal.measured for goal in found] == pytest.approx([15, 10, 5, 2.5, 3, 20])
    assert all(goal.reached for goal in found)
    text = page(results)
    assert text.count("| reached |") == len(found)
    assert "| nothing to do | 2.0 | 10.0 (5.0×) | 30.0 (15.0×) | 20.0 (10.0×) |" in text
    assert "| apt | 4.0 | 40 % |" in text
    assert "all shorter steps | 3.5 | 35 % |" in text
    for wall in (2.01, 5.0):
        results["peers"]["lmcache-fleet"]["converged"] = run(wall)
        assert [goal.reached for goal in goals(results)][:3] == [False] * 3
    assert [goal.reached for goal in goals(results)] == [False, False, False, False, True, True]
    results["scale"][-2]["cpu_s"] = 11.1
    assert not goals(results)[-1].reached
    assert page(results).count("**missed**") == 5


def test_a_runs_steps_are_timed_from_its_own_words() -> None:
    told = """print("--> Starting operation: 01 apt ")
import time; time.sleep(0.3); print("[h1] Success", flush=True)
print("--> Starting operation: 02 env", flush=True)"""
    cost = measured([sys.executable, "-u", "-c", told])
    assert cost.status == 0
    assert [name for name, _ in cost.steps] == ["01 apt", "02 env"]
    # How soon a line is read depends on the machine: of the time only that each step has its share.
    assert cost.steps[0][1] > 0
    assert sum(seconds for _, seconds in cost.steps) <= cost.wall_s
    assert "[h1] Success" in cost.output
    assert measured([sys.executable, "-c", "pass"]).steps == ()


def test_what_the_pages_quote_is_what_was_measured(tmp_path: Path) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    names = ("docs/performance.md", "README.md", "README.zh.md")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    write_pages(results, tmp_path)
    for name in names:
        same = (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")
        assert same, f"{name} is not of benchmarks/results.json: python -m benchmarks.page writes it"
    for name in names[1:]:
        assert f"{results['peers']['lmcache-fleet']['converged']['wall_s']:.1f} s |" in (ROOT / name).read_text(
            encoding="utf-8"
        )
