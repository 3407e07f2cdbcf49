"""Make a bundle: resolve, fetch and hash all that a playbook's steps would fetch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lmcache_fleet.bundle.debs import NoPackages, distribution, fetch_debs
from lmcache_fleet.bundle.fetch import FetchFailed, fetch
from lmcache_fleet.bundle.manifest import (
    NAME,
    BundledFile,
    BundledPackages,
    BundledSystem,
    Manifest,
    packages_key,
)
from lmcache_fleet.bundle.wheels import Remote, chosen, parsed_toml
from lmcache_fleet.installer import DEFAULT_UV, UV_ENV
from lmcache_fleet.judge import model_name
from lmcache_fleet.lock import oldest_glibc
from lmcache_fleet.playbook.model import (
    ContainerImageStep,
    ModelStep,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    SourceStep,
    SystemPackagesStep,
    VenvStep,
)
from lmcache_fleet.problems import Trouble
from lmcache_fleet.requirement_files import RequirementsFileError, expanded
from lmcache_fleet.resolution import Platform, Unresolved, failure_of, platform_of, resolve_step, uv_call
from lmcache_fleet.shell import PROGRAMS
from lmcache_fleet.sources import SourceError, make_tree
from lmcache_fleet.store import file_sha256, store_root

_HUB_CLIENT = "huggingface_hub>=0.34,<2"
Say = Callable[[str], None]


class NoBundle(Trouble):
    """A bundle can't be made."""


def make_bundle(playbooks: Sequence[Playbook], arch: str, root: Path, say: Say) -> Manifest:
    """Fill a directory with all that playbooks fetch. What is there already and has the right hash is kept.

    Args:
        playbooks: one playbook, rendered for each distinct set of variables of the hosts.
        arch: the hosts' machine name.
        root: the bundle's directory; its manifest is written last.
        say: told what is done.

    Raises:
        NoBundle: something can't be had.
        Unresolved: a step's pins can't be had.
    """
    if root.exists() and any(root.iterdir()) and not (root / NAME).exists() and not (root / "files").exists():
        raise NoBundle(f"{root} is not empty, and no bundle", "name another directory")
    (root / "files").mkdir(parents=True, exist_ok=True)
    collector = _Collector(root, platform_of(playbooks[0], arch, oldest_glibc(playbooks[0])), say)
    for playbook in playbooks:
        collector.add(playbook)
    collector.add_system([step for playbook in playbooks for step in playbook.of_kind(SystemPackagesStep)])
    manifest = collector.manifest(playbooks[0])
    part = root / f"{NAME}.part"
    part.write_text(json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True), encoding="utf-8")
    part.replace(root / NAME)
    _prune(root, manifest)
    return manifest


class _Collector:
    def __init__(self, root: Path, platform: Platform, say: Say) -> None:
        self.root = root
        self.platform = platform
        self.say = say
        self.files: dict[str, BundledFile] = {}
        self.tools: dict[str, str] = {}
        self.packages: dict[str, BundledPackages] = {}
        self.models: dict[str, dict[str, str]] = {}
        self.system: BundledSystem | None = None

    def manifest(self, playbook: Playbook) -> Manifest:
        return Manifest(
            playbook=playbook.name,
            arch=self.platform.arch,
            python=self.platform.python,
            glibc=self.platform.glibc,
            made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            files=self.files,
            tools=self.tools,
            packages=list(self.packages.values()),
            models=self.models,
            system=self.system,
        )

    def add(self, playbook: Playbook) -> None:
        for image in playbook.of_kind(ContainerImageStep):
            raise NoBundle(
                f"container_image {image.name}: images are not carried",
                "mirror them to a registry of the site and name that in the playbook's variables",
            )
        archives = self._sources(playbook)
        try:
            playbook = expanded(playbook, archives, self.platform.arch)
        except RequirementsFileError as error:
            raise NoBundle(str(error), "correct `requirements` in the packages step, or pin another ref") from error
        venvs = playbook.of_kind(VenvStep)
        is_pip = any(venv.installer == "pip" for venv in venvs)
        for venv in venvs:
            if venv.installer == "uv" and not (venv.uv or "").startswith("/"):
                self._tool(venv)
        there: dict[str, str] = {}
        for step in playbook.of_kind(PackagesStep):
            self._packages(step, is_pip, there)
        for model in playbook.of_kind(ModelStep):
            if model.hub is not None and model_name(model) not in self.models:
                self._model(model, venvs)
        self._native(playbook)

    def add_system(self, steps: Sequence[SystemPackagesStep]) -> None:
        names = sorted({name for step in steps for name in step.apt})
        if not names:
            return
        here = distribution()
        if here is None:
            self.say(
                f"system_packages: not carried, this machine has no apt; hosts need {', '.join(names)} beforehand, or "
                "a bundle made on a machine of their distribution"
            )
            return
        self.say(f"system_packages: fetching {', '.join(names)} with all that they need, of {here}")
        with tempfile.TemporaryDirectory(prefix=".system.", dir=self.root.absolute()) as name:
            try:
                files, listing = fetch_debs(names, self.platform.arch, Path(name).absolute())
            except NoPackages as error:
                remedy = f"check this machine's apt sources; they must have {self.platform.arch}"
                raise NoBundle(f"system_packages: {error}", remedy) from error
            index = Path(name) / "Packages"
            index.write_text(listing, encoding="utf-8")
            debs = sorted(self._keep(path, move=True) for path in files)
            self.system = BundledSystem(distribution=here, names=names, debs=debs, index=self._keep(index, move=True))
        self.say(f"system_packages: {len(debs)} packages of {here}")

    def _sources(self, playbook: Playbook) -> dict[str, Path]:
        archives = {}
        for step in playbook.of_kind(SourceStep):
            try:
                tree = make_tree(step)
            except SourceError as error:
                raise NoBundle(f"source {step.name}: {error.cause}", error.remedy) from error
            folder = tree.archive.parent
            tags: dict[str, str] = {}
            known = folder.parent / "tags.json"
            if not step.commit and step.ref != tree.commit:
                seen = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
                tags = {name: commit for name, commit in seen.items() if name == f"{step.repo} {step.ref}"}
                if not tags:
                    raise NoBundle(
                        f"source {step.name}: '{step.ref}' is a branch, which only its repository can tell",
                        "name a tag, or pin `commit` in the source step",
                    )
            place = f"artifacts/sources/{step.name}"
            for file in (tree.archive, folder / "tree.json"):
                self._keep(file, f"{place}/{folder.name}/{file.name}")
            if tags:
                target = self.root / place / "tags.json"
                before = json.loads(target.read_text(encoding="utf-8")) if f"{place}/tags.json" in self.files else {}
                target.write_text(json.dumps({**before, **tags}, indent=1, sort_keys=True), encoding="utf-8")
                self._note(f"{place}/tags.json")
            archives[step.name] = tree.archive
            self.say(f"source {step.name}: {step.ref} is {tree.commit[:12]}, {len(tree.submodules)} submodules")
        return archives

    def _tool(self, venv: VenvStep) -> None:
        pin = f"uv=={venv.uv or DEFAULT_UV}"
        if pin in self.tools:
            return
        step = PackagesStep(name="uv", pins=[pin], index_url=venv.index_url, trusted_hosts=venv.trusted_hosts)
        (remote,) = self._resolved(step, False, {})
        self.tools[pin] = self._fetch(remote, step)
        self.say(f"installer: {remote.name}")

    def _packages(self, step: PackagesStep, is_pip: bool, there: dict[str, str]) -> None:
        key = packages_key(step)
        # Folders of wheels on hosts are theirs, and the installer is offered them as ever.
        local = [place for place in step.find_links if not _is_web(place)]
        step = step.model_copy(update={"find_links": [place for place in step.find_links if _is_web(place)]})
        try:
            remotes = self._resolved(step, is_pip, there)
        except Unresolved as error:
            if not local and not step.machine_wheels:
                raise
            self.say(f"packages {step.name}: left to the hosts' own wheel folders ({error.cause})")
            self.packages.setdefault(key, BundledPackages(name=step.name, of=key, files=[]))
            return
        self.say(f"packages {step.name}: {len(remotes)} files")
        files, urls = {}, {}
        named = {
            canonicalize_name(Requirement(pin).name): url
            for pin in step.locked or step.wanted
            if (url := Requirement(pin).url)
        }
        for remote in remotes:
            path = files[remote.name] = self._fetch(remote, step)
            if canonicalize_name(remote.package) in named:
                urls[named[canonicalize_name(remote.package)]] = path
        if step.build_isolation:
            for remote in self._build_requirements(
                step, is_pip, [path for path in files.values() if not path.endswith(".whl")]
            ):
                files[remote.name] = self._fetch(remote, step)
        if key not in self.packages:
            self.packages[key] = BundledPackages(name=step.name, of=key, files=sorted(files.values()), urls=urls)

    def _build_requirements(self, step: PackagesStep, is_pip: bool, sdists: Iterable[str]) -> list[Remote]:
        wanted: set[str] = set()
        for path in sdists:
            wanted |= set(_build_system(self.root / path))
        if not wanted:
            return []
        asked = {"name": f"{step.name}-build", "present": sorted(wanted), "pins": [], "locked": {}, "no_deps": False}
        return self._resolved(step.model_copy(update=asked), is_pip, {})

    def _resolved(self, step: PackagesStep, is_pip: bool, there: dict[str, str]) -> list[Remote]:
        """The files of a step, taking what earlier steps installed where it fits, as an installer does."""
        found = resolve_step(step, self.platform, is_pip=is_pip, prefer=there.values())
        there |= {canonicalize_name(Requirement(item.requirement).name): item.requirement for item in found}
        exact = {"pins": [item.requirement for item in found], "present": [], "locked": {}, "no_deps": True}
        exact |= {"constraints": [], "overrides": []}
        with tempfile.TemporaryDirectory(prefix="lmcache-fleet-") as name:
            lock = Path(name) / "pylock.toml"
            argv = uv_call(step.model_copy(update=exact), self.platform, Path(name), is_pip)
            done = subprocess.run(
                [*argv, "--output-file", str(lock), "-"],
                input="".join(f"{item.requirement}\n" for item in found),
                text=True,
                capture_output=True,
                env={**os.environ, **UV_ENV, **step.env},
                check=False,
            )
            if done.returncode != 0:
                raise failure_of(step, self.platform, done.stderr.splitlines())
            try:
                return chosen(lock.read_text(encoding="utf-8"), self.platform, tuple(step.no_binary))
            except LookupError as error:
                raise Unresolved(step.name, str(error), "look at what its index offers for that machine") from error

    def _fetch(self, remote: Remote, step: PackagesStep) -> str:
        if remote.sha256 is not None:
            path = f"files/{remote.sha256}/{remote.name}"
            if path in self.files:
                return path
            if (self.root / path).is_file() and file_sha256(self.root / path) == remote.sha256:
                self._note(path)
                return path
        part = self.root / "files" / f".{remote.name}.part"
        places = [*([step.index_url] if step.index_url else []), *step.extra_index_urls, *step.find_links]
        try:
            sha256 = fetch(remote.url, part, trusted=step.trusted_hosts, places=places, tries=step.retries + 1)
        except FetchFailed as error:
            raise NoBundle(
                f"packages {step.name}: {error}", "check the URL from this machine, then run again"
            ) from error
        if remote.sha256 not in (None, sha256):
            part.unlink()
            raise NoBundle(
                f"packages {step.name}: {remote.name} is not the file that the index lists (sha256 {sha256})",
                "try again; if it stays so, tell whoever runs the index",
            )
        path = f"files/{sha256}/{remote.name}"
        (self.root / path).parent.mkdir(exist_ok=True)
        part.replace(self.root / path)
        self._note(path)
        return path

    def _model(self, step: ModelStep, venvs: Sequence[VenvStep]) -> None:
        from uv import find_uv_bin

        self.say(f"model {step.name}: fetching {step.hub} at {step.revision}")
        with tempfile.TemporaryDirectory(prefix=".model.", dir=self.root) as name:
            out = Path(name) / "model"
            argv = [find_uv_bin(), "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
            argv += ["--with", _HUB_CLIENT]
            for venv in venvs[:1]:
                argv += ["--default-index", venv.index_url] if venv.index_url else []
                for host in venv.trusted_hosts:
                    argv += ["--allow-insecure-host", host]
            argv += ["python", str(PROGRAMS / "fetch_model.py"), "--out", str(out), "--repo", step.hub or ""]
            argv += ["--revision", step.revision or "", *(["--endpoint", step.endpoint] if step.endpoint else [])]
            done = subprocess.run(
                argv, cwd=name, env={**os.environ, **UV_ENV}, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise NoBundle(f"model {step.name}: {last}", "check the hub's URL and the revision from this machine")
            listed = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
            self.models[model_name(step)] = {
                relative: self._keep(out / relative, move=True) for relative in sorted([*listed, "manifest.json"])
            }

    def _native(self, playbook: Playbook) -> None:
        """Wheels that hosts of a key built, for as long as they are of the same source."""
        sources = {step.name: make_tree(step).identity for step in playbook.of_kind(SourceStep)}
        for step in playbook.of_kind(NativeBuildStep):
            carried = 0
            for found in sorted((store_root() / "wheels" / step.package).glob("*/manifest.json")):
                record = json.loads(found.read_text(encoding="utf-8"))
                if not _is_for(record["key"], sources.get(step.source, {}), self.platform):
                    continue
                for file in (found, found.parent / record["wheel"]):
                    self._keep(file, f"artifacts/wheels/{step.package}/{found.parent.name}/{file.name}")
                carried += 1
            none = "no wheel in the artifact store yet, the first host will build"
            self.say(f"native_build {step.package}: {f'{carried} wheels' if carried else none}")

    def _keep(self, source: Path, path: str | None = None, *, move: bool = False) -> str:
        path = path or f"files/{file_sha256(source)}/{source.name}"
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            source.replace(target)
        else:
            shutil.copyfile(source, target)
        self._note(path)
        return path

    def _note(self, path: str) -> None:
        file = self.root / path
        self.files[path] = BundledFile(sha256=file_sha256(file), size=file.stat().st_size)


def _is_web(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _is_for(key: dict[str, Any], identity: dict[str, Any], platform: Platform) -> bool:
    same = all(key.get(name) == value for name, value in identity.items())
    return same and key.get("arch") == platform.arch and key.get("python") == platform.python


def _build_system(sdist: Path) -> list[str]:
    """What an sdist needs to be built in isolation, as its pyproject.toml says."""
    try:
        with tarfile.open(sdist) as archive:
            name = next(
                (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/pyproject.toml")), None
            )
            member = archive.extractfile(name) if name else None
            system = parsed_toml(member.read().decode()).get("build-system", {}) if member else {}
    except (tarfile.TarError, ValueError):
        system = {}
    return list(system.get("requires", ["setuptools>=40.8.0"]))


def _prune(root: Path, manifest: Manifest) -> None:
    """Take away what an earlier bundle in the same place had and this one hasn't."""
    kept = {root / path for path in manifest.files} | {root / NAME}
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in kept:
            path.unlink()
