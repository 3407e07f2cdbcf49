"""A run from a bundle: what it lacks is sent over SSH, once a host, and nothing is fetched from anywhere."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from facts.bundle import BundleFiles
from facts.system_packages import AptPackages, DnfPackages
from lmcache_fleet.bundle.artifacts import import_artifacts
from lmcache_fleet.bundle.debs import name_and_version
from lmcache_fleet.bundle.manifest import Bundle, BundledFile, damage, read_bundle
from lmcache_fleet.changes import Change
from lmcache_fleet.installer import DEFAULT_UV, Offline
from lmcache_fleet.inventory import HostSettings
from lmcache_fleet.judge import model_name
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import ContainerImageStep, ModelStep, PackagesStep, SystemPackagesStep, VenvStep
from lmcache_fleet.problems import InputError, Problem
from lmcache_fleet.shell import script, words
from lmcache_fleet.sizes import readable
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session

# Sent and checked together: what a lost connection costs.
_BATCH = 256 << 20
_REMEDY = "make it anew with `lmcache-fleet bundle`, of this playbook and these variables"


def use_bundle(plan: HostPlan, settings: HostSettings) -> None:
    """Have a plan take everything from the bundle of its host's data, when that names one.

    Sources and built extensions are put into the artifact store, the first time.

    Args:
        plan: the host's plan, before anything was read.
        settings: the host's settings.

    Raises:
        InputError: there is no bundle, or sources or extensions in it were altered.
    """
    if settings.bundle is None:
        return
    bundle = read_bundle(Path(settings.bundle).expanduser().absolute())
    problems = _imported(bundle.root)
    if problems:
        raise InputError(problems)
    plan.bundle = bundle
    # With all else that is read of the host, so that it costs no round trip.
    plan.session.expect([(BundleFiles, {"folder": _folder(plan.session.layout)})])


@lru_cache(maxsize=16)
def _imported(root: Path) -> tuple[Problem, ...]:
    bundle = read_bundle(root)
    problems = damage(bundle, "artifacts/")
    if not problems:
        import_artifacts(bundle)
    return tuple(problems)


@lru_cache(maxsize=16)
def _damage(root: Path) -> tuple[Problem, ...]:
    return tuple(damage(read_bundle(root), "files/"))


def require_bundle(plan: HostPlan) -> None:
    """Refuse to begin what the bundle would stop half-way. A host that needs nothing of it has nothing read.

    Args:
        plan: the host's plan.

    Raises:
        HostFault: the bundle is for other hosts, or another playbook.
        InputError: one of its files is missing or altered.
    """
    bundle = plan.bundle
    if bundle is None:
        return
    wanted = _needed(plan, bundle)
    if not wanted:
        return
    problems = _damage(bundle.root)
    if problems:
        raise InputError(problems)


def _needed(plan: HostPlan, bundle: Bundle) -> list[str]:
    """Files that the host's steps take, in the order of the steps."""
    found: dict[str, None] = {}
    building = not plan.target.complete
    lacking = []
    for step in plan.playbook.steps:
        if not step.when:
            continue
        if isinstance(step, ContainerImageStep) and plan.changes(step):
            lacking.append(f"the image {step.name}")
        elif isinstance(step, SystemPackagesStep):
            found |= dict.fromkeys(_debs(plan, bundle, step))
        elif isinstance(step, VenvStep) and building and (pin := needed_tool(plan, step)):
            found |= dict.fromkeys([bundle.manifest.tools[pin]] if pin in bundle.manifest.tools else [])
            lacking += [] if pin in bundle.manifest.tools else [pin]
        elif isinstance(step, PackagesStep) and building:
            packages = bundle.packages(step)
            found |= dict.fromkeys([*packages.files, *packages.urls.values()] if packages else [])
            lacking += [] if packages else [f"the packages step {step.name}"]
        elif isinstance(step, ModelStep) and step.hub is not None and plan.changes(step):
            model = bundle.manifest.models.get(model_name(step))
            found |= dict.fromkeys(model.values() if model else [])
            lacking += [] if model else [f"the model {step.hub}"]
    if not found and not lacking:
        return []
    manifest, venv = bundle.manifest, plan.venv
    if plan.system.arch != manifest.arch or (building and venv and venv.python != manifest.python):
        python = f" and Python {venv.python}" if venv else ""
        raise HostFault(
            f"the bundle is for {manifest.arch} and Python {manifest.python}, this host has {plan.system.arch}{python}",
            "make one for such hosts and name it in their group's data (`bundle`)",
        )
    if lacking:
        raise HostFault(f"the bundle has nothing for {', '.join(lacking)}", _REMEDY)
    return list(found)


def _debs(plan: HostPlan, bundle: Bundle, step: SystemPackagesStep) -> list[str]:
    """Packages that the host lacks or has in another version, among those that a step's missing ones may need."""
    manager = plan.system.package_manager
    names = step.dnf if manager == "dnf" else step.apt
    cls = DnfPackages if manager == "dnf" else AptPackages
    missing = [name for name in names if name not in plan.session.read(cls, names=names).versions] if names else []
    if not missing or manager is None:
        return []
    system = bundle.manifest.system
    here = f"{plan.system.os_id} {plan.system.os_version}"
    remedy = f"install {', '.join(missing)} there from the site's own mirror or media"
    if manager == "dnf" or system is None or system.distribution != here:
        has = f"has packages of {system.distribution}" if system else "has no packages of a distribution"
        raise HostFault(
            f"the bundle {has}, and this host is {here}", f"make the bundle on a machine with {here}, or {remedy}"
        )
    lacking = [name for name in missing if name not in system.names]
    if lacking:
        raise HostFault(f"the bundle has nothing for {', '.join(lacking)}", _REMEDY)
    versions = dict(name_and_version(Path(path).name) for path in system.debs)
    there = plan.session.read(AptPackages, names=sorted(versions)).versions
    return [path for path in system.debs if _is_lacking(path, there)] + [system.index]


def _is_lacking(path: str, there: dict[str, str]) -> bool:
    name, version = name_and_version(Path(path).name)
    return there.get(name) != version


def apt_source(plan: HostPlan, step: SystemPackagesStep) -> tuple[str | None, str]:
    """How apt finds a step's packages without a mirror.

    Args:
        plan: the host's plan.
        step: the step.

    Returns:
        The script that makes a source of the bundle's packages, and apt's options to see that source alone; None and
        nothing without a bundle.
    """
    if plan.bundle is None or plan.bundle.manifest.system is None:
        return None, ""
    folder = f"{plan.session.layout.bundle}/links/apt"
    listed, lists = f"{folder}.list", f"{folder}.lists"
    settings = {
        "Dir::Etc::sourcelist": listed,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": lists,
        # Its own user may not read below the prefix.
        "APT::Sandbox::User": "root",
    }
    options = words(*(word for name, value in settings.items() for word in ("-o", f"{name}={value}")))
    source = f"deb [trusted=yes] file:{quote(folder)} ./\n"
    return script(
        laid_out(plan, _debs(plan, plan.bundle, step), folder),
        f"rm -rf {words(lists)} && mkdir -p {words(f'{lists}/partial')} && printf {words(source)} > {words(listed)}",
        f"apt-get -q {options} update",
    ), options


def needed_tool(plan: HostPlan, step: VenvStep) -> str | None:
    """The pin of uv that the host lacks; None when it lacks none."""
    version = step.uv or DEFAULT_UV
    is_there = version.startswith("/") or f"uv-{version}" in plan.releases.tools
    return None if step.installer != "uv" or is_there else f"uv=={version}"


@step_operation
def bundle(session: Session, plan: HostPlan) -> Commands:
    """The files of the bundle that the host's steps take are on the host, each as its hash says."""
    found = plan.bundle
    assert found is not None
    wanted = _needed(plan, found)
    there = session.read(BundleFiles, folder=_folder(session.layout)) if wanted else frozenset()
    missing = [path for path in wanted if found.manifest.files[path].sha256 not in there]
    size = readable(found.size(missing))
    if not session.show([Change("bundle", None, f"{len(missing)} files, {size}")] if missing else []):
        session.host.noop("all that the steps take from the bundle is there")
        return
    for number, batch in enumerate(batches(missing, found.manifest.files), start=1):
        part = readable(found.size(batch))
        yield session.feed(
            _receive(session.layout),
            _Sender(found, batch),
            doing=f"sending {len(missing)} files, {size}" if number == 1 else f"sending {part} more",
        )
    session.forget(BundleFiles)


class _Sender:
    """Writes files as a tar stream, their checksums first."""

    def __init__(self, bundle: Bundle, paths: list[str]) -> None:
        self.bundle = bundle
        self.paths = paths

    def __call__(self, out: BinaryIO) -> None:
        files = self.bundle.manifest.files
        sums = "".join(f"{files[path].sha256}  {path.removeprefix('files/')}\n" for path in self.paths).encode()
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as stream:
            head = tarfile.TarInfo("SHA256SUMS")
            head.size = len(sums)
            stream.addfile(head, io.BytesIO(sums))
            for path in self.paths:
                with (self.bundle.root / path).open("rb") as source:
                    entry = tarfile.TarInfo(path.removeprefix("files/"))
                    entry.size, entry.mode = files[path].size, 0o644
                    stream.addfile(entry, source)


def batches(paths: Iterable[str], files: dict[str, BundledFile], limit: int = _BATCH) -> Iterator[list[str]]:
    """Files in their order, so many at a time that their sizes don't pass the limit; a larger one goes alone.

    Args:
        paths: the files.
        files: hash and size of each.
        limit: bytes.
    """
    batch: list[str] = []
    size = 0
    for path in paths:
        if batch and size + files[path].size > limit:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += files[path].size
    if batch:
        yield batch


def _receive(layout: Layout) -> str:
    folder = _folder(layout)
    incoming = f"{folder}.incoming"
    return script(
        f"umask 022; rm -rf {words(incoming)} && mkdir -p {words(incoming, folder)} && cd {words(incoming)}",
        "exec 2>&1; echo ready; tar -xf - --no-same-owner",
        "sha256sum -c --quiet --strict SHA256SUMS && rm SHA256SUMS",
        # On the disk before it has its final name: what has that name is taken for whole.
        f'sync -f . && for each in *; do rm -rf {words(folder)}/"$each" && mv "$each" {words(folder)}/ || exit 1; done',
        f"cd / && rmdir {words(incoming)}",
    )


def _folder(layout: Layout) -> str:
    return f"{layout.bundle}/files"


def on_host(layout: Layout, path: str) -> str:
    """Where a file of a bundle is on the host."""
    return f"{layout.bundle}/{path}"


def offline_of(plan: HostPlan, step: PackagesStep) -> tuple[str | None, Offline | None]:
    """How a step's installer call finds its files without an index.

    Args:
        plan: the host's plan.
        step: the step.

    Returns:
        The script that lays them out, and what the call is told; None and None without a bundle.
    """
    if plan.bundle is None:
        return None, None
    packages = plan.bundle.packages(step)
    if packages is None:
        raise HostFault(f"the bundle has nothing for the packages step {step.name}", _REMEDY)
    layout = plan.session.layout
    folder = f"{layout.bundle}/links/{packages.of}"
    urls = {url: on_host(layout, path) for url, path in packages.urls.items()}
    return laid_out(plan, [*packages.files], folder), Offline(folder, urls)


def checked(sums: str) -> str:
    """A script that ends with an error when files are not as their hashes say, and takes those away to be sent again.

    Args:
        sums: lines as sha256sum reads them.
    """
    return (
        f"bad=$(printf %s {words(sums)} | sha256sum -c --quiet - 2>/dev/null | sed -n 's/: FAILED.*//p'); "
        'if [ -n "$bad" ]; then printf \'%s\\n\' "$bad" | while IFS= read -r each; do rm -rf "${each%/*}"; done; '
        'echo "error: damaged since it came, run again to have it sent anew: $bad"; exit 1; fi'
    )


def laid_out(plan: HostPlan, paths: list[str], folder: str, names: Iterable[str] | None = None) -> str:
    """A script that puts files of the bundle, checked once more, into a directory of their own.

    Args:
        plan: the host's plan.
        paths: the files.
        folder: the directory; it is made anew.
        names: what each is called there, which may be in a directory below; their own names if not given.
    """
    assert plan.bundle is not None
    layout, files = plan.session.layout, plan.bundle.manifest.files
    named = list(names) if names is not None else [Path(path).name for path in paths]
    sums = "".join(f"{files[path].sha256}  {on_host(layout, path)}\n" for path in paths)
    targets = [f"{folder}/{name}" for name in named]
    below = sorted({str(Path(target).parent) for target in targets} | {folder})
    return script(
        f"umask 022; rm -rf {words(folder)} && mkdir -p {words(*below)}",
        checked(sums) if sums else None,
        *(f"ln {words(on_host(layout, path), target)}" for path, target in zip(paths, targets, strict=True)),
    )
