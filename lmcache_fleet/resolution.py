"""Whether a playbook's pins can be had: resolved by uv on the control machine, for a host's architecture and Python.

An index that is down, or that lacks a pin for one architecture, is then told before anything is changed on any host.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from lmcache_fleet.digest import canonical_json
from lmcache_fleet.failures import explain
from lmcache_fleet.installer import UV_ENV
from lmcache_fleet.once import Once
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep
from lmcache_fleet.problems import Trouble

_LIMIT = 300
# What uv knows by name; older and newer C libraries take the nearest below.
_GLIBC_MINORS = (17, 28, *range(31, 41))
_UNREACHABLE = (
    "check the URL from the control machine, a proxy, or point the playbook at a mirror; where only hosts reach it, "
    "set `resolve_first: false` in the venv step"
)
_USER_INFO = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Platform:
    """What of a host decides which files of a package it can use.

    Args:
        arch: machine name, as `uname -m` prints it.
        python: minor version of the interpreter, such as `3.12`.
        glibc: version of the C library; None when it isn't known.
    """

    arch: str
    python: str
    glibc: str | None = None

    @property
    def uv_name(self) -> str:
        """The name that uv has for it."""
        found = re.fullmatch(r"2\.(\d+).*", self.glibc or "")
        minors = [minor for minor in _GLIBC_MINORS if found and minor <= int(found[1])]
        return f"{self.arch}-manylinux_2_{minors[-1]}" if minors else f"{self.arch}-unknown-linux-gnu"


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a resolution.

    Args:
        requirement: `name==version`, or `name @ URL`.
        hashes: of all of its files, as `sha256:…`; empty when they weren't asked for.
    """

    requirement: str
    hashes: tuple[str, ...] = ()


class Unresolved(Trouble):
    """A packages step whose pins can't be had.

    Args:
        step: name of the step.
        cause: what is missing or can't be reached.
        remedy: what to do.
    """

    def __init__(self, step: str, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.step = step


def platform_of(playbook: Playbook, arch: str, glibc: str | None = None) -> Platform:
    """The platform of a host of a playbook.

    Args:
        playbook: rendered for the host.
        arch: machine name.
        glibc: version of the host's C library.
    """
    venvs = playbook.of_kind(VenvStep)
    return Platform(arch, venvs[0].python if venvs else "3.12", glibc)


def unresolved(
    playbook: Playbook, platform: Platform, steps: Iterable[PackagesStep] | None = None
) -> tuple[Unresolved, ...]:
    """Every packages step of a playbook whose pins can't be had, in the playbook's order.

    Asked once a process for each distinct step and platform. Steps that also take what only a host has (folders of
    wheels there) are left out.

    Args:
        playbook: rendered for the platform's architecture.
        platform: where it is to be installed.
        steps: those of its packages steps to ask about; None for all.
    """
    found = []
    for step in playbook.of_kind(PackagesStep) if steps is None else steps:
        if needs_host(step):
            continue
        key = canonical_json([step.model_dump(mode="json"), platform.uv_name, platform.python, _is_pip(playbook)])
        try:
            _resolved.get(key, partial(resolve_step, step, platform, is_pip=_is_pip(playbook)))
        except Unresolved as failure:
            found.append(failure)
    return tuple(found)


_resolved: Once[str, tuple[Locked, ...]] = Once()


def _is_pip(playbook: Playbook) -> bool:
    return any(venv.installer == "pip" for venv in playbook.of_kind(VenvStep))


@lru_cache(maxsize=1)
def default_index() -> str:
    """The index that installers ask when a step names none. uv says it itself; pip has the same."""
    from uv import find_uv_bin

    done = subprocess.run([find_uv_bin(), "pip", "install", "--help"], capture_output=True, text=True, check=True)
    found = re.search(r"The default package index \(by default: <(https://[^>]+)>\)", " ".join(done.stdout.split()))
    if found is None:
        raise RuntimeError("uv doesn't say what its default index is")
    return found[1]


def needs_host(step: PackagesStep) -> bool:
    """Whether a step takes what isn't known here: files that only the host has, or lines out of a source tree."""
    places = [*step.find_links, *step.extra_index_urls, *([step.index_url] if step.index_url else [])]
    return (
        step.machine_wheels
        or step.requirements is not None
        or any(not re.match(r"https?://", place) for place in places)
    )


def resolve_step(
    step: PackagesStep,
    platform: Platform,
    *,
    is_pip: bool = False,
    hashes: bool = False,
    prefer: Iterable[str] = (),
) -> tuple[Locked, ...]:
    """All that a packages step's installer call would install into an empty environment.

    Args:
        step: the step.
        platform: where it is to be installed.
        is_pip: whether the host's installer is pip, which takes the best version of all indexes.
        hashes: ask for hashes too.
        prefer: `name==version` lines taken where they fit, as an installer leaves alone what is there.

    Raises:
        Unresolved: an index can't be reached, or has no fitting files.
    """
    with tempfile.TemporaryDirectory(prefix="lmcache-fleet-") as name:
        folder = Path(name)
        out = folder / "out.txt"
        out.write_text("".join(f"{line}\n" for line in prefer), encoding="utf-8")
        argv = [*uv_call(step, platform, folder, is_pip), *(["--generate-hashes"] if hashes else [])]
        environment = {**os.environ, **UV_ENV, "UV_HTTP_RETRIES": str(step.retries), **step.env}
        asked = "".join(f"{line}\n" for line in step.locked or step.wanted)
        try:
            done = subprocess.run(
                [*argv, "--output-file", str(out), "-"],
                input=asked,
                text=True,
                capture_output=True,
                env=environment,
                timeout=min(_LIMIT, step.timeout),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise failure_of(step, platform, [f"no answer within {_LIMIT} s"]) from None
        if done.returncode != 0:
            raise failure_of(step, platform, done.stderr.splitlines())
        return parse_locked(out.read_text(encoding="utf-8"))


def uv_call(step: PackagesStep, platform: Platform, folder: Path, is_pip: bool) -> list[str]:
    """The `uv pip compile` that resolves a packages step.

    Args:
        step: the step.
        platform: where it is to be installed.
        folder: a directory for files that the call needs.
        is_pip: whether the host's installer is pip.
    """
    from uv import find_uv_bin

    argv = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-strip-extras"]
    argv += ["--python-platform", platform.uv_name, "--python-version", platform.python]
    if step.index_url:
        argv += ["--default-index", step.index_url]
    for url in step.extra_index_urls:
        argv += ["--index", url]
    for place in step.find_links:
        argv += ["--find-links", place]
    for host in step.trusted_hosts:
        argv += ["--allow-insecure-host", host]
    strategy = "unsafe-best-match" if is_pip else step.index_strategy
    argv += ["--index-strategy", strategy] if strategy else []
    argv += ["--no-index"] if step.no_index else []
    argv += ["--prerelease", "allow"] if step.pre else []
    argv += ["--no-deps"] if step.no_deps or step.locked else []
    for name in step.no_binary:
        argv += ["--no-binary", name]
    for name in step.only_binary:
        argv += ["--only-binary", name]
    for option, lines in (("override", step.overrides), ("constraint", step.constraints)):
        if lines and not (is_pip and option == "override"):
            path = folder / f"{option}.txt"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            argv += [f"--{option}", str(path)]
    return argv


def failure_of(step: PackagesStep, platform: Platform, lines: Sequence[str]) -> Unresolved:
    """What a failed resolution means.

    Args:
        step: the step.
        platform: where it was to be installed.
        lines: what uv said.
    """
    explained, remedy = explain(lines)
    cause = explained.partition(" [")[0]
    said = [line.strip().removeprefix("cause:").strip() for line in lines if line.strip().startswith("cause:")]
    hints = [line.strip() for line in lines if line.strip().startswith("hint:")]
    detail = _USER_INFO.sub("//", "; ".join([*said, *hints]) or explained).rstrip(".")
    detail = detail if len(detail) <= 500 else detail[:497] + "..."
    indexes = [step.index_url or "the default index", *step.extra_index_urls, *step.find_links]
    asked = _USER_INFO.sub("//", ", ".join(indexes[1:] if step.no_index else indexes))
    return Unresolved(
        step.name,
        f"{cause}, for {platform.arch} and Python {platform.python}: {detail}. Asked: {asked}",
        _UNREACHABLE if "can't be reached" in cause else remedy or "check the pins and the indexes of this step",
    )


def parse_locked(text: str) -> tuple[Locked, ...]:
    """Read a requirements file as `uv pip compile` writes it.

    Args:
        text: lines such as `name==1.0 \\` followed by `--hash=sha256:…` lines.
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#", 1)[0].split(" --hash=") if "@" not in line else line.split(" --hash=")
        requirement = words[0].strip()
        if requirement and not requirement.startswith("-"):
            found.append(Locked(requirement, tuple(sorted(word.strip() for word in words[1:]))))
    return tuple(found)
