"""Distribution packages: which of a list are installed, and who holds the package manager's lock."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase

from lmcache_fleet.plain import Plain

# The holder is found from /proc/locks by inode: needs neither fuser nor lsof, which bare hosts lack.
_LOCK = """
for f in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock; do
  [ -e "$f" ] || continue
  i=$(stat -c %i "$f")
  p=$(awk -v i=":$i" 'index($6, i) && substr($6, length($6)-length(i)+1) == i {print $5; exit}' /proc/locks)
  [ -n "$p" ] && printf 'lock\\t%s\\t%s\\n' "$p" "$(tr '\\0' ' ' < /proc/$p/cmdline 2>/dev/null)" && break
done
"""


@dataclass(frozen=True, slots=True)
class InstalledPackages(Plain):
    """Which distribution packages are there.

    Args:
        versions: name → version of those installed; the others are absent.
        lock_holder: `pid command line` of the process that holds the package manager's lock; None when free.
    """

    versions: dict[str, str]
    lock_holder: str | None


class _Packages(FactBase[InstalledPackages]):
    """Both package managers' answers have one form."""

    @staticmethod
    def default() -> InstalledPackages:
        """None of them."""
        return InstalledPackages({}, None)

    def process(self, output: list[str]) -> InstalledPackages:
        """Read the command's output."""
        return _installed(output)


class AptPackages(_Packages):
    """Versions of the named Debian packages.

    + names: package names
    """

    def command(self, names: list[str]) -> str:
        """The shell command that reads it."""
        quoted = " ".join(shlex.quote(name) for name in names)
        # An unknown name makes dpkg-query exit 1, which is an answer, not a failure.
        query = f"dpkg-query -W -f='pkg\\t${{binary:Package}}\\t${{db:Status-Status}}\\t${{Version}}\\n' -- {quoted}"
        return f"{{ {query} 2>/dev/null || true; }}\n{_LOCK}true"


class DnfPackages(_Packages):
    """Versions of the named RPM packages.

    + names: package names
    """

    def command(self, names: list[str]) -> str:
        """The shell command that reads it."""
        quoted = " ".join(shlex.quote(name) for name in names)
        return f"rpm -q --qf 'pkg\\t%{{NAME}}\\tinstalled\\t%{{VERSION}}-%{{RELEASE}}\\n' {quoted} 2>/dev/null || true"


def _installed(output: list[str]) -> InstalledPackages:
    versions: dict[str, str] = {}
    holder = None
    for line in output:
        fields = line.split("\t")
        if fields[0] == "pkg" and len(fields) == 4 and fields[2] == "installed":
            # `libc6:amd64` is the same package as the `libc6` that was asked for.
            versions[fields[1].split(":")[0]] = fields[3]
        elif fields[0] == "lock" and len(fields) == 3:
            holder = f"{fields[1]} {fields[2].strip()}".strip()
    return InstalledPackages(versions, holder)
