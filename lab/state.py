"""What the lab knows about itself: where its files are, and which hosts it made. Needs no root to read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lab.shell import LabError, is_same


@dataclass(frozen=True)
class Paths:
    """Where a lab keeps its files. Labs of different names run side by side and share base and download pool."""

    cache: Path
    name: str = ""

    @classmethod
    def here(cls, name: str | None = None) -> Paths:
        """The lab that the environment asks for: LMCACHE_FLEET_LAB (a directory), LMCACHE_FLEET_LAB_NAME."""
        cache = Path(os.environ.get("LMCACHE_FLEET_LAB", "/var/cache/lmcache-fleet-lab"))
        if not cache.is_absolute():
            raise LabError(f"LMCACHE_FLEET_LAB must be an absolute path, not {str(cache)!r}")
        return cls(cache, os.environ.get("LMCACHE_FLEET_LAB_NAME", "") if name is None else name)

    @property
    def lab(self) -> Path:
        """This lab's own directory: the cache itself for the unnamed one."""
        return self.cache / "labs" / self.name if self.name else self.cache

    @property
    def bases(self) -> Path:
        """Base root file systems, one directory a recipe."""
        return self.cache / "base"

    @property
    def pool(self) -> Path:
        """Debian packages that some host has downloaded before."""
        return self.cache / "debs"

    @property
    def state(self) -> Path:
        """The state file."""
        return self.lab / "state.json"

    @property
    def known_hosts(self) -> Path:
        """The fleet's known_hosts, as an operator would keep it: a reimage does not change it by itself."""
        return self.lab / "known_hosts"

    @property
    def ssh_key(self) -> Path:
        """The private key that all hosts accept."""
        return self.lab / "ssh" / "id_ed25519"

    def host(self, name: str) -> Path:
        """A host's own directory: its disk, console log and mounted root."""
        return self.lab / "hosts" / name

    def root(self, name: str) -> Path:
        """A host's root file system as the host sees it, while it is mounted."""
        return self.host(name) / "root"

    def mkdirs(self) -> None:
        """Make the directories that everything else expects."""
        for path in (self.bases, self.pool, self.lab / "hosts", self.ssh_key.parent):
            path.mkdir(parents=True, exist_ok=True)


@dataclass
class Host:
    """One host. ``pid`` is its supervisor on this machine, ``started`` that one's start (ticks since boot)."""

    name: str
    address: str
    user: str = "fleet"
    profile: str = "none"
    pid: int = 0
    started: int = 0
    disk_gb: int = 0
    base: str = ""

    @property
    def running(self) -> bool:
        """Whether the recorded process is still that process."""
        return is_same(self.pid, self.started)

    @property
    def number(self) -> int:
        """The N of hN."""
        return int(self.name[1:])


@dataclass
class State:
    """A lab. ``slot`` keeps labs apart that run at the same time: it is part of bridge and subnet."""

    slot: int = 0
    bridge: str = ""
    subnet: str = ""
    gateway: str = ""
    services: dict[str, Any] = field(default_factory=dict)
    known_hosts: str = ""
    ssh_key: str = ""
    operator_password: str = ""
    hosts: list[Host] = field(default_factory=list)

    def find(self, name: str) -> Host:
        """The host of that name."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts) or "none"
        raise LabError(f"no host {name!r} in this lab (there are: {known})")


def load(paths: Paths) -> State:
    """Read the state; a lab that was never up has an empty one."""
    try:
        text = paths.state.read_text()
    except FileNotFoundError:
        return State()
    except PermissionError as error:
        raise LabError(f"{paths.state} belongs to the user who brought the lab up (root): {error.strerror}") from error
    try:
        raw = json.loads(text)
        hosts = [Host(**_known(Host, entry)) for entry in raw.pop("hosts")]
        return State(**_known(State, raw), hosts=hosts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(f"{paths.state} is not a lab's state ({error}); remove it, then `down`") from error


def _known(kind: type[Host] | type[State], entry: dict[str, Any]) -> dict[str, Any]:
    """What this version knows of an entry that perhaps another one wrote."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in entry.items() if name in names}


def save(paths: Paths, state: State) -> None:
    """Write the state so that a reader, or a crash, never sees half of it."""
    paths.lab.mkdir(parents=True, exist_ok=True)
    new = paths.state.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(state), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    new.replace(paths.state)


@contextmanager
def locked(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold a lock that dies with its holder. ``waiting`` is printed when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
