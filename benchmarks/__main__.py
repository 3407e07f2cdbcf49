"""Run the benchmarks: ``scripts/bench`` calls this inside the project's environment."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.lab_fleet import Bench, end_states, host_counts, recorded_answer, start_of_pyinfra, warm_store
from benchmarks.measure import ROOT
from benchmarks.page import RESULTS, write_pages
from benchmarks.scale import many_hosts

SECTIONS = ("peers", "warm", "ssh_true", "scale")
QUICK = ("peers", "scale")


def main() -> None:
    """Measure, and write results and page."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one host, fewer peers, short scale, one run each")
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment of the peers")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--times", type=int, default=5, help="runs that a median is made of")
    parser.add_argument(
        "--only",
        choices=SECTIONS,
        nargs="+",
        default=list(SECTIONS),
        help="measure these anew and keep the others of the output file; peers are only ever measured in one run",
    )
    parser.add_argument("--output", type=Path, help="benchmarks/results.json, or .fleet/bench-quick.json with --quick")
    options = parser.parse_args()
    if options.quick:
        options.hosts, options.times, options.only = 1, 1, list(QUICK)
    options.output = options.output or (ROOT / ".fleet" / "bench-quick.json" if options.quick else RESULTS)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="lmcache-fleet-bench-") as folder:
        bench = Bench(options.environment, Path(folder), say)
        try:
            results = measure(bench, options.only, options.hosts, options.times, quick=options.quick)
        finally:
            bench.lab.reload()
            bench.lab.down()
    if options.quick or options.only == list(SECTIONS):
        command = "scripts/bench --quick" if options.quick else "scripts/bench"
        results.update(took_s=round(time.monotonic() - began), command=command)
    else:
        kept = json.loads(options.output.read_text(encoding="utf-8"))
        again = {name: f"{results['date']}, scripts/bench --only {name}" for name in options.only}
        results = {**kept, **{name: results[name] for name in options.only}}
        results["again"] = {**kept.get("again", {}), **again}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    say(f"{options.output.relative_to(ROOT) if options.output.is_relative_to(ROOT) else options.output}")
    if not options.quick:
        for path in write_pages(results):
            say(str(path.relative_to(ROOT)))


def measure(bench: Bench, sections: Collection[str], hosts: int, times: int, *, quick: bool) -> dict[str, Any]:
    """All figures.

    Args:
        bench: hosts and peers.
        sections: which of SECTIONS.
        hosts: how many lab hosts the peers are compared on.
        times: runs a median is made of.
        quick: leave out what takes long.
    """
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": {"cpus": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
        "hosts": hosts,
        "runs": times,
    }
    if "peers" in sections:
        results["pyinfra_start"] = start_of_pyinfra(times)
        results["peers"] = end_states(bench, hosts, times, quick=quick)
    if "warm" in sections:
        results["warm"] = warm_store(bench, hosts)
    if "ssh_true" in sections:
        results["ssh_true"] = host_counts(bench, [1, 2, 4, 8], times)
    if "scale" in sections:
        answer, variables = recorded_answer(bench)
        counts, delays = ([10, 100], [0.0]) if quick else ([10, 100, 500, 1000], [0.0, 0.05])
        results["scale"] = many_hosts(answer, variables, counts, delays, 1, bench.say, bench.store)
    return results


if __name__ == "__main__":
    main()
