"""Environment files that systemd's EnvironmentFile= and a POSIX shell's `.` read alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Inside double quotes both readers take a backslash before these four, and only these, as an escape.
_ESCAPED = re.compile(r'(["\\$`])')
_LINE = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"\Z')


def _quote(value: str) -> str:
    return _ESCAPED.sub(r"\\\1", value)


def render_env(variables: Mapping[str, str]) -> str:
    """The file's text, one `NAME="value"` a line, sorted.

    Raises:
        ValueError: a name is no identifier, or a value has a line break or NUL, which neither reader can carry.
    """
    lines = []
    for name in sorted(variables):
        value = variables[name]
        if not _NAME.match(name):
            raise ValueError(f"not a variable name: {name!r}")
        if any(char in value for char in "\n\r\0"):
            raise ValueError(f"the value of {name} has a line break or NUL")
        lines.append(f'{name}="{_quote(value)}"\n')
    return "".join(lines)


def parse_env(text: str) -> dict[str, str]:
    """Read back what `render_env` wrote; lines of another form are passed over."""
    found = {}
    # Not `splitlines`, which takes more characters for a line's end than systemd and shells do.
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match:
            found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
    return found
