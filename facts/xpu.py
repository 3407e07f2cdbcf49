"""Intel XPU cards, their memory, processes and driver by `xpu-smi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from facts.smi import VendorFact, answered, best, filled
from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.sections import Section
from lmcache_fleet.parsers.xpu import parse_discovery, parse_ps, parse_stats, parse_version


class XpuSmi(VendorFact):
    """Cards and processes. A chip's `extra` has `uuid`, `device_id`, `drm_device` and `tiles`."""

    vendor = "xpu"
    paths = "/opt/intel/xpum/bin:/opt/intel/xpu-smi/bin"
    # The list has no sizes and no driver: each card is asked for its own, until one hangs.
    body = """\
tool=xpu-smi
if ! command -v xpu-smi >/dev/null 2>&1 && command -v xpumcli >/dev/null 2>&1; then tool=xpumcli; fi
ask list "$tool" discovery -j
numbers=$(printf '%s\\n' "$answer" | sed -n 's/^.*"device_id": *\\([0-9][0-9]*\\).*$/\\1/p' | sort -un)
case $code in 0|124|126|127) ;; *) ask table "$tool" discovery ;; esac
for n in $numbers; do
  ask "card $n" "$tool" discovery -d "$n" -j
  [ "$code" = 124 ] && break
  ask "stats $n" "$tool" stats -d "$n" -j
  [ "$code" = 124 ] && break
done
case $code in 124|126|127) ;; *) ask ps "$tool" ps -j; ask version "$tool" -v ;; esac
"""

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        answer = best(answered(parse_discovery, sections.get(name)) for name in ("list", "table")) or self.default()
        driver = answer.driver_version
        for name, section in sections.items():
            if name.startswith("card "):
                card = answered(parse_discovery, section)
                answer = filled(answer, card)
                driver = driver or (card.driver_version if card else None)
            elif name.startswith("stats "):
                # Statistics name their cards by number only.
                answer = filled(answer, answered(parse_stats, section))
        running = answered(parse_ps, sections.get("ps"))
        version = parse_version(sections["version"].text)["tool_version"] if "version" in sections else None
        return replace(
            answer,
            tool_version=version,
            driver_version=driver,
            processes=running.processes if running else (),
            extra={**answer.extra, "processes_state": running.state if running else "not-printed"},
        )
