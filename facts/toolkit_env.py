"""The vendor's environment as bash sees it after sourcing the vendor's scripts."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase

from lmcache_fleet.plain import Plain

# Not the toolkit's: set by the shell, by the login, or different at every read.
_VOLATILE = frozenset(
    [
        "_",
        "BASHOPTS",
        "BASH_ENV",
        "HISTFILE",
        "HOME",
        "HOSTNAME",
        "LANG",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PIPESTATUS",
        "PPID",
        "PS1",
        "PS4",
        "PWD",
        "SHELL",
        "SHELLOPTS",
        "SHLVL",
        "SSH_AUTH_SOCK",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "SUDO_COMMAND",
        "SUDO_GID",
        "SUDO_UID",
        "SUDO_USER",
        "TERM",
        "TMPDIR",
        "USER",
        "XDG_RUNTIME_DIR",
        "XDG_SESSION_ID",
        "XDG_SESSION_CLASS",
        "XDG_SESSION_TYPE",
        "DBUS_SESSION_BUS_ADDRESS",
    ]
)
# The search path that a system service starts with; the capture must not depend on who logs in.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class CapturedEnv(Plain):
    """What the scripts leave behind.

    Args:
        variables: name → value, without the volatile ones.
        missing: for each script of which no candidate exists, the candidates.
        failed: scripts that ended with an error or ended the shell.
    """

    variables: dict[str, str]
    missing: tuple[str, ...]
    failed: tuple[str, ...]


class ToolkitEnv(FactBase[CapturedEnv]):
    """The environment after the scripts, starting from an empty one.

    + scripts: for each script its candidates and arguments, as `(("/a/set_env.sh", "/b/set_env.sh"), ("--x",))`
    + path: directories put before PATH
    + prefix: a virtual environment's `bin` put first, so that scripts that run python find the release's
    """

    def command(self, scripts: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...], path: tuple[str, ...] = ()) -> str:
        """The shell command that reads it."""
        lines = []
        for candidates, arguments in scripts:
            names = " ".join(shlex.quote(name) for name in candidates)
            given = " ".join(shlex.quote(argument) for argument in arguments)
            # Sourced with the arguments as its own, never under `set -eu`: vendors' scripts use unset variables.
            lines.append(
                f'f=; for c in {names}; do [ -e "$c" ] && {{ f=$c; break; }}; done; '
                f"if [ -z \"$f\" ]; then printf 'missing\\t%s\\n' {shlex.quote(', '.join(candidates))} >&3; "
                f'else s=$f; source "$s" {given} >/dev/null 2>&1 </dev/null; r=$?; '
                f'[ $r -eq 0 ] || printf \'failed\\t%s\\t%s\\n\' "$f" "$r" >&3; fi'
            )
        lines.append("printf 'env\\t%s\\n' \"$(env -0 | base64 -w0)\" >&3")
        inner = "exec 3>&1; unset BASH_ENV; " + "\n".join(lines)
        full = ":".join((*path, _PATH))
        shell = f"env -i PATH={shlex.quote(full)} HOME=/root bash --norc --noprofile -c {shlex.quote(inner)}"
        return f"cd / && {shell} || printf 'failed\\tbash\\t%s\\n' \"$?\""

    def process(self, output: list[str]) -> CapturedEnv:
        """Read the command's output."""
        variables: dict[str, str] = {}
        missing: list[str] = []
        failed: list[str] = []
        captured = False
        for line in output:
            fields = line.split("\t")
            if fields[0] == "missing":
                missing.append(fields[1])
            elif fields[0] == "failed":
                failed.append(f"{fields[1]} (exit status {fields[2]})")
            elif fields[0] == "env" and len(fields) == 2:
                captured = True
                for item in base64.b64decode(fields[1]).decode(errors="replace").split("\0"):
                    name, separator, value = item.partition("=")
                    # Exported bash functions and multi-line values can't live in an environment file.
                    if separator and name.isidentifier() and name not in _VOLATILE and "\n" not in value:
                        variables[name] = _without_repeats(value) if name in {"PATH", "LD_LIBRARY_PATH"} else value
        if not captured and not failed:
            failed.append("the scripts ended the shell")
        return CapturedEnv(variables, tuple(missing), tuple(failed))


def _without_repeats(search_path: str) -> str:
    # Vendors' scripts put their directories in front again and again; the first of each is what counts.
    return ":".join(dict.fromkeys(part for part in search_path.split(":") if part))
