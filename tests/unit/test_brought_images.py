"""Images that we brought to a host go with the last release that names them, and nobody else's do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.containers import BroughtImages
from lmcache_fleet.brought_images import left, needless, removals
from lmcache_fleet.containers import SPEC_LABEL, WantedImage
from lmcache_fleet.release import HostReleases, ReleaseState
from lmcache_fleet.shell import program_source

BASE, MADE = f"r/vllm@sha256:{'a' * 64}", "localhost/lmcache-fleet/x:spec"
ENTRIES = {
    "base": {"engine": "podman", "names": [BASE], "label": None},
    "made": {"engine": "podman", "names": [MADE], "label": f"{SPEC_LABEL}=spec"},
}


def on_host(**records: Any) -> HostReleases:
    releases = {name: ReleaseState(name, records={"image-x": record, "x": None}) for name, record in records.items()}
    return HostReleases(releases=releases, images=ENTRIES)


def test_an_image_is_needed_while_any_release_that_stays_or_the_playbook_names_it() -> None:
    record = {"reference": MADE, "base": BASE, "id": "1"}
    assert set(needless(on_host(a=record, b={"reference": "other"}), ["a"], [])) == {"base", "made"}
    assert needless(on_host(a=record, b=record), ["a"], []) == {}
    assert set(needless(on_host(a=record, b={"reference": BASE}), ["a"], [])) == {"made"}
    assert needless(on_host(a=record), ["a"], [WantedImage(MADE, BASE, "spec")]) == {}
    # A record of an earlier version says nothing of what the image was made on.
    assert set(needless(on_host(a={"reference": MADE}), [], [])) == {"base"}


_name = st.sampled_from(["a", "b", "c", "d"])


@given(st.dictionaries(_name, st.lists(_name, min_size=1, max_size=2)), st.sets(_name), st.lists(_name, max_size=2))
def test_what_stays_keeps_its_images(releases: dict[str, list[str]], doomed: set[str], wanted: list[str]) -> None:
    host = HostReleases(
        releases={
            name: ReleaseState(name, records={"image-x": {"reference": used[0], "base": used[-1]}})
            for name, used in releases.items()
        },
        images={name: {"engine": "podman", "names": [name], "label": None} for name in "abcd"},
    )
    gone = set(needless(host, doomed, [WantedImage(name) for name in wanted]))
    kept = {image for name, used in releases.items() if name not in doomed for image in used} | set(wanted)
    assert gone == set("abcd") - kept


# A container engine whose images and containers are a file.
ENGINE = r"""
import json, os, sys
path = os.environ["STORE"]
store = json.load(open(path))
words = [word for word in sys.argv[1:]]
def find(name):
    name = name.replace("sha256:", "", 1) if name.startswith("sha256:") else name
    for image in store["images"]:
        if name in [image["Id"], *image["RepoTags"], *image["RepoDigests"]]:
            return image
    sys.exit(125)
if words[:2] == ["image", "inspect"]:
    print(json.dumps([find(words[2])]))
elif words == ["images", "--quiet"]:
    sys.exit(store.get("broken", 0))
elif words[0] == "images":
    key, _, value = words[-1].partition("=")[2].partition("=")
    for image in store["images"]:
        if image["Config"]["Labels"].get(key) == value:
            print("sha256:" + image["Id"])
elif words[0] == "ps":
    print("\n".join(store["containers"]))
elif words[:2] == ["container", "inspect"]:
    for name in words[4:]:
        print(store["containers"][name] + "\t/" + name)
elif words[0] == "rmi":
    for name in words[1:]:
        image = find(name)
        if image["Id"] in store["containers"].values():
            sys.exit("image is in use")
        for kind in ("RepoTags", "RepoDigests"):
            image[kind] = [other for other in image[kind] if other != name]
        if image["Id"] == name or not image["RepoTags"] + image["RepoDigests"]:
            store["images"].remove(image)
    json.dump(store, open(path, "w"))
"""


def image(identity: str, names: list[str], size: int, layers: list[str], **labels: str) -> dict[str, Any]:
    tags = [name for name in names if "@" not in name]
    digests = [name for name in names if "@" in name]
    return {
        "Id": identity, "RepoTags": tags, "RepoDigests": digests, "Size": size,
        "RootFS": {"Layers": layers}, "Config": {"Labels": labels},
    }  # fmt: skip


class Store:
    """A host's store, its ledger, and the program on it."""

    def __init__(self, folder: Path, images: list[dict[str, Any]], containers: dict[str, str]) -> None:
        self.folder, self.ledger = folder, folder / "images"
        (folder / "podman").write_text(f"#!{sys.executable}\n{ENGINE}")
        (folder / "podman").chmod(0o755)
        (folder / "store.json").write_text(json.dumps({"images": images, "containers": containers}))
        self.ledger.mkdir()
        for key, entry in ENTRIES.items():
            (self.ledger / f"{key}.json").write_text(json.dumps(entry))

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "STORE": str(self.folder / "store.json")}

    def seen(self) -> dict[str, dict[str, Any]]:
        command = BroughtImages().command(ENTRIES)
        done = subprocess.run(["sh", "-c", command], env=self.env, capture_output=True, text=True, check=True)
        return BroughtImages().process(done.stdout.splitlines())

    def remove(self) -> None:
        request = json.dumps({"images": ENTRIES, "remove": str(self.ledger)})
        argv = [sys.executable, "-c", program_source("brought_images.py")]
        subprocess.run(argv, input=request, env=self.env, text=True, check=True, capture_output=True)

    def left(self) -> tuple[set[str], set[str]]:
        """Ids in the store, and keys in the ledger."""
        images = json.loads((self.folder / "store.json").read_text())["images"]
        return {item["Id"] for item in images}, {path.stem for path in self.ledger.iterdir()}


LABEL = {SPEC_LABEL: "spec"}
OTHER = image("9", ["somebody/s:1"], 10, ["z"])


def test_a_made_image_and_its_base_go_and_each_byte_is_counted_once(tmp_path: Path) -> None:
    # A build of the same spec whose name was taken away is ours too.
    orphan = image("3", [], 160, ["a", "c"], **LABEL)
    pair = [image("1", [BASE], 100, ["a"]), image("2", [MADE], 150, ["a", "b"], **LABEL)]
    store = Store(tmp_path, [*pair, orphan, OTHER], {"theirs": "9"})
    seen = store.seen()
    assert {key: (item["state"], item["size"]) for key, item in seen.items()} == {
        "base": ("ours", 100),
        "made": ("ours", 110),
    }
    assert [str(change) for change in removals(ENTRIES, seen)] == [
        f"- image {BASE}: frees up to 100 B",
        f"- image {MADE}: frees up to 110 B",
    ]
    store.remove()
    assert store.left() == ({"9"}, set())


def test_an_image_of_somebodys_container_stays_and_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path, [image("1", [BASE], 100, ["a"])], {"theirs": "1"})
    seen = store.seen()
    assert (seen["base"]["state"], seen["base"]["by"]) == ("used", ["theirs"])
    assert [change.what for change in removals(ENTRIES, seen)] == [f"image {MADE}"]
    assert left(ENTRIES, seen) == [f"image {BASE} stays while it is in use: theirs"]
    store.remove()
    assert store.left() == ({"1"}, {"base"})


@pytest.mark.parametrize("names", [[BASE, "theirs:1"], [BASE, f"mirror/vllm@sha256:{'a' * 64}"]])
def test_an_image_that_somebody_named_is_left_to_him(tmp_path: Path, names: list[str]) -> None:
    store = Store(tmp_path, [image("1", names, 100, ["a"])], {})
    assert store.seen()["base"]["state"] == "theirs"
    store.remove()
    assert store.left() == ({"1"}, set())


def test_another_image_under_our_name_is_not_ours(tmp_path: Path) -> None:
    store = Store(tmp_path, [image("7", [MADE], 100, ["a"])], {})
    assert store.seen()["made"]["state"] == "gone"
    store.remove()
    assert store.left() == ({"7"}, set())


def test_while_the_engine_does_not_answer_nothing_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path, [], {})
    (tmp_path / "store.json").write_text(json.dumps({"images": [], "containers": {}, "broken": 1}))
    seen = store.seen()
    assert {item["state"] for item in seen.values()} == {"unknown"}
    assert removals(ENTRIES, seen) == []
    assert "podman doesn't answer" in left(ENTRIES, seen)[0]
    store.remove()
    assert store.left() == (set(), {"base", "made"})


def test_without_the_engine_there_is_nothing_to_take_away(tmp_path: Path) -> None:
    store = Store(tmp_path, [], {})
    (tmp_path / "podman").unlink()
    assert {item["state"] for item in store.seen().values()} == {"gone"}
