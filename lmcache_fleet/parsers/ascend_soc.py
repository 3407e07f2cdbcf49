"""The SoC name that native Ascend builds are made for, and whether a toolkit knows it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_PREFIX = "Ascend"
_ABSENT = {"", "NA", "N/A", "-"}


def soc_name(board: Mapping[str, str]) -> str | None:
    """The SoC name of a board, case-exact, as LMCache-Ascend's and vLLM-Ascend's builds look it up.

    Args:
        board: keys and values of `npu-smi info -t board` (card level, or chip level with `-c 0`).

    Returns:
        `Ascend910B3`, `Ascend310P3`, or with the number that Atlas A3 and 950 parts print as NPU Name
        `Ascend910_9382`; None when the board doesn't name its chip.

    Source: LMCache-Ascend setup.py, `_get_npu_soc`.
    """
    chip = _said(board, "Chip Name").replace(" ", "")
    if not chip or chip.lower() == "mcu":
        return None
    if not chip.startswith(_PREFIX):
        chip = f"{_PREFIX}{chip}"
    part = _said(board, "NPU Name")
    return f"{chip}_{part}" if part else chip


def check_soc(soc: str | None, platform_inis: Iterable[str]) -> str | None:
    """What is wrong with a SoC name for a toolkit; None when the toolkit has its platform file.

    The look-up is by file name and case-sensitive, so `Ascend910b3` fails where `Ascend910B3` is meant.

    Args:
        soc: the name a build would use.
        platform_inis: names of the toolkit's platform files, with or without `.ini`.
    """
    known = sorted({name.removesuffix(".ini") for name in platform_inis})
    if not soc:
        return "the SoC is not known: no board names its chip"
    if soc in known:
        return None
    if not known:
        return f"the toolkit has no platform files, so none for {soc}"
    same = [name for name in known if name.lower() == soc.lower()]
    lower = {name.lower(): name for name in known}
    near = same or [lower[name] for name in difflib.get_close_matches(soc.lower(), lower, n=1, cutoff=0.6)]
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"the toolkit has no platform file {soc}.ini ({hint})"


def _said(board: Mapping[str, str], key: str) -> str:
    value = board.get(key, "").strip()
    return "" if value.upper() in _ABSENT else value
