"""What a log, a terminal or a copy does to a tool's text, undone; and the tool's error texts, named."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NEWLINE = re.compile(r"\r*\n|[\r\v\f]")
# No line of these tools comes near; what is longer is something else, and would make the searches below slow.
LONGEST = 2000

# In order: the first that matches any line names the state. The named cause of -8020 must win over the generic text
# around it, and a loader error over the "No such file" inside it.
_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (state, re.compile(pattern, re.IGNORECASE))
    for state, pattern in (
        ("device-in-use", r"\bret is -8020\b|because the device is used|resource (?:is )?occupied"),
        ("library-incompatible", r"version [`'\"]?(?:GLIBC|GLIBCXX|CXXABI)_\S+ not found|undefined symbol"),
        ("library-missing", r"error while loading shared libraries|\.so[.\w]*: cannot open shared object file"),
        ("permission-denied", r"permission denied|operation not permitted|\bret is -8002\b|must be (?:run as )?root"),
        ("timed-out", r"\btimed out\b|\bret is -8006\b"),
        ("not-supported", r"\bret is -(?:8255|8013)\b|(?:does|do|is|are) not support(?:ed)?\b|not supported"),
        (
            "no-devices",
            r"\bret is -800[78]\b|no (?:npu|device|card|chip)s?(?: was| were)? (?:found|available|detected)",
        ),
        ("device-not-ready", r"\bret is -80(?:12|17)\b"),
        ("dcmi-init-failed", r"dcmi mod(?:ule|el) init\w* failed|\bret is -8005\b"),
        ("dcmi-error", r"\bdcmi\b.*\bfail\w*|\bret is -\d{4}\b|failed to query \S+ result"),
        (
            "driver-not-loaded",
            r"driver (?:is |was |has )?not (?:been )?(?:loaded|installed|found)"
            r"|davinci_manager.*no such (?:file|device)"
            r"|(?:can ?not|can't|failed to) (?:find|load) (?:the )?driver",
        ),
        ("dcmi-init-failed", r"DrvMngGetConsoleLogLevel failed"),
        (
            "tool-missing",
            r"command not found|npu-smi['\"]?: not found|no npu-smi in "
            r"|npu-smi.*(?:no such file or directory|未找到命令|not found in \$?path)",
        ),
        ("tool-crashed", r"segmentation fault|core dumped|bus error|\baborted\b|^killed$|cannot execute binary file"),
        (
            "usage-error",
            r"error (?:parameter|command)|invalid (?:parameter|option|argument)|^usage:|unrecognized option",
        ),
    )
)


def clean_lines(text: str, longest: int = LONGEST) -> list[str]:
    """The lines of a tool's output without terminal codes, carriage returns, odd blanks and trailing spaces.

    Args:
        text: the output.
        longest: characters of a line that are kept.
    """
    plain = _ANSI.sub("", text).replace("\ufeff", "").replace("\xa0", " ").replace("\x00", "")
    return [line[:longest].rstrip() for line in _NEWLINE.split(plain)]


def error_state(lines: list[str]) -> tuple[str, str] | None:
    """The named state of the first known error text and its line; None when no line is a known error.

    Source: the texts of real hosts (corpus/npu_smi 94 to 98) and the return codes of Huawei's DCMI interface.
    """
    for state, pattern in _ERRORS:
        for line in lines:
            if pattern.search(line):
                return state, line.strip()
    return None


def unread_state(lines: list[str]) -> tuple[str, str]:
    """State and message of an output in which nothing was found: its error, `empty`, or `unrecognized`."""
    found = error_state(lines)
    if found:
        return found
    first = next((line.strip() for line in lines if line.strip()), "")
    return ("unrecognized", first) if first else ("empty", "")


def number(text: str | None) -> int | None:
    """A non-negative decimal number; None for anything else (`NA`, `-`, nothing)."""
    # Bounded: Python refuses to convert numbers of thousands of digits, and no tool prints one.
    return int(text) if text and len(text) < 19 and text.isascii() and text.isdigit() else None


def decimal(text: str | None) -> float | None:
    """A decimal number such as `93.6`; None for anything else."""
    return float(text) if text and re.fullmatch(r"-?\d{1,15}(?:\.\d{1,15})?", text, re.ASCII) else None
