"""What a step would change, as data that plans, diffs and reports share."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between what is and what is wanted.

    Args:
        what: the thing that changes, such as `vllm` or `/etc/systemd/system/x.service`.
        before: its state now; None when it isn't there.
        after: its wanted state; None when it goes away.
        diff: lines of a unified diff, for texts.
        why: reason, where it isn't plain.
        kept: the serving release has it already: it is put into the new one as it is.
        restarts: the running process has to be started anew for it.
    """

    what: str
    before: str | None
    after: str | None
    diff: tuple[str, ...] = ()
    why: str = ""
    kept: bool = False
    restarts: bool = False

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        if self.before is None:
            return f"+ {self.what}: {self.after}{reason}" if self.after else f"+ {self.what}{reason}"
        if self.after is None:
            return f"- {self.what}: {self.before}{reason}"
        return f"~ {self.what}: {self.before} → {self.after}{reason}"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def text_change(path: str, before: str | None, after: str, why: str = "") -> Change | None:
    """The change of a text file, with its unified diff; None when equal."""
    if before == after:
        return None
    lines = difflib.unified_diff(
        (before or "").splitlines(),
        after.splitlines(),
        fromfile=path if before is not None else "/dev/null",
        tofile=path,
        lineterm="",
        n=2,
    )
    label = "new file" if before is None else "changed"
    return Change(path, None if before is None else "as is", label, tuple(lines), why)
