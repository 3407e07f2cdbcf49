"""Checks of the playbook's own settings against each other: keys, connector, chunks, tiers. They need no host."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from lmcache_fleet.compatibility import findings, lmcache_keys, pinned_versions
from lmcache_fleet.playbook.model import LmcacheConfigStep
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.problems import nearest

_ENGINE_BLOCKS = 128
# Variables of LMCache's that aren't settings of its configuration file.
_OTHER_VARIABLES = {
    "LMCACHE_CONFIG_FILE",
    "LMCACHE_LOG_LEVEL",
    "LMCACHE_TRACK_USAGE",
    "LMCACHE_USE_EXPERIMENTAL",
}
_CUDA_ONLY = {"LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"}
_REGISTERED = "LMCacheAscendConnector"


@check("known-bad-combination")
def _combination(subject: Subject) -> Iterator[Values]:
    for item in findings(subject.playbook):
        yield {"rule": item.rule, "message": item.message, "remedy": item.remedy}


@check("lmcache-variable-unknown")
def _variable(subject: Subject) -> Iterator[Values]:
    steps: list[LmcacheConfigStep] = subject.playbook.of_kind(LmcacheConfigStep)
    version = steps[0].lmcache if steps else str(pinned_versions(subject.playbook).get("lmcache", ""))
    keys = lmcache_keys().get(version)
    if keys is None:
        return
    extra = {key for step in steps for key in step.extra_keys}
    known = {f"LMCACHE_{key.upper()}" for key in {*keys, *extra}} | _OTHER_VARIABLES
    for name in subject.service.env if subject.service else ():
        if name.startswith("LMCACHE_") and not name.startswith("LMCACHE_FLEET_") and name not in known:
            yield {"name": name, "version": version, "near": nearest(name, known).partition("known:")[0].strip(" (")}


@check("lmcache-variable-misspelt")
def _misspelt(subject: Subject) -> Iterator[Values]:
    for name in subject.service.env if subject.service else ():
        if name.startswith(("LM_CACHE_", "LMCACHE__", "LMCAHCE_", "LMCACH_")):
            yield {"name": name, "right": "LMCACHE_" + name.partition("CACHE_")[2] if "CACHE_" in name else "LMCACHE_…"}


def _chunk(subject: Subject) -> int | None:
    server = subject.service.server if subject.service else None
    if server:
        return server.chunk_size
    size = subject.number("chunk_size")
    return int(size) if size is not None else (256 if subject.settings else None)


@check("chunk-never-filled")
def _never_filled(subject: Subject) -> Iterator[Values]:
    chunk, longest = _chunk(subject), subject.whole(0, "--max-model-len")
    if chunk and longest and chunk >= longest:
        yield {"chunk": chunk, "longest": longest}


@check("chunk-not-of-blocks")
def _blocks(subject: Subject) -> Iterator[Values]:
    chunk = _chunk(subject)
    block = subject.whole(_ENGINE_BLOCKS, "--block-size")
    if chunk and block and subject.vendor in {"ascend", "cpu"} and chunk % block:
        yield {"chunk": chunk, "block": block}


@check("no-lasting-tier")
def _no_lasting_tier(subject: Subject) -> Iterator[Values]:
    server = subject.service.server if subject.service else None
    lasting = any(subject.settings.get(name) for name in ("remote_url", "local_disk", "gds_path", "nixl_backends"))
    if subject.service and not lasting and not server and subject.settings:
        yield {}


@check("no-tier-at-all")
def _no_tier(subject: Subject) -> Iterator[Values]:
    lasting = any(subject.settings.get(name) for name in ("remote_url", "local_disk", "gds_path", "nixl_backends"))
    size = subject.number("max_local_cpu_size")
    has_memory = str(subject.settings.get("local_cpu", True)).lower() not in {"false", "0", "no"} and size != 0
    if subject.service and subject.settings and not subject.service.server and not lasting and not has_memory:
        yield {}


@check("connector-not-for-accelerator")
def _connector(subject: Subject) -> Iterator[Values]:
    name = subject.connector.name if subject.connector else ""
    if subject.vendor == "ascend" and name in _CUDA_ONLY:
        yield {"name": name}
    if subject.vendor != "ascend" and name.startswith("LMCacheAscend"):
        yield {"name": name}


@check("connector-needs-server")
def _needs_server(subject: Subject) -> Iterator[Values]:
    service, connector = subject.service, subject.connector
    if service and connector and connector.name == "LMCacheMPConnector" and not service.uses_server:
        yield {}


@check("connector-not-registered")
def _registered(subject: Subject) -> Iterator[Values]:
    connector, version = subject.connector, pinned_versions(subject.playbook).get("vllm-ascend")
    if connector and version and connector.name == _REGISTERED and not connector.module_path:
        if not Version("0.17.0rc1") <= version <= Version("0.25.1rc1"):
            yield {"version": version}


@check("connector-preemption")
def _preemption(subject: Subject) -> Iterator[Values]:
    connector, version = subject.connector, pinned_versions(subject.playbook).get("vllm-ascend")
    if connector and version and version >= Version("0.25.dev0") and connector.name == _REGISTERED:
        if connector.module_path:
            yield {"version": version}


@check("drain-without-store-async")
def _drain(subject: Subject) -> Iterator[Values]:
    version = pinned_versions(subject.playbook).get("lmcache")
    if subject.vendor == "ascend" and version and version < Version("0.4.4"):
        if subject.settings and not subject.truth("store_async"):
            yield {"version": version}
