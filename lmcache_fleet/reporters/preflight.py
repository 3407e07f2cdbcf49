"""A preflight and its catalogue, told to people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from lmcache_fleet.preflight.catalogue import SEVERITIES, Entry
from lmcache_fleet.preflight.report import Report
from lmcache_fleet.reporters.plan import host_list, show_failures

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_WORDS = {
    "en": {
        "error": "error",
        "warning": "warning",
        "info": "info",
        "condition": "fires when",
        "message": "says",
        "remedy": "remedy",
        "source": "source",
        "ready": "ready",
        "refused": "refused",
        "failed": "not judged",
    },
    "zh": {
        "error": "错误",
        "warning": "警告",
        "info": "提示",
        "condition": "触发条件",
        "message": "提示内容",
        "remedy": "处理办法",
        "source": "来源",
        "ready": "就绪",
        "refused": "被拒绝",
        "failed": "未能检查",
    },
}


def show_report(out: Console, report: Report, language: str) -> None:
    """Print a report: each finding once, with the hosts that share it.

    Args:
        out: where to.
        report: the preflight's result.
        language: `en` or `zh`.
    """
    words = _WORDS[language]
    for group in report.groups():
        finding = group.finding
        colour = _COLOURS[finding.severity]
        head = Text(f"{words[finding.severity]} ", style=f"bold {colour}")
        out.print(head + Text(finding.check, style="bold") + Text(f"  {host_list(group.hosts)}", style="dim"))
        out.print(Text(f"    {finding.message(language)}"))
        out.print(Text(f"    → {finding.remedy(language)}", style="dim"))
    show_failures(out, report.failures)
    parts = [
        f"{words[word]}: {host_list(names)}"
        for word, names in (
            ("ready", report.ready),
            ("refused", report.refused),
            ("failed", [failure.host for failure in report.failures]),
        )
        if names
    ]
    out.print(Text(f"==> {'; '.join(parts) or '-'}", style="bold"))


def show_entry(out: Console, name: str, entry: Entry, language: str) -> None:
    """Print one check of the catalogue."""
    words, text = _WORDS[language], entry.text(language)
    out.print(Text(name, style="bold") + Text(f"  {words[entry.severity]}", style=_COLOURS[entry.severity]))
    rows = {
        "condition": text.condition,
        "message": text.message,
        "remedy": text.remedy,
        "source": entry.source,
    }
    for key, value in rows.items():
        out.print(Text(f"  {words[key]}: ", style="dim") + Text(value))


def show_catalogue(out: Console, entries: Mapping[str, Entry], language: str) -> None:
    """Print every check in a line."""
    for severity in SEVERITIES:
        for name, entry in entries.items():
            if entry.severity == severity:
                label = Text(f"{_WORDS[language][severity]:8}", style=_COLOURS[severity])
                out.print(label + Text(f" {name}", style="bold") + Text(f"  {entry.text(language).condition}"))


def catalogue_page(entries: Mapping[str, Entry], language: str) -> str:
    """The catalogue as a Markdown page."""
    words = _WORDS[language]
    head = {
        "en": (
            "# Check catalogue",
            "Written by `lmcache-fleet explain --markdown`; a test keeps it so.",
            "`lmcache-fleet preflight INVENTORY [PLAYBOOK]` judges every host by these checks and changes nothing. An "
            "**error** surely breaks the playbook on that host, which is refused; a **warning** may break it or make "
            "it slow or useless; an **info** is good to know. `{name}` stands for what was found.",
        ),
        "zh": (
            "# 检查目录",
            "由 `lmcache-fleet explain --markdown --lang zh` 生成，测试保证其为最新。",
            "`lmcache-fleet preflight INVENTORY [PLAYBOOK]` 按这些检查逐台判断主机，不做任何改动。"
            "**错误**表示该剧本在这台主机上必定失败，主机会被拒绝；"
            "**警告**表示可能失败、变慢或不起作用；**提示**仅供了解。`{name}` 代表实际查到的值。",
        ),
    }[language]
    lines = [head[0], "", head[1], "", head[2], ""]
    topics = dict.fromkeys(entry.topic for entry in entries.values())
    for topic in topics:
        lines += [f"## {topic}", ""]
        for name, entry in entries.items():
            if entry.topic != topic:
                continue
            text = entry.text(language)
            lines += [f"### `{name}` ({words[entry.severity]})", ""]
            lines += [f"- {words['condition']}: {text.condition}", f"- {words['message']}: {text.message}"]
            lines += [f"- {words['remedy']}: {text.remedy}", f"- {words['source']}: {entry.source}", ""]
    return "\n".join(lines).rstrip() + "\n"
