"""AMD cards, architecture, processes, driver and ROCm by `amd-smi`, `rocm-smi` and `rocminfo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from facts.smi import VendorFact, answered, best, filled, first_line
from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.rocm import parse_amd_smi, parse_rocm_smi, parse_rocminfo
from lmcache_fleet.parsers.sections import Section

# rocm-smi's exit status is that of the last value that a card doesn't have, with all others printed.
_ANY = frozenset(range(1, 124))


class RocmSmi(VendorFact):
    """Cards and processes.

    `extra` has `rocm_version` and `module_version`; a chip's `extra` has `gfx` (`gfx942`), by which native code is
    built, `uuid`, `numa_node` and partitions.
    """

    vendor = "rocm"
    paths = "/opt/rocm/bin"
    # amd-smi replaces rocm-smi; hosts have one, the other, or both. rocminfo is asked where neither names the
    # architecture, and where both fail: it tells whether this user may use the cards at all.
    body = """\
gfx=; tool=
if command -v amd-smi >/dev/null 2>&1; then
  ask static amd-smi static --json
  case $answer in *gfx[0-9]*) gfx=1 ;; esac
  case $answer in *'"gpu"'*) tool=amd
    ask metric amd-smi metric --mem-usage --json
    ask process amd-smi process --json ;;
  esac
fi
if [ -z "$tool" ]; then
  ask rocm-smi rocm-smi --showproductname --showmeminfo vram --showbus --showuniqueid --showdriverversion --json
  case $answer in *gfx[0-9]*) gfx=1 ;; esac
  case $answer in *'"card'*) ;; *) case $code in 124|126|127) ;; *) ask table rocm-smi ;; esac ;; esac
fi
if [ -z "$gfx" ] && command -v rocminfo >/dev/null 2>&1; then ask rocminfo rocminfo; fi
show module /sys/module/amdgpu/version
show toolkit /opt/rocm/.info/version
"""

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        amd = {name: answered(parse_amd_smi, sections.get(name)) for name in ("static", "metric", "process")}
        asked = answered(parse_rocm_smi, sections.get("rocm-smi"), _ANY)
        table = answered(parse_rocm_smi, sections.get("table"), _ANY)
        agents = answered(parse_rocminfo, sections.get("rocminfo"))
        answer = best([amd["static"], asked, table])
        if answer is None or (not answer.chips and agents and agents.chips):
            answer = agents or answer or self.default()
        for other in (amd["metric"], asked, table):
            answer = answer if other is answer else filled(answer, other)
        if agents and agents is not answer:
            answer = _with_architecture(answer, agents)
        process = amd["process"]
        extra = dict(answer.extra)
        toolkit, module = first_line(sections.get("toolkit")), first_line(sections.get("module"))
        if toolkit:
            extra.setdefault("rocm_version", toolkit)
        if module:
            extra["module_version"] = module
        return replace(
            answer,
            driver_version=answer.driver_version or module or (agents.driver_version if agents else None),
            processes=process.processes if process and process.processes else answer.processes,
            extra=extra,
        )


def _with_architecture(answer: Accelerators, agents: Accelerators) -> Accelerators:
    """The tools number cards by address, the runtime in its own order: by address, or all alike."""
    if all(chip.bus_id for chip in (*answer.chips, *agents.chips)):
        return filled(answer, agents)
    names = {chip.extra.get("gfx") for chip in agents.chips}
    if len(names) != 1 or len(agents.chips) != len(answer.chips):
        return answer
    gfx = names.pop()
    return replace(answer, chips=tuple(replace(chip, extra={"gfx": gfx, **chip.extra}) for chip in answer.chips))
