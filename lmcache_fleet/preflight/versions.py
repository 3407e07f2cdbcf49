"""Version conditions as checks ask them."""

from __future__ import annotations

import re

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from lmcache_fleet.playbook.model import SourceStep
from lmcache_fleet.preflight.observation import Subject

ASCEND_TREE = "lmcache-ascend"


def fits(version: Version | None, condition: str | None) -> bool:
    """Whether a version meets a condition; an unknown version or no condition is nobody's fault."""
    return version is None or condition is None or SpecifierSet(condition).contains(version, prereleases=True)


def parsed(text: str | None) -> Version | None:
    """A version, or None for what is none."""
    try:
        return Version((text or "").strip().rstrip("+"))
    except InvalidVersion:
        return None


def tag_version(ref: str) -> Version | None:
    """The version that a tag names; None for branches and commits."""
    found = re.fullmatch(r"v?(\d+(?:\.\d+)+(?:\.?\w+)?)", ref)
    return parsed(found[1]) if found else None


def ascend_source(subject: Subject) -> SourceStep | None:
    """The source step that fetches LMCache-Ascend."""
    steps: list[SourceStep] = subject.playbook.of_kind(SourceStep)
    return next((step for step in steps if ASCEND_TREE in f"{step.name} {step.repo}".lower()), None)
