"""The check catalogue: severity, texts in English and Chinese, and source of every check, kept as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import TypeAdapter

from lmcache_fleet.playbook.model import StrictModel
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import checks
from lmcache_fleet.yaml_rules import read_rules

LANGUAGES = ("en", "zh")
SEVERITIES = ("error", "warning", "info")


class Text(StrictModel):
    """A check in one language; `{name}` in message and remedy stands for a value of the finding."""

    condition: str
    message: str
    remedy: str


class Entry(StrictModel):
    """One check of the catalogue."""

    topic: str
    severity: Literal["error", "warning", "info"]
    source: str
    en: Text
    zh: Text

    def text(self, language: str) -> Text:
        """Its texts in a language."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that fired.

    Args:
        check: its id.
        severity: `error` when the playbook surely fails here, `warning` when it may, `info` when it is good to know.
        values: what was found, by the names that the texts use.
    """

    check: str
    severity: str
    values: tuple[tuple[str, str], ...]

    def message(self, language: str = "en") -> str:
        """What is wrong."""
        return catalogue()[self.check].text(language).message.format_map(dict(self.values))

    def remedy(self, language: str = "en") -> str:
        """What to do about it."""
        return catalogue()[self.check].text(language).remedy.format_map(dict(self.values))

    def as_json(self, language: str = "en") -> dict[str, Any]:
        """The same as plain data."""
        return {
            "check": self.check,
            "severity": self.severity,
            "message": self.message(language),
            "remedy": self.remedy(language),
            "values": dict(self.values),
        }


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Entry]:
    """Check id → its entry, in the catalogue's order."""
    data = read_rules("checks.yaml")
    return TypeAdapter(dict[str, Entry]).validate_python(data)


def findings(subject: Subject) -> list[Finding]:
    """Every check that fires, errors first.

    Args:
        subject: the playbook on the host.
    """
    entries = catalogue()
    found = [
        Finding(name, entries[name].severity, tuple((key, str(value)) for key, value in values.items()))
        for name, judge in checks()
        for values in judge(subject)
    ]
    order = list(entries)
    found.sort(key=lambda item: (SEVERITIES.index(item.severity), order.index(item.check)))
    return list(dict.fromkeys(found))
