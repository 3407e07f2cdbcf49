"""Proof that hosts share KV: what one host stored, another one retrieves and answers the same with."""

from __future__ import annotations

from dataclasses import replace

from lmcache_fleet.evidence import Evidence, Expectations, Finding, judge
from lmcache_fleet.evidence_log import ERROR, WARNING


def combine(store: Evidence, retrieve: Evidence, names: tuple[str, str], connector: str) -> Evidence:
    """One judged evidence from the two hosts' halves.

    Args:
        store: of the host that computed the prompt and stored it.
        retrieve: of the host that was then asked the same.
        names: of the two hosts.
        connector: class of the KV connector that both must have loaded.
    """
    halves = dict(zip(names, (store, retrieve), strict=True))
    whole = Evidence("cross-host", store.started, retrieve.finished, dict(retrieve.versions), retrieve.device)
    whole.chunk_size, whole.chunk_size_seen = store.chunk_size, retrieve.chunk_size_seen
    whole.connector = dict(retrieve.connector)
    whole.warm_up = store.warm_up and retrieve.warm_up
    whole.server_elsewhere = store.server_elsewhere
    for name, half in halves.items():
        whole.requests += half.requests
        whole.hash_seeds |= {f"{name}/{process}": seed for process, seed in half.hash_seeds.items()}
        whole.bad_lines += [replace(bad, source=f"{name}/{bad.source}") for bad in half.bad_lines]
        whole.incidents += [replace(incident, phase=f"{name}: {incident.phase}") for incident in half.incidents]
        whole.proof += [f"{name}: {line}" for line in half.proof]
        whole.notes += [f"{name}: {note}" for note in half.notes]
        whole.pids += half.pids
        whole.durations_s |= {f"{name}: {phase}": taken for phase, taken in half.durations_s.items()}
        for noise, count in half.noise.items():
            whole.noise[noise] = whole.noise.get(noise, 0) + count
    whole.durations_s["total"] = sum(half.durations_s.get("total", 0.0) for half in halves.values())
    found = judge(whole, Expectations(connector_class=connector, restart="not-applicable"))
    whole.findings = [*(_across(finding, names) for finding in found), *_differences(store, retrieve, names)]
    return whole


def _across(finding: Finding, names: tuple[str, str]) -> Finding:
    """A missing hit, in the words of two hosts."""
    if finding.id != "no-hit":
        return finding
    return replace(
        finding,
        id="no-hit-across-hosts",
        message=f"{names[1]} found nothing of what {names[0]} stored",
        cause="they share no tier, or compute other keys: model path, chunk size, hash seed, version of LMCache",
        remedy="give both the same variables; `l2_adapter` must name one store, with room, that both reach",
    )


def _differences(store: Evidence, retrieve: Evidence, names: tuple[str, str]) -> list[Finding]:
    found = []
    if store.connector.get("class") != retrieve.connector.get("class"):
        seen = f"{store.connector.get('class')} on {names[0]}, {retrieve.connector.get('class')} on {names[1]}"
        found.append(
            Finding("connectors-differ", ERROR, f"the hosts loaded {seen}", "not of one playbook", "converge both")
        )
    differs = [name for name, version in store.versions.items() if retrieve.versions.get(name) != version]
    if differs:
        shown = ", ".join(f"{name} {store.versions[name]} and {retrieve.versions.get(name)}" for name in differs)
        found.append(
            Finding(
                "versions-differ",
                WARNING,
                f"{names[0]} and {names[1]} have {shown}",
                "only one of them was converged to the newer release",
                "converge both: what one version stores another one may not find",
            )
        )
    return found
