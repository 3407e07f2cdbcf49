"""Checks of where packages, sources and weights come from, and of the order in which packages are installed."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from lmcache_fleet.compatibility import pinned_versions
from lmcache_fleet.playbook.model import ModelStep, PackagesStep, Playbook, parsed_requirement
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.resolution import default_index

DEFAULT_HUB = "https://huggingface.co"


def index_urls(playbook: Playbook) -> tuple[str, ...]:
    """Every package index over http that a playbook's packages steps ask, each once."""
    urls: dict[str, None] = {}
    for step in playbook.of_kind(PackagesStep):
        if not step.no_index:
            urls.update(dict.fromkeys([step.index_url or default_index(), *step.extra_index_urls]))
        urls.update(dict.fromkeys(step.find_links))
    return tuple(url for url in urls if _is_web(url))


def hub_urls(playbook: Playbook) -> tuple[str, ...]:
    """The hubs that a playbook's models come from, each once."""
    steps: list[ModelStep] = playbook.of_kind(ModelStep)
    return tuple(dict.fromkeys(step.endpoint or DEFAULT_HUB for step in steps if step.hub))


def _is_web(url: str) -> bool:
    return urlsplit(url).scheme in {"http", "https"}


def shown(url: str) -> str:
    """A URL without the name and password that it may carry."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@check("index-unreachable")
def _index(subject: Subject) -> Iterator[Values]:
    for url in () if subject.host.installed else index_urls(subject.playbook):
        cause = subject.host.urls.get(url)
        if cause:
            yield {"url": shown(url), "cause": cause}


@check("index-unreachable-from-control")
def _control_index(subject: Subject) -> Iterator[Values]:
    for url, cause in () if subject.host.installed else subject.control.unreachable:
        yield {"url": shown(url), "cause": cause}


@check("pin-unavailable")
def _pins(subject: Subject) -> Iterator[Values]:
    for step, cause, remedy in () if subject.host.installed else subject.control.unresolved:
        yield {"step": step, "cause": cause, "remedy": remedy}


@check("source-unavailable")
def _sources(subject: Subject) -> Iterator[Values]:
    for step, cause, remedy in subject.control.sources:
        yield {"step": step, "cause": cause, "remedy": remedy}


@check("hub-unreachable")
def _hub(subject: Subject) -> Iterator[Values]:
    steps: list[ModelStep] = subject.playbook.of_kind(ModelStep)
    for step in steps:
        cause = subject.host.urls.get(step.endpoint or DEFAULT_HUB) if step.hub else None
        if cause and step.name not in subject.host.models:
            yield {"url": shown(step.endpoint or DEFAULT_HUB), "cause": cause, "model": step.hub}


@check("model-directory-missing")
def _directory(subject: Subject) -> Iterator[Values]:
    steps: list[ModelStep] = subject.playbook.of_kind(ModelStep)
    for step in steps:
        if step.directory and subject.host.directories.get(step.directory) is False:
            yield {"path": step.directory}


def _steps(subject: Subject, name: str) -> list[tuple[int, PackagesStep]]:
    """The packages steps that pin a distribution, with their place."""
    steps: list[PackagesStep] = subject.playbook.of_kind(PackagesStep)
    return [
        (number, step)
        for number, step in enumerate(steps)
        if name in {canonicalize_name(parsed_requirement(pin).name) for pin in step.pins}
    ]


@check("lmcache-cuda-wheel")
def _cuda_wheel(subject: Subject) -> Iterator[Values]:
    version = pinned_versions(subject.playbook).get("lmcache")
    if subject.vendor != "ascend" or subject.host.arch != "x86_64" or version is None or version >= Version("0.5"):
        return
    for _, step in _steps(subject, "lmcache"):
        if not {"lmcache", ":all:"} & {canonicalize_name(name) for name in step.no_binary} and not step.wheel_tag:
            yield {"step": step.name, "version": version}


@check("lmcache-built-for-cuda")
def _cuda_build(subject: Subject) -> Iterator[Values]:
    version = pinned_versions(subject.playbook).get("lmcache")
    if subject.vendor != "ascend" or version is None:
        return
    names = ("NO_CUDA_EXT",) if version < Version("0.5") else ("NO_NATIVE_EXT", "NO_GPU_EXT", "BUILD_WITH_ASCEND")
    for _, step in _steps(subject, "lmcache"):
        built = "lmcache" in step.no_binary or (version < Version("0.5") and subject.host.arch == "aarch64")
        if built and not any(step.env.get(name) == "1" for name in names):
            yield {"step": step.name, "variable": f"{names[0]}=1"}


@check("engines-in-one-call")
def _one_call(subject: Subject) -> Iterator[Values]:
    plain = {id(step) for _, step in _steps(subject, "vllm")}
    for _, step in _steps(subject, "vllm-ascend"):
        if id(step) in plain and not step.no_deps:
            yield {"step": step.name}


@check("triton-not-last")
def _triton(subject: Subject) -> Iterator[Values]:
    engines, tritons = _steps(subject, "vllm-ascend"), _steps(subject, "triton-ascend")
    last = [number for number, step in tritons if step.force_reinstall and "triton" in step.owns]
    if engines and (not last or max(last) < max(number for number, _ in engines)):
        yield {}
