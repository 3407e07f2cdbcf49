"""The installer call of a `packages` step: uv or pip, the same meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lmcache_fleet.changes import Change
from lmcache_fleet.layout import Layout, ReleaseLayout
from lmcache_fleet.playbook.model import PackagesStep, VenvStep, parsed_requirement
from lmcache_fleet.release import ReleaseState

# What is put on hosts where the playbook names no version.
DEFAULT_UV = "0.13.9"
# uv finds no settings of its own on the host: the playbook is all that decides. Certificates are the host's: uv carries
# some, and doesn't know a company's own authority, which pip and apt know.
UV_ENV = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_SYSTEM_CERTS": "1"}
_PIP_ENV = {"PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


@dataclass(frozen=True, slots=True)
class Offline:
    """Files at hand, and no index.

    Args:
        folder: directory on the host with all that the call may take.
        urls: URL that a pin names → the file in its place.
    """

    folder: str
    urls: dict[str, str]

    def localized(self, requirement: str) -> str:
        """A requirement with the file in place of the URL that it may name."""
        url = parsed_requirement(requirement).url
        return requirement.replace(url, f"file://{quote(self.urls[url])}", 1) if url in self.urls else requirement


@dataclass(frozen=True, slots=True)
class InstallerCall:
    """An installer call.

    Args:
        argv: program and arguments.
        env: variables it is given.
        files: relative path below the release → text, written before the call.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]


def install_call(
    step: PackagesStep,
    venv: VenvStep,
    layout: Layout,
    release: ReleaseLayout,
    uv: str,
    machine_wheels: Sequence[str] = (),
    requirements: Sequence[str] = (),
    offline: Offline | None = None,
) -> InstallerCall:
    """The call that brings the installed state to a step's pins.

    Args:
        step: the step.
        venv: the playbook's venv step, which names the installer.
        layout: paths on the host.
        release: paths of the release.
        uv: path of uv on the host.
        machine_wheels: wheel folders of the host's own pip configuration.
        requirements: what to install in place of the pins, such as the path of a wheel at hand.
        offline: where files are taken from, in place of every index.
    """
    wanted = list(requirements) or step.wanted
    files: dict[str, str] = {}
    is_uv = venv.installer == "uv"
    if is_uv:
        argv = [uv, "pip", "install", "--python", release.python]
        env = {**UV_ENV, "UV_CACHE_DIR": layout.uv_cache, "UV_HTTP_RETRIES": str(step.retries)}
    else:
        argv = [release.python, "-m", "pip", "install", "--retries", str(step.retries)]
        env = dict(_PIP_ENV)
    if offline is not None:
        step = _without_places(step, offline)
        wanted = [offline.localized(item) for item in wanted] if not requirements else wanted
        env |= {"UV_OFFLINE": "1"} if is_uv else {}
    if step.index_url:
        argv += ["--default-index" if is_uv else "--index-url", step.index_url]
    for url in step.extra_index_urls:
        argv += ["--index" if is_uv else "--extra-index-url", url]
    for place in [*step.find_links, *(machine_wheels if step.machine_wheels else ())]:
        argv += ["--find-links", place]
    for host in step.trusted_hosts:
        argv += ["--allow-insecure-host" if is_uv else "--trusted-host", host]
    if step.no_index:
        argv.append("--no-index")
    if step.index_strategy and is_uv:
        argv += ["--index-strategy", step.index_strategy]
    if step.pre:
        argv += ["--prerelease", "allow"] if is_uv else ["--pre"]
    # A lock holds the requirements too, with hashes: nobody is to look for more.
    locked = step.locked if not requirements else {}
    if step.no_deps or locked:
        argv.append("--no-deps")
    for name in step.no_binary:
        argv += ["--no-binary", name]
    for name in step.only_binary:
        argv += ["--only-binary", name]
    if step.force_reinstall:
        argv.append("--reinstall" if is_uv else "--force-reinstall")
    if not step.build_isolation:
        argv.append("--no-build-isolation")
    for option, lines in (("override", step.overrides), ("constraint", step.constraints)) if not locked else ():
        # pip knows no overrides; there they are left out, and its resolver says what then can't be had.
        if lines and (is_uv or option == "constraint"):
            path = f"requirements/{step.name}.{option}.txt"
            files[path] = "".join(f"{line}\n" for line in lines)
            argv += [f"--{option}", release.file(path)]
    if step.compile_bytecode and is_uv:
        argv.append("--compile-bytecode")
    hashed = locked or ({pin: step.hashes.get(pin, []) for pin in wanted} if step.require_hashes else {})
    if hashed and not requirements:
        path = f"requirements/{step.name}.txt"
        files[path] = "".join(
            " \\\n    ".join([pin, *(f"--hash={value}" for value in values)]) + "\n" for pin, values in hashed.items()
        )
        argv += ["--require-hashes", "-r", release.file(path)]
    else:
        argv += ["--", *wanted] if is_uv else wanted
    return InstallerCall(tuple(argv), {**env, **step.env}, files)


def _without_places(step: PackagesStep, offline: Offline) -> PackagesStep:
    local = [place for place in step.find_links if not place.startswith(("http://", "https://"))]
    return step.model_copy(
        update={
            "index_url": None,
            "extra_index_urls": [],
            "trusted_hosts": [],
            "index_strategy": None,
            "find_links": [offline.folder, *local],
            "no_index": True,
            "locked": {offline.localized(pin): hashes for pin, hashes in step.locked.items()},
            "hashes": {offline.localized(pin): hashes for pin, hashes in step.hashes.items()},
        }
    )


def marker_environment(arch: str, python: str) -> dict[str, str]:
    """What requirements' markers are judged by on a host.

    Args:
        arch: machine name, as `uname -m` prints it.
        python: version of the interpreter, with or without its last part.
    """
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python if python.count(".") > 1 else f"{python}.0",
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
    }


def package_changes(
    step: PackagesStep,
    state: ReleaseState,
    before: ReleaseState | None = None,
    environment: dict[str, str] | None = None,
) -> list[Change]:
    """What the installed state lacks of a step.

    Args:
        step: the step.
        state: the release that is judged.
        before: a release whose versions are shown as the old ones, when the judged one is new.
        environment: as `marker_environment` gave it; what a marker leaves out there is not lacking.
    """
    changes = []
    environment = environment or marker_environment("x86_64", state.python or "3.12")
    for pin in step.wanted:
        requirement = parsed_requirement(pin)
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        versions = state.distributions.get(name, [])
        if len(versions) == 1 and _satisfies(requirement, versions[0]):
            continue
        shown = versions or (before.distributions.get(name, []) if before else [])
        wanted = pin.removeprefix(requirement.name).removeprefix("==") or "any version"
        why = "installed twice" if len(versions) > 1 else ""
        if before and not versions and len(shown) == 1 and _satisfies(requirement, shown[0]):
            changes.append(Change(name, shown[0], shown[0], kept=True))
            continue
        changes.append(Change(name, " and ".join(shown) or None, wanted, why=why))
    if not changes:
        changes += _ownership_changes(step, state) + _variant_changes(step, state)
    return changes


def _ownership_changes(step: PackagesStep, state: ReleaseState) -> list[Change]:
    changes = []
    for package in step.owns:
        seen = state.owns.get(package, {})
        if seen.get("wrong_count"):
            others = ", ".join(name for name in seen["claimed_by"] if name != step.owner) or "another package"
            detail = f"{seen['wrong_count']} files not from {step.owner} ({seen['wrong'][0]}), overwritten by {others}"
            changes.append(Change(f"files of {package}/", detail, f"those of {step.owner}"))
        elif step.owner not in seen.get("claimed_by", []):
            changes.append(Change(f"files of {package}/", "not installed", f"those of {step.owner}"))
    if step.wheel_tag and step.wheel_tag not in state.wheel_tags.get(step.owner, []):
        tags = " ".join(state.wheel_tags.get(step.owner, [])) or "unknown"
        changes.append(Change(f"wheel of {step.owner}", tags, step.wheel_tag, why="another build of the same version"))
    return changes


def _variant_changes(step: PackagesStep, state: ReleaseState) -> list[Change]:
    """A version may fit a pin and still be another build: `2.11.0+cu129` and `2.11.0` both satisfy `==2.11.0`."""
    changes = []
    for name, pattern in step.installed.items():
        versions = state.distributions.get(canonicalize_name(name), [])
        if len(versions) != 1 or not fnmatchcase(versions[0], pattern):
            shown = " and ".join(versions) or None
            changes.append(Change(name, shown, pattern, why="another build of the same version"))
    return changes


def _satisfies(requirement: Requirement, version: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return requirement.specifier.contains(parsed, prereleases=True) if requirement.url is None else True
