"""What a rollout did, on disk after every change of state, so that another one can take it up."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmcache_fleet.digest import digest
from lmcache_fleet.rollout.journey import Journey, Progress, Stage
from lmcache_fleet.store import store_root

if TYPE_CHECKING:
    from lmcache_fleet.preflight.catalogue import Finding


class FleetBusy(Exception):
    """Another rollout or rollback is at work on the fleet.

    Args:
        holder: who, as it wrote itself down.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"another command works on this fleet: {holder or 'it has not said who it is'}")
        self.holder = holder


class JournalError(Exception):
    """A journal can't be read, or there is none to resume."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a rollout was begun with.

    Args:
        what: `rollout` or `rollback`.
        fleet: the inventory, as it was named.
        deploy: the deploy file.
        waves: the hosts, wave by wave.
        options: limits and the like, as plain data.
        variables: playbook variables given on the command line.
        places: the playbook and the bundle given there. Nothing else of `--data` is kept: it may be secret.
    """

    what: str
    fleet: str
    deploy: str
    waves: list[list[str]]
    options: dict[str, Any]
    variables: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """A journal, read.

    Args:
        path: its file.
        begin: what it was begun with.
        progress: where its hosts are.
        outcome: how it ended; None when it was cut off.
        when: time of its beginning, UTC.
        findings: host → checks that fired in its preflight, as plain data; of a resumed rollout those of the last one.
    """

    path: Path
    begin: Begin
    progress: Progress
    outcome: str | None
    when: str
    findings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def now() -> str:
    """The time, UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def whoami() -> str:
    """Who runs this, where, and in which process."""
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}"


def fleet_folder(inventory: str, root: Path | None = None) -> Path:
    """Where a fleet's journals are, whatever the working directory from which its inventory is named.

    Args:
        inventory: as it was named on the command line.
        root: the artifact store, if not the usual one.
    """
    place = str(Path(inventory).resolve()) if Path(inventory).exists() else inventory
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(inventory).stem)[:40]
    return (root or store_root()) / "rollouts" / f"{name}-{digest(place, 8)}"


@contextmanager
def fleet_lock(folder: Path, doing: str) -> Iterator[None]:
    """Keep other rollouts and rollbacks off a fleet; the lock goes with the process that holds it.

    Args:
        folder: as `fleet_folder` gave it.
        doing: what is done meanwhile, for whoever is refused.

    Raises:
        FleetBusy: somebody else holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            raise FleetBusy(handle.read().strip()) from None
        handle.truncate(0)
        handle.write(f"{doing} by {whoami()} since {now()}\n")
        handle.flush()
        yield


class Journal:
    """A journal that is being written: a line of JSON for every change of state, on disk before the work goes on.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handle = path.open("ab")
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            # The last writer was killed in the middle of a line.
            self._handle.write(b"\n")

    @classmethod
    def new(cls, folder: Path, begin: Begin) -> Journal:
        """Begin a journal.

        Args:
            folder: as `fleet_folder` gave it.
            begin: what the rollout is begun with.
        """
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        journal = cls(folder / f"{stamp}.jsonl")
        journal.write("begin", {name: getattr(begin, name) for name in Begin.__dataclass_fields__})
        return journal

    def host(self, journey: Journey) -> None:
        """A host's way went on."""
        self.write("host", {**journey.as_json(), "stage": journey.stage.value})

    def preflight(self, findings: Mapping[str, Sequence[Finding]]) -> None:
        """Hosts were judged.

        Args:
            findings: host → the checks that fired there; none is worth knowing too.
        """
        hosts = {name: [item.as_json() for item in items] for name, items in findings.items()}
        self.write("preflight", {"hosts": hosts})

    def write(self, event: str, data: dict[str, Any]) -> None:
        """Write a line and see it onto the disk."""
        line = json.dumps({"at": now(), "event": event, **data}, sort_keys=True)
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Done with it."""
        self._handle.close()


def read_journal(path: Path) -> History:
    """Read a journal; its last line may be cut off.

    Args:
        path: its file.

    Raises:
        JournalError: it can't be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from error
    begin: Begin | None = None
    progress, outcome, when = Progress(), None, ""
    findings: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
        except ValueError:
            # Cut off by a kill or a power cut; the line that was begun says nothing that came to pass.
            continue
        try:
            event = data.pop("event")
            at = data.pop("at")
            if event == "begin":
                begin, when = Begin(**data), at
                progress = Progress.start(begin.waves, begin.options.get("max_failures", 0))
            elif event == "host":
                progress = progress.step(Journey(**{**data, "stage": Stage(data["stage"])}))
            elif event == "preflight":
                findings.update(data["hosts"])
            elif event in {"resume", "end"}:
                outcome = data.get("outcome")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{path}:{number}: not a line of a rollout's journal ({error})") from error
    if begin is None:
        raise JournalError(f"{path}: has no beginning")
    return History(path, begin, progress, outcome, when, findings)


def journals(folder: Path) -> list[Path]:
    """A fleet's journals, the newest last."""
    return sorted(folder.glob("*.jsonl"))


def last_history(folder: Path, what: str = "rollout") -> History | None:
    """The newest journal of a kind; one that was cut off before its first line was whole counts as none.

    Args:
        folder: as `fleet_folder` gave it.
        what: `rollout` or `rollback`.
    """
    for path in reversed(journals(folder)):
        try:
            found = read_journal(path)
        except JournalError:
            continue
        if found.begin.what == what:
            return found
    return None


def resumed(history: History) -> Progress:
    """Where a resumed rollout begins: hosts that are done stay so, all others set out again."""
    journeys = {name: journey.resumed() for name, journey in history.progress.journeys.items()}
    return replace(history.progress, journeys=journeys)
