"""Where the checkout is: the repository, and not an installed package, is the unit of use."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
