"""Source trees, made once on the control machine: cloned, submodules filled, patched, packed by content.

Hosts often can't reach the forges, and a build must not depend on which host reached what: one tree goes to all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmcache_fleet.digest import digest
from lmcache_fleet.patches import PatchResult, apply_patch, is_needed
from lmcache_fleet.playbook.model import SourceStep
from lmcache_fleet.problems import Trouble
from lmcache_fleet.store import file_sha256, staged, store_root

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class SourceError(Trouble):
    """A source tree can't be made."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A packed, patched source tree.

    Args:
        commit: of the tree.
        submodules: path → commit.
        patches: what became of each patch.
        archive: the packed tree.
        sha256: hash of the archive.
        identity: commit, submodule commits and digest of the patches: what a build depends on.
    """

    commit: str
    submodules: dict[str, str]
    patches: tuple[PatchResult, ...]
    archive: Path
    sha256: str
    identity: dict[str, Any]


def make_tree(step: SourceStep, root: Path | None = None) -> SourceTree:
    """The tree of a source step, from the store or made now. Writes only to the store.

    Raises:
        SourceError: the repository can't be reached, a ref is missing or another commit than pinned, a submodule is
            empty, or a patch finds no place.
    """
    folder = (root or store_root()) / "sources" / step.name
    commit = _commit_of(step, folder)
    patches = [patch.model_dump(mode="json") for patch in step.patches]
    wanted = {
        "commit": commit,
        "ref": step.ref,
        "submodules": step.submodules,
        "submodule_refs": step.submodule_refs,
        "patches": patches,
    }
    target = folder / digest(wanted, 20)
    if not (target / "tree.json").is_file():
        _make(step, commit, target)
    return _read(target)


def _commit_of(step: SourceStep, folder: Path) -> str:
    if step.commit:
        return step.commit
    if _COMMIT.match(step.ref):
        return step.ref
    # A tag stays where it is: once seen it needs no network. A branch moves, so it is asked for at every run.
    known = folder / "tags.json"
    tags: dict[str, str] = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    seen_as = f"{step.repo} {step.ref}"
    if seen_as in tags:
        return tags[seen_as]
    listing = _git(step, "ls-remote", "--", step.repo, step.ref, f"{step.ref}^{{}}")
    refs: dict[str, str] = {}
    for line in listing.splitlines():
        seen, _, name = line.partition("\t")
        refs[name] = seen
    tag = refs.get(f"refs/tags/{step.ref}^{{}}") or refs.get(f"refs/tags/{step.ref}")
    branch = refs.get(f"refs/heads/{step.ref}")
    if not tag and not branch:
        raise SourceError(f"{step.repo} has no tag or branch '{step.ref}'", "correct `ref` in the source step")
    if tag:
        folder.mkdir(parents=True, exist_ok=True)
        part = known.with_suffix(".part")
        part.write_text(json.dumps({**tags, seen_as: tag}, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(known)
    return tag or branch or ""


def _make(step: SourceStep, commit: str, target: Path) -> None:
    with staged(target) as staging:
        tree = staging / step.name
        _git(step, "init", "--quiet", str(tree))
        at = ("-C", str(tree))
        _git(step, *at, "remote", "add", "origin", step.repo)
        _fetch(step, at, commit)
        _git(step, *at, "checkout", "--quiet", "--detach", commit)
        submodules = _fill_submodules(step, at, tree) if step.submodules else {}
        results = _patch(step, tree)
        for inner in [*tree.rglob(".git")]:
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
        archive = staging / "tree.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
            packed.add(tree, arcname=step.name, filter=_neutral)
        shutil.rmtree(tree)
        record = {
            "commit": commit,
            "submodules": submodules,
            "patches": [{"path": r.path, "state": r.state, "diff": list(r.diff)} for r in results],
            "sha256": file_sha256(archive),
        }
        (staging / "tree.json").write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")


def _fetch(step: SourceStep, at: tuple[str, ...], commit: str) -> None:
    # By commit first: exact whatever the ref does meanwhile. Servers that refuse that are asked for the ref.
    try:
        _git(step, *at, "fetch", "--quiet", "--depth", "1", "origin", commit, tries=1)
    except SourceError:
        _git(step, *at, "fetch", "--quiet", "--depth", "1", "origin", step.ref)
        fetched = _git(step, *at, "rev-parse", "FETCH_HEAD^{commit}").strip()
        if fetched != commit:
            raise SourceError(
                f"'{step.ref}' of {step.repo} is {fetched}, the playbook pins {commit}",
                "the ref was moved: look at what changed, then correct `commit` in the source step",
            ) from None


def _fill_submodules(step: SourceStep, at: tuple[str, ...], tree: Path) -> dict[str, str]:
    _git(step, *at, "submodule", "--quiet", "update", "--init", "--recursive")
    for path, ref in step.submodule_refs.items():
        inner = ("-C", str(tree / path))
        _git(step, *inner, "fetch", "--quiet", "--depth", "1", "origin", ref)
        _git(step, *inner, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    commits = {}
    for line in _git(step, *at, "submodule", "status", "--recursive").splitlines():
        commit, path = line.lstrip(" +-U").split()[:2]
        if line.startswith("-") or not any((tree / path).iterdir()):
            raise SourceError(
                f"the submodule {path} is empty", "check that the control machine reaches the submodule's repository"
            )
        commits[path] = commit
    return commits


def _patch(step: SourceStep, tree: Path) -> list[PatchResult]:
    results = []
    texts: dict[str, str] = {}
    for patch in step.patches:
        if not is_needed(patch, step.ref):
            results.append(PatchResult(patch.path, "not-needed", ""))
            continue
        path = tree / patch.path
        if not path.resolve().is_relative_to(tree.resolve()):
            raise SourceError(
                f"the patch of {patch.path} would leave the tree at {step.ref}: a link there leads out of it",
                "correct the patch's `path`",
            )
        try:
            text = texts[patch.path] if patch.path in texts else _read_text(path)
        except UnicodeDecodeError as error:
            raise SourceError(
                f"the patch of {patch.path} finds a file that is no UTF-8 text at {step.ref}",
                "correct the patch's `path`",
            ) from error
        except OSError as error:
            raise SourceError(
                f"the patch of {patch.path} finds no such file at {step.ref}",
                "limit the patch with `refs`, or correct its `path`",
            ) from error
        result = apply_patch(patch, text, step.ref)
        if result.state == "refused":
            shown = "\n    ".join(result.nearest)
            raise SourceError(
                f"the patch of {patch.path} finds no place at {step.ref}; the nearest lines are\n    {shown}",
                "correct the patch's `find`, or say with `present` how the file looks when it needs no patch",
            )
        texts[patch.path] = result.text
        results.append(result)
    # All patches found their place: only now is any file written.
    for relative, text in texts.items():
        (tree / relative).write_text(text, encoding="utf-8", newline="")
    return results


def _read_text(path: Path) -> str:
    # As it stands: a patch changes its own lines, and no line end elsewhere.
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def _neutral(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = 0
    return info


def _read(target: Path) -> SourceTree:
    record: dict[str, Any] = json.loads((target / "tree.json").read_text(encoding="utf-8"))
    archive = target / "tree.tar.gz"
    patches = tuple(PatchResult(p["path"], p["state"], "", tuple(p["diff"])) for p in record["patches"])
    identity = {
        "commit": record["commit"],
        "submodules": record["submodules"],
        "patches": digest([[p.path, p.state, p.diff] for p in patches], 20),
    }
    return SourceTree(record["commit"], record["submodules"], patches, archive, record["sha256"], identity)


def _git(step: SourceStep, *arguments: str, tries: int | None = None) -> str:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": "60",
    }
    last = ""
    for attempt in range((step.retries + 1) if tries is None else tries):
        if attempt:
            time.sleep(min(5, 2**attempt))
        try:
            done = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=step.timeout, env=environment, check=False
            )
        except FileNotFoundError:
            raise SourceError("git is not installed on the control machine", "apt-get install git") from None
        except subprocess.TimeoutExpired:
            last = f"no answer within {step.timeout} s"
            continue
        if done.returncode == 0:
            return done.stdout
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if "not our ref" in last or "does not exist" in last or "not found" in last:
            break
    raise SourceError(
        f"git {arguments[0] if arguments[0] != '-C' else arguments[2]} of {step.repo} failed: {last}",
        "check that the control machine reaches the repository, or point `repo` at a mirror",
    )
