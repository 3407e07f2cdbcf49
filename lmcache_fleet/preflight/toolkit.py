"""Checks of CANN, its operator packages, NNAL, and the environment that the vendor's scripts make."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from lmcache_fleet.parsers.ascend_version import ascend_version
from lmcache_fleet.playbook.model import ToolkitEnvStep
from lmcache_fleet.preflight.observation import Subject, ToolkitSeen
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.preflight.versions import ascend_source, fits, parsed, tag_version

# First tag of LMCache-Ascend that builds with a CANN: HCCL's headers moved in 8.5, the kernels' build tool in 9.0.
_FIRST_TAG = (("9.0.dev0", "0.4.4"), ("8.5.dev0", "0.4.2"))
_HIXL = "csrc/hixl/CMakeLists.txt"
# Which words in the name of an operator package stand for which SoCs.
_FAMILIES = {
    "910b": "Ascend910B",
    "910": "Ascend910",
    "a2": "Ascend910B",
    "a3": "Ascend910_93",
    "910_93": "Ascend910_93",
    "310p": "Ascend310P",
    "950": "Ascend950",
    "a5": "Ascend950",
}


@check("cann-missing")
def _missing(subject: Subject) -> Iterator[Values]:
    if subject.ascend and subject.ascend.toolkits_state == "not-installed":
        yield {}


@check("cann-ambiguous")
def _ambiguous(subject: Subject) -> Iterator[Values]:
    if subject.ascend and subject.ascend.toolkits_state == "ambiguous":
        yield {"toolkits": _listed(subject.ascend.toolkits)}


@check("cann-several")
def _several(subject: Subject) -> Iterator[Values]:
    ascend = subject.ascend
    if ascend and len({item.version for item in ascend.toolkits}) > 1:
        used = ascend.default
        yield {"toolkits": _listed(ascend.toolkits), "used": used.path if used else "-"}


def _listed(toolkits: tuple[ToolkitSeen, ...]) -> str:
    return ", ".join(f"{item.version or '?'} ({item.path})" for item in toolkits)


@check("cann-unreadable")
def _unreadable(subject: Subject) -> Iterator[Values]:
    if subject.ascend and subject.ascend.toolkits_state not in {"ok", "not-installed", "ambiguous"}:
        yield {"state": subject.ascend.toolkits_state}


@check("cann-version")
def _version(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.cann
    if wanted and not fits(subject.host.toolkit, wanted):
        others = [item for item in (subject.ascend.toolkits if subject.ascend else ()) if item.comparable is not None]
        fitting = [item.path for item in others if fits(item.comparable, wanted)]
        yield {"found": subject.host.toolkit, "wanted": wanted, "fitting": ", ".join(fitting) or "-"}


@check("cann-prerelease")
def _prerelease(subject: Subject) -> Iterator[Values]:
    default = subject.ascend.default if subject.ascend else None
    if default and any(word in (default.version or "").lower() for word in ("alpha", "beta")):
        yield {"found": default.version}


@check("cann-other-architecture")
def _architecture(subject: Subject) -> Iterator[Values]:
    default = subject.ascend.default if subject.ascend else None
    if default and default.arch and subject.host.arch and default.arch != subject.host.arch:
        yield {"found": default.arch, "host": subject.host.arch}


@check("toolkit-env-missing")
def _env_missing(subject: Subject) -> Iterator[Values]:
    steps: list[ToolkitEnvStep] = subject.playbook.of_kind(ToolkitEnvStep)
    optional = {", ".join(script.first_of) for step in steps for script in step.scripts if not script.required}
    for name in subject.host.env_missing:
        if name not in optional:
            yield {"scripts": name}


@check("toolkit-env-fails")
def _env_fails(subject: Subject) -> Iterator[Values]:
    for name in subject.host.env_failed:
        yield {"script": name}


@check("toolkit-env-other-cann")
def _other_cann(subject: Subject) -> Iterator[Values]:
    ascend = subject.ascend
    home = (subject.host.toolkit_env or {}).get("ASCEND_HOME_PATH")
    if ascend and home and ascend.default:
        loaded = next((item for item in ascend.toolkits if home in (item.path, *item.names)), None)
        if loaded and loaded.path != ascend.default.path and loaded.version != ascend.default.version:
            yield {"loaded": f"{loaded.version} ({loaded.path})", "default": f"{ascend.default.version}"}


@check("ops-missing")
def _ops_missing(subject: Subject) -> Iterator[Values]:
    default = subject.ascend.default if subject.ascend else None
    if default and not default.ops:
        yield {"cann": default.version or "-", "soc": subject.host.soc or "-"}


@check("ops-of-other-soc")
def _ops_other(subject: Subject) -> Iterator[Values]:
    default = subject.ascend.default if subject.ascend else None
    soc = subject.host.soc
    if default and default.ops and soc and not any(_serves(family, soc) for family in default.ops):
        yield {"found": ", ".join(default.ops), "soc": soc}


def _serves(family: str, soc: str) -> bool:
    name = family.lower()
    # An unknown word is no proof of anything.
    return name not in _FAMILIES or soc.startswith(_FAMILIES[name])


@check("platform-file-missing")
def _platform_file(subject: Subject) -> Iterator[Values]:
    default = subject.ascend.default if subject.ascend else None
    soc = subject.host.soc
    if subject.builds and default and soc and soc not in default.inis:
        near = next((name for name in default.inis if name.lower() == soc.lower()), "-")
        yield {"soc": soc, "near": near}


@check("nnal-missing")
def _nnal_missing(subject: Subject) -> Iterator[Values]:
    if subject.ascend and subject.ascend.nnal_state == "not-installed":
        yield {}


@check("nnal-other-version")
def _nnal_version(subject: Subject) -> Iterator[Values]:
    version = ascend_version(subject.ascend.nnal) if subject.ascend else None
    cann = subject.host.toolkit
    if version and cann and version.release[:2] != cann.release[:2]:
        yield {"nnal": version, "cann": cann}


@check("nnal-abi-missing")
def _nnal_abi(subject: Subject) -> Iterator[Values]:
    ascend = subject.ascend
    steps: list[ToolkitEnvStep] = subject.playbook.of_kind(ToolkitEnvStep)
    words = [word for step in steps for script in step.scripts for word in script.args]
    wanted = next((word.rpartition("=")[2] for word in words if word.startswith("--cxx_abi=")), None)
    if ascend and wanted and ascend.abis and wanted not in ascend.abis:
        yield {"wanted": wanted, "found": ", ".join(ascend.abis)}


@check("source-too-old-for-cann")
def _source_too_old(subject: Subject) -> Iterator[Values]:
    source, cann = ascend_source(subject), subject.host.toolkit
    tag = tag_version(source.ref) if source else None
    if subject.builds and source and tag and cann:
        first = next((first for since, first in _FIRST_TAG if cann >= Version(since)), None)
        if first and tag < Version(first):
            yield {"ref": source.ref, "cann": cann, "first": f"v{first}"}


@check("hixl-patch-missing")
def _hixl_patch(subject: Subject) -> Iterator[Values]:
    source, cann = ascend_source(subject), subject.host.toolkit
    tag = tag_version(source.ref) if source else None
    # Later trees have the line themselves; what a branch or commit has is seen when it is fetched.
    if subject.builds and source and tag and cann and cann >= Version("9.1.dev0") and tag <= Version("0.4.4"):
        flags = " ".join(step.env.get("CXXFLAGS", "") for step in subject.builds)
        if _HIXL not in [patch.path for patch in source.patches] and "pkg_inc" not in flags:
            yield {"ref": source.ref, "cann": cann}


@check("hcomm-other-version")
def _hcomm(subject: Subject) -> Iterator[Values]:
    source, cann = ascend_source(subject), subject.host.toolkit
    tag = tag_version(source.ref) if source else None
    if source and tag and cann and (subject.truth("enable_p2p") or subject.truth("enable_pd")):
        ref = source.submodule_refs.get("third_party/hcomm", "v8.5.0" if tag == Version("0.4.4") else "")
        version = tag_version(ref)
        if version and version.release[:2] != cann.release[:2]:
            yield {"hcomm": ref, "cann": cann}


@check("atb-plugin-glibc")
def _atb_plugin(subject: Subject) -> Iterator[Values]:
    glibc, cann = parsed(subject.host.glibc), subject.host.toolkit
    if subject.ascend and glibc and cann and cann >= Version("9.1.dev0") and glibc < Version("2.38"):
        yield {"glibc": glibc, "cann": cann}
