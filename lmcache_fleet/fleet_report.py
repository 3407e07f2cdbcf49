"""What a report of a fleet says, as data: made of kept evidence, of a status and of a rollout's journal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from lmcache_fleet.changes import Change
from lmcache_fleet.plain import Plain
from lmcache_fleet.preflight import PREFLIGHT
from lmcache_fleet.rollout.journal import History
from lmcache_fleet.store import evidence_path, store_root

FORMAT = "lmcache-fleet/report/v1"
STAGES = ("offline", "online")


@dataclass(frozen=True, slots=True)
class Trouble(Plain):
    """Something that failed, or a check that fired, and what to do about it.

    Args:
        where: the step, the check or the file.
        cause: what is wrong.
        remedy: what to do; empty when nobody knows.
        severity: `error`, or `warning` when it may be in the way.
    """

    where: str
    cause: str
    remedy: str = ""
    severity: str = "error"


@dataclass(frozen=True, slots=True)
class Proof(Plain):
    """One proof that a host's KV cache is offloaded, or that it is not.

    Args:
        stage: `offline` or `online`.
        release: the release that was proved.
        ok: whether it holds.
        finished: when, ISO 8601; empty when unknown.
        device: where the cache came from, such as `npu`.
        connector: class of vLLM's connector that was loaded.
        prompt_tokens: length of the prompt.
        stored_tokens: stored by the cold request.
        retrieved_tokens: found again, in the same engine or in a new one.
        ttft_ms: phase → milliseconds to the first token.
        versions: distribution → version.
        troubles: what is wrong, each with its remedy.
    """

    stage: str
    release: str
    ok: bool
    finished: str = ""
    device: str = ""
    connector: str = ""
    prompt_tokens: int | None = None
    stored_tokens: int | None = None
    retrieved_tokens: int | None = None
    ttft_ms: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()

    @property
    def speedup(self) -> float | None:
        """How many times sooner the first token of a hit comes than that of a cold request; the slower hit counts."""
        hits = [self.ttft_ms[phase] for phase in ("hit", "after_restart") if self.ttft_ms.get(phase)]
        cold = self.ttft_ms.get("cold")
        return cold / max(hits) if cold and hits else None


@dataclass(frozen=True, slots=True)
class HostEntry(Plain):
    """One host of the fleet.

    Args:
        name: the host.
        state: `settled`, `pending`, `failed`, or `not read` when no host was asked.
        release: the release that serves, or the last one proved when no host was asked.
        target: the release that is wanted; None when unknown.
        serving: whether its service runs the current release; None when unknown.
        proofs: of that release, off-line first.
        drift: step → what it would change, in words.
        troubles: what failed, and which checks of the last rollout's preflight fired.
        note: what else there is to say.
    """

    name: str
    state: str
    release: str | None = None
    target: str | None = None
    serving: bool | None = None
    proofs: tuple[Proof, ...] = ()
    drift: dict[str, list[str]] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    note: str = ""

    @property
    def proved(self) -> bool | None:
        """Whether every proof holds; None when there is none."""
        return all(proof.ok for proof in self.proofs) if self.proofs else None

    @property
    def failed(self) -> bool:
        """Whether anything failed; what is only warned of didn't."""
        return self.state == "failed" or any(trouble.severity == "error" for trouble in self.troubles)


@dataclass(frozen=True, slots=True)
class Passage(Plain):
    """A host was at a stage of a rollout.

    Args:
        host: the host.
        stage: the stage.
        begin: seconds after the rollout's beginning.
        end: the same; equal to `begin` for the stage in which a host ended.
    """

    host: str
    stage: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline(Plain):
    """A rollout's course.

    Args:
        what: `rollout` or `rollback`.
        began: when, ISO 8601.
        seconds: how long it took, to its last line.
        outcome: how it ended; None when it was cut off or goes on.
        waves: the hosts, wave by wave.
        passages: in the order in which they began.
    """

    what: str
    began: str
    seconds: float
    outcome: str | None
    waves: tuple[tuple[str, ...], ...]
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class FleetReport(Plain):
    """All that a report says.

    Args:
        fleet: what it is about, such as the inventory's name.
        made: when, ISO 8601 with its zone.
        hosts: in the inventory's order.
        timeline: of the fleet's last rollout; None when there is none.
        unreadable: files that were left out because they can't be read.
        format: name and version of this form.
    """

    fleet: str
    made: str
    hosts: tuple[HostEntry, ...]
    timeline: Timeline | None = None
    unreadable: tuple[Trouble, ...] = ()
    format: str = FORMAT

    @property
    def versions(self) -> dict[str, dict[str, list[str]]]:
        """Distribution → version → the hosts whose last proof ran with it."""
        found: dict[str, dict[str, list[str]]] = {}
        for host in self.hosts:
            latest = host.proofs[-1].versions if host.proofs else {}
            for name, version in sorted(latest.items()):
                found.setdefault(name, {}).setdefault(version, []).append(host.name)
        return dict(sorted(found.items()))


def read_proof(data: Any, stage: str, release: str) -> Proof:
    """Read evidence as the verification program wrote it.

    Args:
        data: the file's content, parsed.
        stage: which stage it is of.
        release: which release it is of.

    Raises:
        ValueError: it is not evidence.
    """
    if not isinstance(data, dict) or not isinstance(data.get("ok"), bool):
        raise ValueError("not evidence: no `ok` in it")
    tokens, connector = _mapping(data, "tokens"), _mapping(data, "connector")
    retrieved = [
        value
        for name in ("hit_after_reset", "retrieved_after_restart")
        if (value := _count(tokens.get(name))) is not None
    ]
    times = {name: float(value) for name, value in _mapping(data, "ttft_ms").items() if _is_time(value)}
    return Proof(
        stage=stage,
        release=release,
        ok=data["ok"],
        finished=str(data.get("finished") or ""),
        device=str(data.get("device") or ""),
        connector=str(connector.get("class") or ""),
        prompt_tokens=_count(tokens.get("prompt")),
        stored_tokens=_count(tokens.get("stored")),
        retrieved_tokens=min(retrieved) if retrieved else None,
        ttft_ms=times,
        versions={str(name): str(version) for name, version in _mapping(data, "versions").items()},
        troubles=tuple(_wrong(data, f"{stage} proof of {release}")),
    )


def _mapping(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _wrong(data: Mapping[str, Any], where: str) -> Iterator[Trouble]:
    """The findings that fail a proof; warnings don't."""
    findings = data.get("findings")
    seen = False
    for item in findings if isinstance(findings, list) else ():
        if isinstance(item, dict) and item.get("severity") == "error":
            seen = True
            cause = ": ".join(str(item[name]) for name in ("message", "cause") if item.get(name))
            yield Trouble(where, cause or str(item.get("id")), str(item.get("remedy") or ""))
    if not seen and not data["ok"]:
        yield Trouble(where, "the proof failed", "look at the evidence, mend the cause, and verify again")


def timeline_of(history: History, lines: Iterable[str]) -> Timeline:
    """A rollout's course.

    Args:
        history: its journal, read.
        lines: the same journal's lines; those that were cut off are passed over.
    """
    start: datetime | None = None
    now = 0.0
    open_: dict[str, tuple[str, float]] = {}
    passages: list[Passage] = []
    for line in lines:
        try:
            data = json.loads(line)
            at = datetime.fromisoformat(data["at"])
        except (ValueError, KeyError, TypeError):
            continue
        start = start or at
        now = max(now, (at - start).total_seconds())
        if data.get("event") != "host":
            continue
        host, stage = str(data.get("host")), str(data.get("stage"))
        before = open_.get(host)
        if before and before[0] == stage:
            continue
        if before:
            passages.append(Passage(host, before[0], before[1], now))
        open_[host] = (stage, now)
    over = {"done", "back", "failed"}
    passages += [Passage(host, stage, at, at if stage in over else now) for host, (stage, at) in open_.items()]
    passages.sort(key=lambda item: (item.begin, item.host))
    waves = tuple(tuple(wave) for wave in history.begin.waves)
    return Timeline(history.begin.what, history.when, now, history.outcome, waves, tuple(passages))


def host_entry(
    name: str, said: Mapping[str, Any], proofs: Sequence[Proof], rollout: Sequence[Trouble] = ()
) -> HostEntry:
    """One host's entry.

    Args:
        name: the host.
        said: what `status --json` says of it; empty when no host was asked.
        proofs: its evidence, of the release that serves.
        rollout: what the last rollout found wrong with it.
    """
    stands = said.get("report") or {}
    failure = said.get("failure")
    troubles = [Trouble(failure["step"], failure["cause"], failure["remedy"])] if failure else []
    troubles += rollout
    troubles += [trouble for proof in proofs for trouble in proof.troubles]
    # Diffs of files stay out: a report is passed around.
    drift = {
        step: [_change(change) for change in changes if not change.get("kept")]
        for step, changes in (said.get("steps") or {}).items()
    }
    return HostEntry(
        name=name,
        state=said.get("state", "not read"),
        release=stands.get("current") or (proofs[-1].release if proofs and not said else None),
        target=stands.get("target"),
        serving=stands.get("serving"),
        proofs=tuple(proofs),
        drift={step: texts for step, texts in drift.items() if texts},
        troubles=tuple(troubles),
        note=said.get("note", ""),
    )


def _change(change: Mapping[str, Any]) -> str:
    return str(Change(change["what"], change.get("before"), change.get("after"), why=change.get("why", "")))


def gather(
    fleet: str,
    made: str,
    status: Mapping[str, Any] | None = None,
    history: History | None = None,
    root: Path | None = None,
) -> FleetReport:
    """A report from what the control machine keeps, and from a status if there is one.

    Args:
        fleet: what it is about.
        made: the time, ISO 8601.
        status: as `status --json` gives it; without it, the hosts are those with evidence.
        history: the fleet's last rollout.
        root: the artifact store, if not the usual one.
    """
    unreadable: list[Trouble] = []
    said: Mapping[str, Any] = status["hosts"] if status else {}
    names = list(said) if status else _hosts_with_evidence(root)
    hosts = []
    for name in names:
        current = ((said.get(name) or {}).get("report") or {}).get("current")
        proofs = _proofs(name, current, status is not None, root, unreadable)
        hosts.append(host_entry(name, said.get(name) or {}, proofs, _in_rollout(history, name) if history else ()))
    timeline = None
    if history:
        timeline = timeline_of(history, history.path.read_text(encoding="utf-8", errors="replace").splitlines())
    return FleetReport(fleet, made, tuple(hosts), timeline, tuple(unreadable))


def _in_rollout(history: History, name: str) -> list[Trouble]:
    """What a rollout found wrong with a host: the checks that fired in its preflight, and why it failed."""
    what = f"last {history.begin.what}"
    found = [
        Trouble(f"{what}: check {item.get('check')}", str(item.get("message") or ""), str(item.get("remedy") or ""),
                str(item["severity"]))
        for item in history.findings.get(name, ())
        if item.get("severity") in {"error", "warning"}
    ]  # fmt: skip
    journey = history.progress.journeys.get(name)
    refused = any(trouble.severity == "error" for trouble in found)
    # A host that its preflight refused failed of these checks and of nothing else: they are told one by one.
    if journey and journey.cause and not (refused and journey.cause.startswith(f"{PREFLIGHT}: ")):
        found.insert(0, Trouble(what, journey.cause, journey.remedy))
    return found


def _hosts_with_evidence(root: Path | None) -> list[str]:
    folder = (root or store_root()) / "evidence"
    return sorted((path.name for path in folder.iterdir() if path.is_dir()), key=_natural) if folder.is_dir() else []


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sorts h2 before h10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def _proofs(name: str, current: str | None, asked: bool, root: Path | None, unreadable: list[Trouble]) -> list[Proof]:
    """A host's proofs of the release that serves; of the one proved last when no host was asked."""
    folder = evidence_path(name, "x", "x", root).parent.parent
    releases = [current] if asked else sorted(path.name for path in folder.iterdir() if path.is_dir())
    found: dict[str, list[Proof]] = {}
    for release in releases:
        if release is None:
            continue
        for stage in STAGES:
            path = evidence_path(name, release, stage, root)
            try:
                proof = read_proof(json.loads(path.read_text(encoding="utf-8")), stage, release)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                unreadable.append(Trouble(f"evidence of {name}, {release}, {stage}", str(error), "verify again"))
                continue
            found.setdefault(release, []).append(proof)
    return max(found.values(), key=lambda proofs: max(proof.finished for proof in proofs), default=[])
