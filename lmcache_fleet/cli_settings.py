"""`NAME=VALUE` on the command line."""

from __future__ import annotations

import json
from typing import Any

import click


def setting(text: str) -> tuple[str, Any]:
    """A variable and its value: JSON where it is JSON, else text.

    Args:
        text: as given with `--set`.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"expected NAME=VALUE, got '{text}'")
    try:
        read = json.loads(value)
    except ValueError:
        return name, value
    # A version such as 0.10 would go on as the number 0.1.
    return name, value if isinstance(read, float) and str(read) != value else read
