"""The host itself: distribution, architecture, C library, memory, disk, init system, clock."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase

from lmcache_fleet.plain import Plain

_SCRIPT = """
os=$(cat /etc/os-release 2>/dev/null || true)
printf 'arch=%s\\n' "$(uname -m)"
printf 'kernel=%s\\n' "$(uname -r)"
printf 'os_id=%s\\n' "$(printf '%s\\n' "$os" | sed -n 's/^ID=//p' | tr -d '"')"
printf 'os_version=%s\\n' "$(printf '%s\\n' "$os" | sed -n 's/^VERSION_ID=//p' | tr -d '"')"
printf 'glibc=%s\\n' "$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')"
printf 'cores=%s\\n' "$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
printf 'memory_kb=%s\\n' "$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)"
printf 'memory_available_kb=%s\\n' "$(sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)"
printf 'boot_id=%s\\n' "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
printf 'machine_id=%s\\n' "$(cat /etc/machine-id 2>/dev/null)"
printf 'init=%s\\n' "$(cat /proc/1/comm 2>/dev/null)"
printf 'uid=%s\\n' "$(id -u)"
printf 'now=%s\\n' "$(date +%s)"
printf 'package_manager=%s\\n' "$(for m in apt-get dnf; do command -v $m >/dev/null 2>&1 && { echo $m; break; }; done)"
d=@PREFIX@
while [ ! -d "$d" ]; do d=$(dirname "$d"); done
printf 'disk_free_kb=%s\\n' "$(df -Pk "$d" | awk 'NR==2 {print $4}')"
"""


@dataclass(frozen=True, slots=True)
class HostSystem(Plain):
    """Facts of the host, None where it didn't say.

    Args:
        arch: machine name as `uname -m` prints it.
        kernel: release of the kernel.
        os_id: `ID` of /etc/os-release.
        os_version: `VERSION_ID` of /etc/os-release.
        glibc: version of the C library.
        cores: processors online.
        memory_gb: memory of the host, GiB.
        memory_available_gb: memory a new process could have, GiB.
        boot_id: changes at every boot.
        machine_id: changes at every install.
        init: name of process 1; `systemd` on a booted host.
        uid: numeric id that commands run under.
        now: seconds since the epoch by the host's clock.
        package_manager: `apt-get`, `dnf` or None.
        disk_free_gb: free space where the prefix is or will be, GiB.
    """

    arch: str | None
    kernel: str | None
    os_id: str | None
    os_version: str | None
    glibc: str | None
    cores: int | None
    memory_gb: float | None
    memory_available_gb: float | None
    boot_id: str | None
    machine_id: str | None
    init: str | None
    uid: int | None
    now: int | None
    package_manager: str | None
    disk_free_gb: float | None


class System(FactBase[HostSystem]):
    """The host itself.

    + prefix: directory whose file system the free space is told of
    """

    def command(self, prefix: str = "/opt/lmcache-fleet") -> str:
        """The shell command that reads it."""
        return _SCRIPT.replace("@PREFIX@", shlex.quote(prefix))

    def process(self, output: list[str]) -> HostSystem:
        """Read the command's output."""
        found = dict(line.split("=", 1) for line in output if "=" in line)

        def text(key: str) -> str | None:
            return found.get(key) or None

        def number(key: str) -> int | None:
            value = found.get(key, "")
            return int(value) if value.isdigit() else None

        def gib(key: str) -> float | None:
            value = number(key)
            return None if value is None else round(value / 1024**2, 2)

        return HostSystem(
            arch=text("arch"),
            kernel=text("kernel"),
            os_id=text("os_id"),
            os_version=text("os_version"),
            glibc=text("glibc"),
            cores=number("cores"),
            memory_gb=gib("memory_kb"),
            memory_available_gb=gib("memory_available_kb"),
            boot_id=text("boot_id"),
            machine_id=text("machine_id"),
            init=text("init"),
            uid=number("uid"),
            now=number("now"),
            package_manager=text("package_manager"),
            disk_free_gb=gib("disk_free_kb"),
        )
