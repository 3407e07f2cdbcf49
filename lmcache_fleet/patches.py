"""Patches as data: see whether a file has one already, apply it, or say why it can't be."""

from __future__ import annotations

import difflib
import fnmatch
import re
from dataclasses import dataclass
from typing import Literal

from lmcache_fleet.playbook.model import Patch


@dataclass(frozen=True, slots=True)
class PatchResult:
    """What became of one patch.

    Args:
        path: file in the tree.
        state: `applied`, `present` (already there), `not-needed` (another ref, or left out) or `refused` (the anchor is
            gone).
        text: the file's text after it.
        diff: lines of a unified diff; empty unless applied.
        nearest: for a refusal, the lines of the file that look most like the anchor.
    """

    path: str
    state: Literal["applied", "present", "not-needed", "refused"]
    text: str
    diff: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


def is_needed(patch: Patch, ref: str) -> bool:
    """Whether a tree at a ref is to have a patch at all.

    Args:
        patch: the patch.
        ref: git ref of the tree, matched against `patch.refs`.
    """
    return patch.when and (not patch.refs or any(fnmatch.fnmatchcase(ref, pattern) for pattern in patch.refs))


def apply_patch(patch: Patch, text: str, ref: str) -> PatchResult:
    """Apply one patch to a file's text.

    Args:
        patch: the patch.
        text: content of `patch.path`.
        ref: git ref of the tree, matched against `patch.refs`.
    """
    if not is_needed(patch, ref):
        return PatchResult(patch.path, "not-needed", text)
    plain = text.replace("\r\n", "\n")
    if any(re.search(pattern, plain, re.MULTILINE) for pattern in patch.present):
        return PatchResult(patch.path, "present", text)
    # Playbooks have plain line ends; in a file of the other kind the patch takes on the file's.
    ends = "\r\n" if "\r\n" in text and patch.find not in text else "\n"
    find, replace = patch.find.replace("\n", ends), patch.replace.replace("\n", ends)
    if find not in text:
        return PatchResult(patch.path, "refused", text, nearest=_nearest(patch.find, plain))
    after = text.replace(find, replace, 1)
    diff = difflib.unified_diff(
        text.splitlines(), after.splitlines(), f"a/{patch.path}", f"b/{patch.path}", lineterm="", n=2
    )
    return PatchResult(patch.path, "applied", after, tuple(diff))


def _nearest(anchor: str, text: str) -> tuple[str, ...]:
    wanted = [line for line in anchor.splitlines() if line.strip()]
    lines = text.splitlines()
    if not wanted:
        return ()
    scored = [
        (max(difflib.SequenceMatcher(None, line.strip(), want.strip()).ratio() for want in wanted), number)
        for number, line in enumerate(lines)
        if line.strip()
    ]
    if not scored:
        return ()
    _, best = max(scored, key=lambda item: (item[0], -item[1]))
    first = max(0, best - 2)
    return tuple(f"{number + 1}: {lines[number]}" for number in range(first, min(len(lines), best + 3)))
