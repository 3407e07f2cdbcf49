"""A fleet's report as metrics, in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from lmcache_fleet.fleet_report import FleetReport

Sample = tuple[dict[str, str], float]


def metrics(report: FleetReport) -> str:
    """The metrics of a report; what is unknown has no sample.

    Args:
        report: what is told.
    """
    hosts, proofs = report.hosts, [(host, proof) for host in report.hosts for proof in host.proofs]

    def staged(value: float | None, host: str, stage: str) -> list[Sample]:
        return [] if value is None else [({"host": host, "stage": stage}, value)]

    families: list[tuple[str, str, list[Sample]]] = [
        ("report_timestamp_seconds", "When the report was made.", [({}, value)] if (
            value := _timestamp(report.made)) is not None else []),
        ("host_info", "Release that a host serves, and the one wanted.",
         [({"host": host.name, "release": host.release or "", "target": host.target or ""}, 1) for host in hosts]),
        ("host_failed", "Whether a host could not be read or brought to what is wanted.",
         [({"host": host.name}, float(host.state == "failed")) for host in hosts if host.state != "not read"]),
        ("host_serving", "Whether a host's service runs its current release.",
         [({"host": host.name}, float(host.serving)) for host in hosts if host.serving is not None]),
        ("host_pending_steps", "Steps of the playbook that would change a host.",
         [({"host": host.name}, len(host.drift)) for host in hosts if host.state in {"settled", "pending"}]),
        ("host_troubles", "What failed on a host, and checks of the last rollout's preflight that fired there.",
         [({"host": host.name, "severity": severity}, sum(item.severity == severity for item in host.troubles))
          for host in hosts for severity in ("error", "warning")]),
        ("evidence_ok", "Whether the proof that the KV cache is offloaded holds.",
         [({"host": host.name, "stage": proof.stage}, float(proof.ok)) for host, proof in proofs]),
        ("evidence_timestamp_seconds", "When the proof was made.",
         [sample for host, proof in proofs for sample in staged(_timestamp(proof.finished), host.name, proof.stage)]),
        ("evidence_stored_tokens", "Tokens that the cold request stored.",
         [sample for host, proof in proofs for sample in staged(proof.stored_tokens, host.name, proof.stage)]),
        ("evidence_retrieved_tokens", "Tokens that were found again, the least of its requests.",
         [sample for host, proof in proofs for sample in staged(proof.retrieved_tokens, host.name, proof.stage)]),
        ("evidence_time_to_first_token_seconds", "Time to the first token in the proof.",
         [({"host": host.name, "stage": proof.stage, "phase": phase}, value / 1000)
          for host, proof in proofs for phase, value in sorted(proof.ttft_ms.items())]),
        ("package_info", "Version of a distribution that the last proof ran with.",
         [({"host": name, "package": package, "version": version}, 1)
          for package, versions in report.versions.items() for version, names in versions.items() for name in names]),
    ]  # fmt: skip
    return "".join(_family(f"lmcache_fleet_{name}", text, samples) for name, text, samples in families if samples)


def _family(name: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _timestamp(text: str) -> float | None:
    try:
        then = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (then if then.tzinfo else then.replace(tzinfo=timezone.utc)).timestamp()
