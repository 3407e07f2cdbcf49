"""What a host has of what steps and builds need: tools, headers, file systems, locks, stray variables."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from pyinfra.api import FactBase

from lmcache_fleet.plain import Plain

#: What our steps call on a host.
NEEDED = ("bash", "python3", "flock", "timeout", "base64", "tar", "gzip", "sha256sum", "getent", "stat")
_BUILD = ("g++", "c++", "ninja", "git")
_HEADERS = {"numaif.h": "/usr/include/numaif.h /usr/include/*/numaif.h"}
# Variables that change what a service does when they reach it by another way than the playbook.
_STRAY = "LMCACHE_|LM_CACHE_|PYTHONHASHSEED|VLLM_|ASCEND_RT_VISIBLE|ASCEND_VISIBLE|LD_PRELOAD|PYTHONPATH"

_SCRIPT = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for c in @NEEDED@; do command -v $c >/dev/null 2>&1 || printf 'missing\\t%s\\n' "$c"; done
for c in @BUILD@; do command -v $c >/dev/null 2>&1 && printf 'command\\t%s\\t\\n' "$c"; done
command -v cmake >/dev/null 2>&1 && \\
  printf 'command\\tcmake\\t%s\\n' "$(cmake --version | sed -n 's/^cmake version //p')"
printf 'shell\\t%s\\n' "$(readlink -f /bin/sh)"
for f in @NUMAIF@; do [ -e "$f" ] && printf 'header\\tnumaif.h\\n' && break; done
space() {
  d=$2; while [ ! -d "$d" ]; do d=$(dirname "$d"); done
  printf 'space\\t%s\\t%s\\t%s\\t%s\\n' "$1" "$(df -Pk "$d" | awk 'NR==2 {print $4}')" \\
    "$(df -Pi "$d" | awk 'NR==2 && $2 != 0 {print $4}')" "$(findmnt -no OPTIONS -T "$d" 2>/dev/null)"
}
space prefix @PREFIX@; space tmp /tmp; space shm /dev/shm; space kv @KV@
printf 'hugepages\\t%s\\n' "$(awk '/^HugePages_Total/ {n=$2} /^Hugepagesize/ {s=$2} END {print n*s}' /proc/meminfo)"
[ -e /var/run/reboot-required ] && printf 'reboot\\n'
lock=@PREFIX@/.run.lock
if [ -e "$lock" ] && command -v flock >/dev/null && ! flock -n "$lock" true; then
  printf 'lock\\t%s\\n' "$(head -n 1 "$lock.holder" 2>/dev/null)"
fi
for p in /proc/[0-9]*/cgroup; do
  grep -q '/lmcache-fleet-' "$p" 2>/dev/null && { p=${p%/cgroup}; printf 'own\\t%s\\n' "${p#/proc/}"; }
done
grep -HEo '^ *(export +)?(@STRAY@)[A-Z0-9_]*=' /etc/environment /etc/profile /etc/profile.d/*.sh 2>/dev/null \\
  | sed -E 's/^([^:]*): *(export +)?(.*)=$/stray\\t\\3\\t\\1/'
systemctl show-environment 2>/dev/null | grep -Eo '^(@STRAY@)[A-Z0-9_]*' | sed 's/^/stray\\t/;s/$/\\tsystemd/'
for d in @DIRECTORIES@; do
  [ -d "$d" ] && printf 'directory\\t%s\\t1\\n' "$d" || printf 'directory\\t%s\\t0\\n' "$d"
done
true
"""


@dataclass(frozen=True, slots=True)
class FileSystem(Plain):
    """A file system: free space in GiB, free inodes (None where there is no such limit), mount options."""

    free_gb: float | None
    free_inodes: int | None
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostReadiness(Plain):
    """What a host has.

    Args:
        missing: commands of `NEEDED` that aren't there.
        commands: build tools that are there → version, where it is told.
        shell: what /bin/sh is.
        headers: headers that are there.
        spaces: `prefix`, `tmp`, `shm` and `kv` → their file system.
        hugepages_gb: memory set aside for huge pages.
        reboot_required: whether the distribution asks for a reboot.
        run_lock: who holds our run lock; None when nobody does.
        own_pids: processes of our units.
        stray: variables of interest → the file that sets them.
        directories: those asked for → whether they are there.
    """

    missing: tuple[str, ...] = ()
    commands: dict[str, str] = field(default_factory=dict)
    shell: str | None = None
    headers: tuple[str, ...] = ()
    spaces: dict[str, FileSystem] = field(default_factory=dict)
    hugepages_gb: float = 0
    reboot_required: bool = False
    run_lock: str | None = None
    own_pids: tuple[int, ...] = ()
    stray: dict[str, str] = field(default_factory=dict)
    directories: dict[str, bool] = field(default_factory=dict)


class Readiness(FactBase[HostReadiness]):
    """Tools, headers, file systems, locks and stray variables of a host.

    + prefix: directory of the releases
    + kv: directory of a KV tier on disk
    + directories: directories to look for
    """

    def command(
        self, prefix: str = "/opt/lmcache-fleet", kv: str = "/var/lib/lmcache-fleet", directories: tuple[str, ...] = ()
    ) -> str:
        """The shell command that reads it."""
        values = {
            "NEEDED": " ".join(NEEDED),
            "BUILD": " ".join(_BUILD),
            "NUMAIF": _HEADERS["numaif.h"],
            "STRAY": _STRAY,
            "PREFIX": shlex.quote(prefix),
            "KV": shlex.quote(kv),
            "DIRECTORIES": " ".join(shlex.quote(path) for path in directories) or '""',
        }
        script = _SCRIPT
        for name, value in values.items():
            script = script.replace(f"@{name}@", value)
        return script

    def process(self, output: list[str]) -> HostReadiness:
        """Read the command's output."""
        rows = [line.split("\t") for line in output if line]

        def of(tag: str, fields: int = 2) -> list[list[str]]:
            return [row[1:] for row in rows if row[0] == tag and len(row) == fields]

        holders = of("lock")
        shell = of("shell")
        hugepages = of("hugepages")
        return HostReadiness(
            missing=tuple(name for (name,) in of("missing")),
            commands=dict(of("command", 3)),
            shell=shell[0][0] or None if shell else None,
            headers=tuple(name for (name,) in of("header")),
            spaces={
                name: FileSystem(_gib(free), _number(inodes), tuple(filter(None, options.split(","))))
                for name, free, inodes, options in of("space", 5)
            },
            hugepages_gb=_gib(hugepages[0][0]) or 0 if hugepages else 0,
            reboot_required=any(row[0] == "reboot" for row in rows),
            run_lock=(holders[0][0] or "?") if holders else None,
            own_pids=tuple(int(pid) for (pid,) in of("own") if pid.isdigit()),
            stray=dict(of("stray", 3)),
            directories={path: there == "1" for path, there in of("directory", 3) if path},
        )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _gib(kilobytes: str) -> float | None:
    value = _number(kilobytes)
    return None if value is None else round(value / 1024**2, 2)
