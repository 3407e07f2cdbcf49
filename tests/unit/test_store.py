"""The artifact store: what is taken out is what was put in, and a half-written thing is never there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.digest import text_digest
from lmcache_fleet.store import RefusedArtifact, WheelStore, file_sha256, save_evidence, staged, store_root

KEY: dict[str, Any] = {"arch": "aarch64", "soc": "Ascend910B3", "env": {"A": "1"}, "version": None}
BODY = b"PK wheel " * 1000


def filled(tmp_path: Path) -> WheelStore:
    built = tmp_path / "p-1-cp312-cp312-linux_aarch64.whl"
    built.write_bytes(BODY)
    store = WheelStore(tmp_path / "store")
    store.add("p", KEY, built, text_digest(BODY), "h1")
    return store


def test_a_wheel_comes_back_under_its_name(tmp_path: Path) -> None:
    store = filled(tmp_path)
    wheel = store.find("p", {**KEY})
    assert wheel is not None
    assert wheel.path.read_bytes() == BODY
    assert wheel.path.name == "p-1-cp312-cp312-linux_aarch64.whl"
    assert wheel.sha256 == text_digest(BODY) == file_sha256(wheel.path)
    manifest = json.loads((wheel.path.parent / "manifest.json").read_text())
    assert (manifest["built_on"], manifest["key"], manifest["size"]) == ("h1", KEY, len(BODY))


@pytest.mark.parametrize("part", sorted(KEY))
def test_any_other_key_finds_nothing(tmp_path: Path, part: str) -> None:
    store = filled(tmp_path)
    assert store.find("p", {**KEY, part: "other"}) is None
    assert store.find("p", {name: value for name, value in KEY.items() if name != part}) is None
    assert store.find("q", KEY) is None


def _manifest(**changed: Any) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    return alter


def _wheel(text: bytes | None) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        (path,) = folder.glob("*.whl")
        if text is None:
            path.unlink()
        else:
            path.write_bytes(text)

    return alter


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (_wheel(BODY[:-1]), "not the file that the manifest recorded"),
        (_wheel(b""), "not the file that the manifest recorded"),
        (_wheel(b"X" + BODY[1:]), "not the file that the manifest recorded"),
        (_wheel(None), "not the file that the manifest recorded"),
        (_manifest(sha256="0" * 64), "not the file that the manifest recorded"),
        (_manifest(key={**KEY, "arch": "x86_64"}), "of another key"),
        (_manifest(key=None), "of another key"),
        (_manifest(wheel=None), "can't be read"),
        (_manifest(wheel="../../../other.whl"), "not the file that the manifest recorded"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "can't be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "can't be read"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "can't be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), "can't be read"),
    ],
)
def test_what_is_not_what_was_stored_is_refused_and_says_what_to_do(
    tmp_path: Path, alter: Callable[[Path], object], says: str
) -> None:
    store = filled(tmp_path)
    (tmp_path / "other.whl").write_bytes(BODY)
    alter(store.folder("p", KEY))
    with pytest.raises(RefusedArtifact, match=says) as caught:
        store.find("p", KEY)
    assert "remove the folder to build anew" in str(caught.value)
    assert str(store.folder("p", KEY)) in str(caught.value)


def test_a_wheel_changed_on_the_way_is_not_stored(tmp_path: Path) -> None:
    built = tmp_path / "p.whl"
    built.write_bytes(BODY[:-1])
    store = WheelStore(tmp_path / "store")
    with pytest.raises(RefusedArtifact, match="from h2: changed on the way"):
        store.add("p", KEY, built, text_digest(BODY), "h2")
    assert store.find("p", KEY) is None
    assert not (tmp_path / "store").exists()


def test_storing_again_replaces(tmp_path: Path) -> None:
    store = filled(tmp_path)
    built = tmp_path / "p-2.whl"
    built.write_bytes(b"second")
    store.add("p", KEY, built, text_digest(b"second"), "h2")
    found = store.find("p", KEY)
    assert found is not None
    assert found.path.read_bytes() == b"second"
    assert sorted(path.name for path in found.path.parent.iterdir()) == ["manifest.json", "p-2.whl"]


class Stop(BaseException):
    """Such as Ctrl-C."""


def test_a_block_that_ends_badly_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a" / "t"
    for before in ([], ["old"]):
        with pytest.raises(Stop), staged(target) as staging:
            (staging / "half").write_text("x")
            assert sorted(path.name for path in target.iterdir()) == before if before else not target.exists()
            raise Stop
        assert [path.name for path in target.parent.iterdir()] == (["t"] if before else [])
        if not before:
            target.mkdir()
            (target / "old").write_text("kept")
    assert (target / "old").read_text() == "kept"


def test_a_block_that_ends_well_is_there_whole_and_readable(tmp_path: Path) -> None:
    target = tmp_path / "t"
    with staged(target) as staging:
        assert staging.parent == target.parent
        (staging / "f").write_text("x")
        assert not target.exists()
    assert (target / "f").read_text() == "x"
    assert target.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_evidence_of_a_host_with_any_name_stays_in_its_folder(tmp_path: Path) -> None:
    path = save_evidence("../@ssh/h 1", "r", "offline", {"ok": True}, tmp_path)
    assert tmp_path / "evidence" in path.parents
    assert ".." not in path.relative_to(tmp_path).parts
    assert json.loads(path.read_text()) == {"ok": True}
    again = save_evidence("../@ssh/h 1", "r", "offline", {"ok": False}, tmp_path)
    assert again == path
    assert json.loads(path.read_text()) == {"ok": False}
    assert [item.name for item in path.parent.iterdir()] == ["offline.json"]


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LMCACHE_FLEET_ARTIFACTS", str(tmp_path))
    assert store_root() == tmp_path
    monkeypatch.delenv("LMCACHE_FLEET_ARTIFACTS")
    assert store_root().name == "artifacts"
