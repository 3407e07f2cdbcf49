"""The quick YAML loader, and the package's own YAML files read by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

# libyaml reads ten times as fast; where PyYAML comes without it, its own parser does.
FAST_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RULES = Path(__file__).resolve().parent / "rules"


def read_rules(name: str) -> Any:
    """The data of a file in `rules/`.

    Args:
        name: of the file, such as `checks.yaml`.
    """
    return yaml.load((_RULES / name).read_text(encoding="utf-8"), FAST_LOADER)  # noqa: S506 - one of the safe loaders
