"""Moore Threads cards, processes and driver by `mthreads-gmi`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from facts.smi import VendorFact, answered, best, filled
from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.musa import parse_query, parse_table
from lmcache_fleet.parsers.sections import Section

_TOOLKIT = re.compile(r'"version"\s*:\s*"([^"]+)"')


class MthreadsGmi(VendorFact):
    """Cards and processes. `extra` may have `toolkit_version`."""

    vendor = "musa"
    paths = "/usr/local/musa/bin"
    body = """\
ask query mthreads-gmi -q -j
case $code in 124|126|127) ;; *) ask table mthreads-gmi ;; esac
show toolkit /usr/local/musa/version.json
"""

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        query = answered(parse_query, sections.get("query"))
        table = answered(parse_table, sections.get("table"))
        answer = best([query, table]) or self.default()
        if answer is not table:
            answer = filled(answer, table)
        extra = {**(table.extra if table else {}), **answer.extra}
        toolkit = _TOOLKIT.search(sections["toolkit"].text) if "toolkit" in sections else None
        if toolkit:
            extra["toolkit_version"] = toolkit[1]
        return replace(
            answer,
            tool_version=table.tool_version if table else None,
            driver_version=answer.driver_version or (table.driver_version if table else None),
            processes=table.processes if table else (),
            extra=extra,
        )
