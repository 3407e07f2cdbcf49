"""MetaX cards, processes, driver and MACA version by `mx-smi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from facts.smi import VendorFact, answered, best, filled
from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.maca import parse_cards, parse_table
from lmcache_fleet.parsers.sections import Section


class MxSmi(VendorFact):
    """Cards and processes. `extra` has `maca_version` and `bios_version`; a chip's `extra` has `uuid`."""

    vendor = "maca"
    paths = "/opt/mxdriver/bin:/opt/maca/bin"
    body = """\
ask table mx-smi
case $code in 124|126|127) ;; *) ask list mx-smi -L ;; esac
"""

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        table = answered(parse_table, sections.get("table"))
        listed = answered(parse_cards, sections.get("list"))
        answer = best([table, listed]) or self.default()
        if answer is table:
            answer = filled(answer, listed)
        elif table:
            answer = replace(answer, tool_version=answer.tool_version or table.tool_version)
        return answer
