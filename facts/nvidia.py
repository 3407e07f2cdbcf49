"""NVIDIA cards, MIG devices, processes, driver, CUDA and toolkit by `nvidia-smi`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from facts.smi import VendorFact, answered, best, filled
from lmcache_fleet.accelerators import Accelerators, Process
from lmcache_fleet.parsers.nvidia import NO_CARD, parse_list, parse_query_compute_apps, parse_query_gpu, parse_table
from lmcache_fleet.parsers.sections import Section

_OLD = "index,name,uuid,pci.bus_id,memory.total,memory.used,driver_version"
_NEW = f"{_OLD},compute_cap,mig.mode.current,ecc.mode.current,persistence_mode,serial,vbios_version"
# The infoROM of a card is damaged: the tool says so by its exit status, and all else is true.
_HARMLESS = frozenset({14})
_MODULE = re.compile(r"Kernel Module[^0-9]*(\d\S*)")
_TOOLKIT = re.compile(r'"cuda"\s*:\s*\{[^}]*?"version"\s*:\s*"([^"]+)"')


class NvidiaSmi(VendorFact):
    """Cards and processes.

    `extra` has `cuda_version` (the newest that the driver serves), `module_version` (of the kernel module that is
    loaded, which a tool that refuses to work doesn't tell) and `toolkit_version`; a chip's `extra` has `uuid`,
    `compute_capability`, `mig_mode` and `mig_devices`.
    """

    vendor = "cuda"
    paths = "/usr/local/nvidia/bin:/usr/lib/wsl/lib:/usr/local/cuda/bin"
    # An old tool refuses the whole question for one field that it doesn't know. A tool that is missing or hangs is
    # not asked again.
    body = f"""\
ask query nvidia-smi --query-gpu={_NEW} --format=csv
case $code in 0|124|126|127) ;; *) ask query-old nvidia-smi --query-gpu={_OLD} --format=csv ;; esac
case $code in 124|126|127) ;; *) ask table nvidia-smi ;; esac
case $code in 0|14)
  ask apps nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv
  if [ "$code" != 124 ]; then ask list nvidia-smi -L; fi ;;
esac
show module /proc/driver/nvidia/version
show toolkit /usr/local/cuda/version.json
"""

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        table = answered(parse_table, sections.get("table"), _HARMLESS)
        listed = answered(parse_list, sections.get("list"), _HARMLESS)
        queried = [answered(parse_query_gpu, sections.get(name), _HARMLESS) for name in ("query", "query-old")]
        answer = best([*queried, table])
        if answer is None:
            answer = self.default()
        if answer is not table:
            answer = filled(answer, table)
        # The list names MIG devices by profile and uuid; the table has their memory.
        migs = {chip.npu_id: chip.extra.get("mig_devices", ()) for chip in listed.chips} if listed else {}
        for chip in answer.chips:
            own = chip.extra.get("mig_devices") or []
            named = {mig["device"]: mig for mig in migs.get(chip.npu_id, ())}
            devices = sorted({mig["device"] for mig in own} | named.keys())
            if devices:
                sized = {mig["device"]: mig for mig in own}
                chip.extra["mig_devices"] = [{**sized.get(device, {}), **named.get(device, {})} for device in devices]
        apps = answered(parse_query_compute_apps, sections.get("apps"))
        return replace(
            answer,
            tool_version=table.tool_version if table else None,
            driver_version=answer.driver_version or (table.driver_version if table else None),
            processes=_processes(answer, apps, table),
            extra={**(table.extra if table else {}), **answer.extra, **_versions(sections)},
        )


def _processes(answer: Accelerators, apps: Accelerators | None, table: Accelerators | None) -> tuple[Process, ...]:
    """The table's processes, those that compute with their whole name; those only the query has, too."""
    found = list(table.processes) if table else []
    if apps is None or apps.state != "ok":
        return tuple(found)
    numbers = {chip.extra.get("uuid"): chip.npu_id for chip in answer.chips}
    for process, card in zip(apps.processes, apps.extra["cards"], strict=True):
        number = numbers.get(card, NO_CARD)
        same = next(
            (place for place, other in enumerate(found) if other.pid == process.pid and number in {other.npu_id, -1}),
            None,
        )
        if same is None:
            found.append(replace(process, npu_id=number))
        else:
            used = process.used_mb if found[same].used_mb is None else found[same].used_mb
            found[same] = replace(found[same], name=process.name or found[same].name, used_mb=used)
    return tuple(found)


def _versions(sections: Mapping[str, Section]) -> dict[str, str]:
    found = {}
    for name, pattern in (("module", _MODULE), ("toolkit", _TOOLKIT)):
        match = pattern.search(sections[name].text) if name in sections else None
        if match:
            found[f"{name}_version"] = match[1]
    return found
