"""An inventory of hosts that don't exist: pyinfra's @fake connector answers with what a real host answered."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lmcache_fleet.survey import BEGIN

_answer = Path(os.environ["LMCACHE_FLEET_BENCH_ANSWER"]).read_text(encoding="utf-8")
_vars: dict[str, Any] = json.loads(os.environ["LMCACHE_FLEET_BENCH_VARS"])
_delay = float(os.environ.get("LMCACHE_FLEET_BENCH_DELAY", "0"))

hosts = [
    (
        f"@fake/n{number:04d}",
        {"fake_responses": {BEGIN: _answer}, "fake_delay": _delay, "fake_delay_jitter": 0, "vars": _vars},
    )
    for number in range(int(os.environ["LMCACHE_FLEET_BENCH_HOSTS"]))
]
