"""Checks of the cards: whether the driver's tool answers, health, SoC, nodes, who holds them, visible devices."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator

from lmcache_fleet.accelerators import Chip
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.requirements import is_experimental

_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_NAMED = {"ok", "tool-missing", "device-in-use", "dcmi-init-failed", "library-missing"}
_NEVER = ("Ascend910A", "Ascend910PremiumA", "Ascend910ProA", "Ascend910ProB", "Ascend310B*")
_EXPERIMENTAL = ("Ascend310P*",)
_HIDDEN_MB = 8192


def _state(subject: Subject) -> str:
    seen = subject.host.accelerators
    return seen.state if seen and not subject.is_builder else "ok"


def _message(subject: Subject) -> str:
    return subject.host.accelerators.message if subject.host.accelerators else ""


@check("npu-tool-missing")
def _tool_missing(subject: Subject) -> Iterator[Values]:
    if _state(subject) == "tool-missing":
        yield {"message": _message(subject)}


@check("npu-in-use")
def _in_use(subject: Subject) -> Iterator[Values]:
    if _state(subject) == "device-in-use":
        yield {"message": _message(subject), "holders": _holders(subject) or "?"}


@check("npu-unreachable")
def _unreachable(subject: Subject) -> Iterator[Values]:
    if _state(subject) != "dcmi-init-failed":
        return
    ascend = subject.cards
    lacking = []
    if ascend and ascend.devices_state != "ok":
        lacking.append(ascend.devices_message or ascend.devices_state)
    if ascend and not ascend.group_exists:
        lacking.append("HwHiAiUser")
    if _holders(subject):
        lacking.append(_holders(subject))
    if subject.host.reboot_required:
        lacking.append("reboot-required")
    yield {"message": _message(subject), "evidence": "; ".join(lacking) or "-"}


@check("npu-library-missing")
def _library(subject: Subject) -> Iterator[Values]:
    if _state(subject) == "library-missing":
        yield {"message": _message(subject)}


@check("npu-unreadable")
def _unreadable(subject: Subject) -> Iterator[Values]:
    if _state(subject) not in _NAMED:
        yield {"state": _state(subject), "message": _message(subject)}


@check("npu-library-path")
def _library_path(subject: Subject) -> Iterator[Values]:
    seen = subject.host.accelerators
    if seen and seen.extra.get("needs_library_path"):
        yield {}


@check("chip-unhealthy")
def _unhealthy(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.accelerator
    if wanted and wanted.health and _state(subject) == "ok":
        # A chip that doesn't tell its health is not a healthy chip.
        sick = [chip for chip in _chips(subject) if chip.health != wanted.health]
        if sick:
            yield {"chips": _named(sick)}


@check("chip-not-ok")
def _not_ok(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.accelerator
    sick = [chip for chip in _chips(subject) if chip.health not in ("OK", None)]
    if sick and not (wanted and wanted.health):
        yield {"chips": _named(sick)}


def _chips(subject: Subject) -> tuple[Chip, ...]:
    return subject.host.accelerators.chips if subject.host.accelerators else ()


def _named(chips: list[Chip]) -> str:
    return ", ".join(f"{chip.npu_id}: {chip.health or '?'}" for chip in chips)


@check("soc-not-wanted")
def _soc(subject: Subject) -> Iterator[Values]:
    wanted, soc = subject.playbook.requires.accelerator, subject.host.soc
    if is_experimental(wanted, soc):
        return
    if wanted and wanted.soc and soc and not any(fnmatch.fnmatchcase(soc, pattern) for pattern in wanted.soc):
        yield {"found": soc, "wanted": ", ".join(wanted.soc)}


@check("soc-unsupported")
def _never(subject: Subject) -> Iterator[Values]:
    soc = subject.host.soc
    if subject.cards and soc and any(fnmatch.fnmatchcase(soc, pattern) for pattern in _NEVER):
        yield {"soc": soc}


@check("soc-experimental")
def _experimental(subject: Subject) -> Iterator[Values]:
    soc = subject.host.soc
    wanted = subject.playbook.requires.accelerator
    upstream = any(fnmatch.fnmatchcase(soc or "", pattern) for pattern in _EXPERIMENTAL)
    if subject.cards and soc and (upstream or is_experimental(wanted, soc)):
        yield {"soc": soc}


@check("soc-experimental-not-allowed")
def _not_allowed(subject: Subject) -> Iterator[Values]:
    wanted, soc = subject.playbook.requires.accelerator, subject.host.soc
    if wanted and is_experimental(wanted, soc) and not wanted.allow_experimental:
        yield {"soc": soc}


@check("chips-too-few")
def _too_few(subject: Subject) -> Iterator[Values]:
    wanted, seen = subject.playbook.requires.accelerator, subject.host.accelerators
    if wanted and seen and seen.state == "ok" and wanted.vendor != "cpu" and not subject.is_builder:
        need = wanted.count or 1
        if seen.chip_count < need:
            yield {"found": seen.chip_count, "wanted": need}


@check("chips-differ")
def _differ(subject: Subject) -> Iterator[Values]:
    names = Counter(chip.name for chip in _chips(subject))
    if len(names) > 1:
        yield {"names": ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))}


@check("device-nodes-missing")
def _nodes(subject: Subject) -> Iterator[Values]:
    ascend = subject.cards
    if ascend and ascend.devices_state in {"no-devices", "missing-devices"}:
        yield {"what": ascend.devices_message or ascend.devices_state}


@check("device-node-wrong")
def _node_wrong(subject: Subject) -> Iterator[Values]:
    wrong = [node.path for node in (subject.cards.nodes if subject.cards else ()) if not node.is_device]
    if wrong:
        yield {"paths": ", ".join(wrong)}


@check("device-count-differs")
def _count(subject: Subject) -> Iterator[Values]:
    nodes = len(_device_numbers(subject))
    chips = len(_chips(subject))
    if subject.cards and nodes and chips and nodes != chips and _state(subject) == "ok":
        yield {"nodes": nodes, "chips": chips}


def _device_numbers(subject: Subject) -> list[int]:
    names = [node.path.removeprefix("/dev/davinci") for node in (subject.cards.nodes if subject.cards else ())]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


@check("device-group-missing")
def _group(subject: Subject) -> Iterator[Values]:
    if subject.cards and not subject.cards.group_exists:
        yield {}


@check("service-without-device-group")
def _service_group(subject: Subject) -> Iterator[Values]:
    ascend, service = subject.cards, subject.service
    if ascend and service and service.user != "root":
        # Readable by others, a node needs no group.
        closed = {node.group for node in ascend.nodes if node.is_device and int(node.mode[-1:] or "0", 8) & 6 != 6}
        lacking = sorted(closed - set(service.groups))
        if lacking:
            yield {"groups": ", ".join(lacking), "user": service.user}


@check("devices-held")
def _held(subject: Subject) -> Iterator[Values]:
    if _holders(subject) and _state(subject) != "device-in-use":
        yield {"holders": _holders(subject)}


def _holders(subject: Subject) -> str:
    """Processes on the devices that aren't ours, each once."""
    found: dict[int, str] = {}
    own = subject.host.own_pids
    for holder in subject.cards.holders if subject.cards else ():
        place = f", container {holder.container[:12]}" if holder.container else ""
        found.setdefault(holder.pid, f"{holder.name} (pid {holder.pid}, {holder.device}{place})")
    for process in subject.host.accelerators.processes if subject.host.accelerators else ():
        if process.pid is not None:
            found.setdefault(process.pid, f"{process.name or '?'} (pid {process.pid}, NPU {process.npu_id})")
    return "; ".join(text for pid, text in found.items() if pid not in own)


@check("device-memory-short")
def _memory(subject: Subject) -> Iterator[Values]:
    service = subject.service
    if service is None or any(unit.running for unit in subject.host.units.values()):
        # What is used may be our own engine's, whose place the next one takes.
        return
    text = subject.argument("--gpu-memory-utilization")
    try:
        share = float(text) if text else 0.9
    except ValueError:
        return
    chips = _used_chips(subject)
    for chip in chips:
        total, used = chip.memory_total_mb, chip.memory_used_mb
        if total and used is not None and total - used < share * total:
            yield {"chip": chip.npu_id, "free": total - used, "total": total, "wanted": f"{share * total:.0f}"}


def _used_chips(subject: Subject) -> list[Chip]:
    """The chips that the engine will take: the first ones that are visible, one a rank."""
    chips = list(_chips(subject))
    chosen = _visible(subject)
    if chosen is not None:
        chips = [chips[number] for number in chosen if number < len(chips)]
    return chips[: subject.ranks]


@check("device-memory-held-unseen")
def _unseen(subject: Subject) -> Iterator[Values]:
    chips = _chips(subject)
    known: Counter[tuple[int, int | None]] = Counter()
    for process in subject.host.accelerators.processes if subject.host.accelerators else ():
        known[process.npu_id, process.chip_id] += process.used_mb or 0
    least = min((chip.memory_used_mb or 0 for chip in chips), default=0)
    for chip in chips:
        # What an idle chip holds for itself is what the emptiest one holds.
        own = known[chip.npu_id, chip.chip_id] or known[chip.npu_id, None]
        rest = (chip.memory_used_mb or 0) - own - least
        if rest > _HIDDEN_MB:
            yield {"chip": chip.npu_id, "megabytes": rest}


def _visible(subject: Subject) -> list[int] | None:
    """The device numbers that the service is shown; None for all, and when it isn't a list of numbers."""
    text = subject.service.env.get(_VISIBLE) if subject.service else None
    words = [word.strip() for word in text.split(",")] if text is not None else []
    return [int(word) for word in words] if words and all(w.isascii() and w.isdigit() for w in words) else None


@check("visible-devices-malformed")
def _malformed(subject: Subject) -> Iterator[Values]:
    text = subject.service.env.get(_VISIBLE) if subject.service else None
    numbers = _visible(subject)
    if text is not None and (numbers is None or len(set(numbers)) != len(numbers)):
        yield {"value": text}


@check("visible-devices-absent")
def _absent(subject: Subject) -> Iterator[Values]:
    numbers, there = _visible(subject), _total(subject)
    missing = [number for number in numbers or () if there is not None and number >= there]
    if missing:
        yield {"missing": ", ".join(map(str, missing)), "last": (there or 0) - 1}


def _total(subject: Subject) -> int | None:
    """Devices as the runtime numbers them, from 0; None when unknown."""
    seen = subject.host.accelerators
    return seen.chip_count if seen and seen.state == "ok" else len(_device_numbers(subject)) or None


@check("visible-devices-gap")
def _gap(subject: Subject) -> Iterator[Values]:
    numbers = _visible(subject)
    if numbers and sorted(numbers) != list(range(min(numbers), min(numbers) + len(numbers))):
        yield {"value": ",".join(map(str, numbers))}


@check("visible-devices-half-set")
def _half_set(subject: Subject) -> Iterator[Values]:
    env = subject.service.env if subject.service else {}
    if "ASCEND_VISIBLE_DEVICES" in env and _VISIBLE not in env:
        yield {"value": env["ASCEND_VISIBLE_DEVICES"]}


@check("ranks-exceed-devices")
def _ranks(subject: Subject) -> Iterator[Values]:
    visible, total = _visible(subject), _total(subject)
    there = len(visible) if visible is not None else total
    if subject.service and subject.vendor != "cpu" and there is not None and subject.ranks > there:
        yield {"ranks": subject.ranks, "devices": there}


@check("hccn-missing")
def _hccn(subject: Subject) -> Iterator[Values]:
    if subject.cards and not subject.cards.hccn and (subject.truth("enable_p2p") or subject.truth("enable_pd")):
        yield {}
