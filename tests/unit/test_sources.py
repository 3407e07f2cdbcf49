"""Source trees from a local repository: tags, pins, patches, submodules, and no network the second time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.playbook.model import SourceStep
from lmcache_fleet.sources import SourceError, SourceTree, make_tree
from lmcache_fleet.store import file_sha256

GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", "-c", "gc.auto=0"]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "c")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    commit(folder, a="old\n", b="b\n")
    git(folder, "tag", "v1")
    git(folder, "tag", "-a", "-m", "annotated", "v1a")
    return folder


Make = Callable[..., SourceTree]


@pytest.fixture
def make(tmp_path: Path, repo: Path) -> Make:
    def made(**fields: Any) -> SourceTree:
        base = {"name": "s", "repo": str(repo), "ref": "v1", "retries": 0, "timeout": 30}
        return make_tree(SourceStep.model_validate({**base, **fields}), tmp_path / "store")

    return made


def contents(tree: SourceTree) -> dict[str, str]:
    with tarfile.open(tree.archive) as packed:
        texts = {}
        for member in packed.getmembers():
            assert (member.uid, member.gid, member.mtime, member.uname) == (0, 0, 0, "root")
            handle = packed.extractfile(member) if member.isfile() else None
            if handle:
                texts[member.name] = handle.read().decode()
        return texts


@pytest.mark.parametrize("ref", ["v1", "v1a", "main"])
def test_a_tree_is_packed_without_git(make: Make, repo: Path, ref: str) -> None:
    tree = make(ref=ref)
    assert tree.commit == git(repo, "rev-parse", "HEAD")
    assert contents(tree) == {"s/a.txt": "old\n", "s/b.txt": "b\n"}
    assert file_sha256(tree.archive) == tree.sha256


def test_a_tag_once_seen_needs_no_network(make: Make, repo: Path) -> None:
    first = make()
    repo.rename(repo.with_name("gone"))
    again = make()
    assert (again.identity, again.sha256, again.archive) == (first.identity, first.sha256, first.archive)
    with pytest.raises(SourceError, match=r"ls-remote of .* failed") as caught:
        make(ref="v1a")
    assert "mirror" in caught.value.remedy


def test_a_tag_stays_where_it_was_seen_and_a_branch_moves(make: Make, repo: Path) -> None:
    tag, branch = make(), make(ref="main")
    commit(repo, a="newer\n")
    git(repo, "tag", "-f", "v1")
    assert make().commit == tag.commit
    moved = make(ref="main")
    assert moved.commit != branch.commit
    assert contents(moved)["s/a.txt"] == "newer\n"
    assert moved.identity["commit"] != branch.identity["commit"]


def test_a_pin_gives_its_own_commit_whatever_the_ref_does(make: Make, repo: Path) -> None:
    pinned = git(repo, "rev-parse", "HEAD")
    commit(repo, a="newer\n")
    git(repo, "tag", "-f", "v1")
    assert contents(make(commit=pinned))["s/a.txt"] == "old\n"


def test_a_ref_moved_away_from_a_pin_that_is_gone_is_refused(make: Make) -> None:
    with pytest.raises(SourceError, match=f"'v1' of .* the playbook pins {'0' * 40}") as caught:
        make(commit="0" * 40)
    assert "was moved" in caught.value.remedy


def test_a_commit_as_ref(make: Make, repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert make(ref=head).commit == head


def test_a_ref_that_is_not_there_is_named(make: Make) -> None:
    with pytest.raises(SourceError, match="has no tag or branch 'v9'"):
        make(ref="v9")


def test_patches_change_the_tree_and_its_identity(make: Make, tmp_path: Path) -> None:
    patch = {"path": "a.txt", "find": "old", "replace": "new", "present": ["^new"]}
    more = {"path": "a.txt", "find": "new\n", "replace": "new\nmore\n"}
    plain, patched, both = make(), make(patches=[patch]), make(patches=[patch, more])
    assert contents(plain)["s/a.txt"] == "old\n"
    assert contents(patched)["s/a.txt"] == "new\n"
    assert contents(both)["s/a.txt"] == "new\nmore\n"
    assert len({tree.identity["patches"] for tree in (plain, patched, both)}) == 3
    assert plain.identity["commit"] == both.identity["commit"]
    assert [item.state for item in both.patches] == ["applied", "applied"]
    assert "+more" in both.patches[1].diff
    other = make(patches=[{**patch, "refs": ["v2*"]}])
    assert [item.state for item in other.patches] == ["not-needed"]
    assert contents(other) == contents(plain)


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"path": "a.txt", "find": "olden", "replace": "x"}, "nearest lines are\n    1: old"),
        ({"path": "absent.txt", "find": "a", "replace": "x"}, "finds no such file at v1"),
    ],
)
def test_a_patch_that_finds_no_place_leaves_nothing_in_the_store(
    make: Make, tmp_path: Path, patch: dict[str, str], says: str
) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        make(patches=[{"path": "b.txt", "find": "b", "replace": "c"}, patch])
    assert caught.value.remedy
    assert [path.name for path in (tmp_path / "store/sources/s").iterdir()] == ["tags.json"]


def test_a_patch_after_one_that_emptied_the_file_sees_it_empty(make: Make) -> None:
    # The second is there already only when it sees what the first one left.
    make(
        patches=[
            {"path": "a.txt", "find": "old\n", "replace": ""},
            {"path": "a.txt", "find": "gone", "replace": "", "present": [r"\A\Z"]},
        ]
    )


def test_a_patch_leaves_the_line_ends_of_other_lines(make: Make, repo: Path) -> None:
    (repo / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    commit(repo)
    tree = make(ref="main", patches=[{"path": "crlf.txt", "find": "two", "replace": "2"}])
    assert contents(tree)["s/crlf.txt"] == "one\r\n2\r\n"


def test_a_patch_of_a_link_that_leads_out_of_the_tree_is_refused(make: Make, repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("old\n")
    (repo / "link.txt").symlink_to(outside)
    commit(repo)
    with pytest.raises(SourceError, match="would leave the tree"):
        make(ref="main", patches=[{"path": "link.txt", "find": "old", "replace": "new"}])
    assert outside.read_text() == "old\n"


def test_a_patch_that_the_ref_needs_not_needs_no_file_either(make: Make) -> None:
    gone = {"path": "gone.txt", "find": "a", "replace": "b"}
    tree = make(patches=[{**gone, "refs": ["v9"]}, {**gone, "when": False}])
    assert [patch.state for patch in tree.patches] == ["not-needed", "not-needed"]
    with pytest.raises(SourceError, match="no such file"):
        make(patches=[gone])


def test_a_patch_of_what_is_no_text_is_refused(make: Make, repo: Path) -> None:
    (repo / "b.txt").write_bytes(b"\xff\xfe\x00")
    commit(repo)
    with pytest.raises(SourceError, match="no UTF-8 text"):
        make(ref="main", patches=[{"path": "b.txt", "find": "old", "replace": "new"}])


def test_git_is_asked_for_nothing_and_knows_nothing_of_the_user(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "broken")
    assert make().commit


@pytest.fixture
def local_submodules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git refuses submodules from files unless told otherwise, and our call takes no configuration: a wrapper tells."""
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {GIT} -c protocol.file.allow=always "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")


def test_submodules_are_filled_at_their_pinned_commits(
    make: Make, repo: Path, tmp_path: Path, local_submodules: None
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet", "-b", "main")
    pinned = commit(inner, i="pinned\n")
    git(repo, "submodule", "--quiet", "add", str(inner), "third/inner")
    commit(repo)
    moved = commit(inner, i="moved\n")
    tree = make(ref="main", submodules=True)
    assert tree.submodules == {"third/inner": pinned}
    assert contents(tree)["s/third/inner/i.txt"] == "pinned\n"
    assert not [name for name in contents(tree) if ".git/" in name or name.endswith(".git")]
    other = make(ref="main", submodules=True, submodule_refs={"third/inner": "main"})
    assert other.submodules == {"third/inner": moved}
    assert other.identity != tree.identity
    assert "s/third/inner/i.txt" not in contents(make(ref="main"))
    inner.rename(tmp_path / "unreachable")
    with pytest.raises(SourceError, match=r"git submodule of .* failed"):
        make(ref="main", submodules=True, patches=[{"path": "a.txt", "find": "old", "replace": "x"}])
