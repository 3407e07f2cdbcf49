"""The systems of LMCache's installation guide: which playbook, by which channel, tested how."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import Field, TypeAdapter

from lmcache_fleet.compatibility import Rule, rules
from lmcache_fleet.playbook.model import PlainName, StrictModel
from lmcache_fleet.yaml_rules import read_rules

SOURCE = "LMCache's installation and compatibility pages, as of 0.5.6"
DATE = "2026-12-01"

_TESTED = {
    "resolution": "real uv and pip, stand-in wheels",
    "index": "real, from the package index",
    "lab": "lab hardware, stand-in packages",
}

_HEAD = f"""\
# Systems

Written by `lmcache-fleet systems --markdown`; a test keeps it so. How the
images are made and run: [containers.md](containers.md). Facts: {SOURCE}, read on {DATE}.

One playbook a system, each with a deploy of the same name; any other playbook runs with `pyinfra INVENTORY
deploys/apply.py --data playbook=playbooks/mine.yaml`. `lmcache-fleet check playbooks/NAME.yaml` tells without a host
what of it can't work.
"""

_MIDDLE = """\
*real uv and pip, stand-in wheels*: `tests/real/test_channels.py` runs the installers with the playbook's own flags
against a small index and release pages whose wheels have the real names, versions and requirements; it shows which
wheel is taken with the flags, and which wrong one without each. *real, from the package index*: installed from there
and used. *lab hardware*: `tests/lab/test_systems.py` (images: `tests/lab/test_containers.py`,
`test_sglang_image.py` and `test_server_image.py`; an LMCache server without an engine, and so without cards:
`test_server.py`) converges a booted host
with stand-in cards, vLLM and wheels to evidence of a cache hit, runs again without a change, and has twins that are
refused: a host that doesn't fit, a flag left out. *unit tests*: the playbook is valid, its flags are those of the
guide, and its rules fire; nothing was installed. Nothing on this page has run on a real accelerator.

Playbooks for a vendor's stack (ROCm, XPU, MUSA, MACA) make an environment on top of the vendor's own Python, in the
vendor's image or on a host that has the same: its torch is seen and never touched. `requires.runtime` names what must
be there; it is read without importing torch, and a host that has something else is refused before anything is
installed.

`rocm-amd`, `rocm-amd-image`, `rocm-source` and `cli` put nothing into service. On a host where another playbook's
service is enabled or runs, that goes on: `current` stays at its release, from which it is started again, and the run
says in which directory the new one is. Give such a host another `prefix` in the inventory to keep the two apart; or
end the service (`systemctl disable --now lmcache-fleet-vllm.service`), after which `current` moves.

## What the flags are for

Each line is a rule: a playbook or a host that breaks it is refused by `lmcache-fleet check` or before the host is
touched, with the rule's name.
"""

_TAIL = """\
## After an installation

The `imports` of a step load the native module in the release's own Python, as the guide does by hand with `python -c
"import lmcache.cuda_ops"` (`lmcache.xpu_ops` on XPU). `undefined symbol` then means that wheel and torch are not of
one build: another CUDA variant, another torch or another C++ ABI. Take the wheel of this runtime's channel, or build
from source. `installed` holds versions against patterns (`torch: "*+cu129"`), since two builds may share a version.

## A new vLLM version

The newest vLLM is not a tried one. What LMCache's compatibility page asks for before production is what the `verify`
steps do by themselves:

| the page's step | in the evidence |
|---|---|
| the server starts and the intended connector is loaded | `connector`, its module, and the device |
| a cold request stores a prefix | row `cold`, tokens stored |
| the same prefix again is a cache hit | row `hit`, tokens from LMCache |
| after a restart another process retrieves it | row `restart` |
| outputs are equal, and the log has no layout, transfer or worker error | `outputs equal`, findings |

So a new version is tried on one host, `pyinfra INVENTORY deploys/cuda.py --limit HOST --data vars='{"vllm":
"0.33.0"}'`: the release goes into service only when all five hold, and the old one serves until then. A playbook that
leaves the off-line proof out is refused (`unproved-engine`). For hybrid models the recipe decides, not the version;
the old matrix of LMCache 0.3 and 0.4 decides nothing any more.
"""


class System(StrictModel):
    """One system of the guide."""

    row: int
    system: str
    playbook: PlainName
    channel: str
    flags: str
    tested: list[Literal["resolution", "index", "lab"]] = Field(default=[])

    @property
    def tested_how(self) -> str:
        """What was run, in words."""
        return "; ".join(_TESTED[how] for how in self.tested) or "unit tests"


@lru_cache(maxsize=1)
def systems() -> tuple[System, ...]:
    """All systems, in the guide's order."""
    data = read_rules("systems.yaml")
    return tuple(TypeAdapter(list[System]).validate_python(data))


def markdown() -> str:
    """The page docs/systems.md."""
    table = ["| system | playbook | channel | flags | tested how |", "|---|---|---|---|---|"]
    table += [
        f"| {item.system} | [`{item.playbook}`](../playbooks/{item.playbook}.yaml) | {item.channel} | {item.flags} "
        f"| {item.tested_how} |"
        for item in systems()
    ]
    ruled = ["| rule | what is wrong | what to do | source |", "|---|---|---|---|"]
    ruled += [
        f"| `{rule.id}`{_kind(rule)} | {rule.message} | {rule.remedy.strip()} | {rule.source} |" for rule in rules()
    ]
    return "\n".join([_HEAD, *table, "", _MIDDLE, *ruled, "", _TAIL]).rstrip("\n")


def _kind(rule: Rule) -> str:
    if rule.note:
        return " (a note)"
    return " (by host)" if rule.host else ""
