"""Versions of CANN, drivers and firmware as versions that can be compared."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

_ASCEND = re.compile(
    r"v?(?P<release>\d{1,9}(?:\.\d{1,9})*)"
    r"(?:[.\-_]?t(?P<test>\d{1,9})(?:\.\d{1,9})*)?"
    r"(?:[.\-_]?rc[.\-_]?(?P<rc>\d{1,9})(?:\.(?P<patch>\d{1,9}))?)?"
    r"(?:[.\-_]?(?P<stage>alpha|beta)[.\-_]?(?P<stage_number>\d{0,9}))?"
    r"(?:[.\-_+]?b(?P<build>\d{1,9}))?"
    r"\.?",
    re.IGNORECASE | re.ASCII,
)


def ascend_version(text: str | None) -> Version | None:
    """The version in Huawei's notation, normalised to one that compares as it was meant; None for anything else.

    | printed | normalised | because |
    |---|---|---|
    | `9.1.0`, `24.1.0.3` | the same | |
    | `24.1.rc3`, `8.3.RC1` | `24.1rc3`, `8.3rc1` | before `24.1.0` |
    | `25.0.rc1.1` | `25.0rc1.post1` | a patch of the candidate: after rc1, before rc2 |
    | `8.3.RC1.alpha003` | `8.3rc1.dev3` | an early build of the candidate: before rc1; beta after every alpha |
    | `8.5.0.alpha001`, `9.0.0-beta.1` | `8.5.0a1`, `9.0.0b1` | |
    | `8.0.T63` | `8.0.dev63` | a test build, before every candidate |
    | `9.1.0.B150`, `25.6.rc1.b169` | `9.1.0+b150`, `25.6rc1+b169` | the same version, a build of it |

    Args:
        text: the version alone.
    """
    found = _ASCEND.fullmatch(text.strip()) if text else None
    if not found:
        return None
    normal = found["release"]
    suffix = ""
    stage = (found["stage"] or "").lower()
    stage_number = int(found["stage_number"] or 0)
    if found["rc"]:
        normal += f"rc{int(found['rc'])}"
        if found["patch"]:
            suffix = f".post{int(found['patch'])}"
        if stage:
            # The order of alpha before beta has to survive in one number.
            suffix += f".dev{stage_number + (1_000_000 if stage == 'beta' else 0)}"
    elif stage:
        normal += f"{stage[0]}{stage_number}"
    if found["test"] and not stage:
        suffix += f".dev{int(found['test'])}"
    if found["build"]:
        suffix += f"+b{int(found['build'])}"
    try:
        return Version(normal + suffix)
    except InvalidVersion:
        return None
