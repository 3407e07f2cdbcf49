"""Bundles: what is in one, that it is whole, and that an installer needs nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmcache_fleet.bundle.artifacts import import_artifacts
from lmcache_fleet.bundle.collect import NoBundle, make_bundle
from lmcache_fleet.bundle.debs import flat_index
from lmcache_fleet.bundle.manifest import Bundle, BundledFile, Manifest, damage, packages_key, read_bundle
from lmcache_fleet.bundle.wheels import chosen, tags_of
from lmcache_fleet.cli import main
from lmcache_fleet.installer import Offline, install_call
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import read_playbook, resolve
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep
from lmcache_fleet.problems import InputError
from lmcache_fleet.release import HostKey, release_spec
from lmcache_fleet.resolution import Platform, Unresolved
from operations.bundle import batches, checked
from tests.unit.local_index import LocalIndex

UV = str(Path(sys.executable).parent / "uv")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LAYOUT = Layout("/opt/x")
RELEASE = LAYOUT.release("r1")
HASH = "a" * 64


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalIndex]:
    made = LocalIndex(tmp_path_factory.mktemp("index"))
    made.add("engine", "1.0", ["helper>=1", "torch==2.11.0"])
    made.add("torch", "2.11.0")
    made.add("torch", "2.10.0")
    made.add("plugin", "1.0", ["torch==2.10.0", "helper"])
    made.add("helper", "1.0")
    made.add("helper", "1.1")
    for arch in ("x86_64", "aarch64"):
        made.add("native", "1.0", tag=f"py3-none-manylinux_2_28_{arch}")
    with made.serving():
        yield made


def playbook(index: LocalIndex, folder: Path, *steps: dict[str, Any], arch: str = "x86_64") -> Playbook:
    common = {"index_url": index.url()}
    lines = [
        "apiVersion: lmcache-fleet/v1",
        "name: small",
        "steps:",
        f'  - venv: {{python: "{PYTHON}", installer: pip}}',
        *(f"  - packages: {json.dumps({**common, **step})}" for step in steps),
    ]
    folder.mkdir(exist_ok=True)
    path = folder / "small.yaml"
    path.write_text("\n".join(lines) + "\n")
    return resolve(read_playbook(path), {}, arch=arch, prefix="/opt/x", host="h")


ENGINE = {"name": "engine", "pins": ["engine==1.0"], "constraints": ["helper<1.1"]}
PLUGIN = {"name": "plugin", "pins": ["plugin==1.0"]}


def names(manifest: Manifest) -> dict[str, list[str]]:
    return {
        step.name: [
            Path(path).name.split("-")[0] + "-" + Path(path).name.split("-")[1]
            for path in sorted(step.files, key=lambda path: Path(path).name)
        ]
        for step in manifest.packages
    }


def test_each_step_gets_what_its_call_would_take_after_the_steps_before_it(index: LocalIndex, tmp_path: Path) -> None:
    made = make_bundle([playbook(index, tmp_path / "p", ENGINE, PLUGIN)], "x86_64", tmp_path / "b", lambda _: None)
    assert names(made) == {
        "engine": ["engine-1.0", "helper-1.0", "torch-2.11.0"],
        # helper 1.0 is there already, and an installer leaves it although 1.1 is on the index.
        "plugin": ["helper-1.0", "plugin-1.0", "torch-2.10.0"],
    }
    assert damage(Bundle(tmp_path / "b", made)) == []


def test_what_is_there_is_not_fetched_again_and_what_is_no_longer_wanted_goes(
    index: LocalIndex, tmp_path: Path
) -> None:
    root = tmp_path / "b"
    make_bundle([playbook(index, tmp_path / "p", ENGINE, PLUGIN)], "x86_64", root, lambda _: None)
    del index.asked[:]
    made = make_bundle([playbook(index, tmp_path / "q", ENGINE)], "x86_64", root, lambda _: None)
    assert [path for path in index.asked if path.endswith(".whl")] == []
    on_disk = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert on_disk == {"manifest.json", *made.files}


def test_wheels_are_those_of_the_hosts_architecture(index: LocalIndex, tmp_path: Path) -> None:
    step = {"name": "native", "pins": ["native==1.0"]}
    for arch in ("x86_64", "aarch64"):
        made = make_bundle(
            [playbook(index, tmp_path / arch, step, arch=arch)], arch, tmp_path / f"b-{arch}", lambda _: None
        )
        assert [Path(path).name for path in made.files] == [f"native-1.0-py3-none-manylinux_2_28_{arch}.whl"]


def test_a_pin_that_the_index_lacks_is_told(index: LocalIndex, tmp_path: Path) -> None:
    with pytest.raises(Unresolved, match=r"helper"):
        make_bundle(
            [playbook(index, tmp_path / "p", {"name": "x", "pins": ["helper==9"]})],
            "x86_64",
            tmp_path / "b",
            lambda _: None,
        )


def test_a_directory_with_other_things_is_left_alone(index: LocalIndex, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NoBundle, match="not empty"):
        make_bundle([playbook(index, tmp_path / "p", ENGINE)], "x86_64", tmp_path, lambda _: None)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_the_installer_installs_from_the_bundle_without_an_index(
    index: LocalIndex, tmp_path: Path, installer: str
) -> None:
    wanted = playbook(index, tmp_path / "p", ENGINE, PLUGIN)
    made = make_bundle([wanted], "x86_64", tmp_path / "b", lambda _: None)
    bundle = Bundle(tmp_path / "b", made)
    layout = Layout(str(tmp_path / "host"))
    release = layout.release("r1")
    # With pip from Python itself: what is fetched would need a network.
    subprocess.run([sys.executable, "-m", "venv", release.venv], check=True, capture_output=True)
    del index.asked[:]
    for step in wanted.of_kind(PackagesStep):
        carried = bundle.packages(step)
        assert carried is not None
        folder = tmp_path / "links" / carried.of
        folder.mkdir(parents=True)
        for path in carried.files:
            (folder / Path(path).name).hardlink_to(bundle.root / path)
        venv = VenvStep.model_validate({"python": PYTHON, "installer": installer})
        call = install_call(step, venv, layout, release, UV, offline=Offline(str(folder), {}))
        for path, text in call.files.items():
            Path(release.file(path)).parent.mkdir(parents=True, exist_ok=True)
            Path(release.file(path)).write_text(text)
        subprocess.run(
            call.argv, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **call.env}, check=True, capture_output=True
        )
    assert index.asked == []
    listed = subprocess.run(
        [UV, "pip", "list", "--python", release.python, "--format", "json"], check=True, capture_output=True
    )
    found = {item["name"]: item["version"] for item in json.loads(listed.stdout)}
    assert {name: found[name] for name in ("engine", "plugin", "torch", "helper")} == {
        "engine": "1.0",
        "plugin": "1.0",
        "torch": "2.10.0",
        "helper": "1.0",
    }


# --- argv ------------------------------------------------------------------------------------------------------------

PLACES: dict[str, Any] = {
    "index_url": "https://i/simple",
    "extra_index_urls": ["https://e/simple"],
    "find_links": ["https://f/links", "/vendor/wheels"],
    "trusted_hosts": ["i"],
    "index_strategy": "unsafe-best-match",
}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_call_from_a_bundle_names_no_place_outside_the_host(installer: str) -> None:
    url = "https://u/engine-1.0-py3-none-any.whl"
    step = PackagesStep.model_validate({"name": "p", "pins": [f"engine @ {url}", "a==1"], **PLACES})
    venv = VenvStep.model_validate({"python": "3.12", "installer": installer})
    call = install_call(step, venv, LAYOUT, RELEASE, "/t/uv", offline=Offline("/l", {url: "/opt/x/a b.whl"}))
    assert not [word for word in call.argv if "https:" in word]
    assert "--no-index" in call.argv
    assert [call.argv[at + 1] for at, word in enumerate(call.argv) if word == "--find-links"] == [
        "/l",
        "/vendor/wheels",
    ]
    assert call.argv[-2:] == ("engine @ file:///opt/x/a%20b.whl", "a==1")
    assert (call.env.get("UV_OFFLINE") == "1") == (installer == "uv")


def test_where_a_step_takes_its_files_from_is_not_what_a_bundle_knows_it_by() -> None:
    step = PackagesStep.model_validate({"name": "p", "pins": ["a==1"]})
    assert packages_key(step.model_copy(update=PLACES)) == packages_key(step)
    for other in ({"pins": ["a==2"]}, {"no_deps": True}, {"no_binary": ["a"]}, {"locked": {"a==1": ["sha256:0"]}}):
        assert packages_key(step.model_copy(update=other)) != packages_key(step)


def test_a_release_is_the_same_from_a_bundle_and_from_indexes(index: LocalIndex, tmp_path: Path) -> None:
    # The bundle is host data and no part of the playbook; the digest is of the steps as they are written.
    wanted = playbook(index, tmp_path / "p", ENGINE)
    key = HostKey(arch="x86_64", os_id="debian", os_version="12", glibc="2.36")
    before = release_spec(wanted, key)
    step = wanted.of_kind(PackagesStep)[0]
    install_call(step, wanted.of_kind(VenvStep)[0], LAYOUT, RELEASE, "/t/uv", offline=Offline("/l", {}))
    assert release_spec(wanted, key) == before


# --- which files -----------------------------------------------------------------------------------------------------

LOCK = """
lock-version = "1.0"
[[packages]]
name = "a"
version = "1.0"
sdist = { url = "https://i/a-1.0.tar.gz", hashes = { sha256 = "5" } }
wheels = [
    { url = "https://i/a-1.0-py3-none-any.whl", hashes = { sha256 = "1" } },
    { url = "https://i/a-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", hashes = { sha256 = "2" } },
    { url = "https://i/a-1.0-cp311-cp311-manylinux_2_34_x86_64.whl", hashes = { sha256 = "3" } },
    { url = "https://i/a-1.0-cp312-cp312-manylinux_2_17_aarch64.whl", hashes = { sha256 = "4" } },
]
"""


@pytest.mark.parametrize(
    ("platform", "no_binary", "sha256"),
    [
        (Platform("x86_64", "3.11", "2.34"), (), "3"),
        (Platform("x86_64", "3.11", "2.28"), (), "2"),
        (Platform("aarch64", "3.12", "2.36"), (), "4"),
        (Platform("aarch64", "3.11", "2.36"), (), "1"),
        (Platform("x86_64", "3.11", "2.34"), ("A",), "5"),
        (Platform("x86_64", "3.11", "2.34"), (":all:",), "5"),
    ],
)
def test_the_best_file_that_fits_is_taken(platform: Platform, no_binary: tuple[str, ...], sha256: str) -> None:
    assert [item.sha256 for item in chosen(LOCK, platform, no_binary)] == [sha256]


def test_a_package_without_a_fitting_file_is_named() -> None:
    lock = '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ url = "https://i/a-1-cp39-cp39-win_amd64.whl" }]\n'
    with pytest.raises(LookupError, match=r"a 1 has no file for x86_64 and Python 3\.11"):
        chosen(lock, Platform("x86_64", "3.11", "2.34"))


def test_the_names_of_old_platforms_stand_beside_the_new_ones() -> None:
    tags = [str(tag) for tag in tags_of(Platform("x86_64", "3.11", "2.36"))]
    assert tags[0] == "cp311-cp311-manylinux_2_36_x86_64"
    assert tags.index("cp311-cp311-manylinux2014_x86_64") == tags.index("cp311-cp311-manylinux_2_17_x86_64") + 1
    assert "cp39-abi3-manylinux_2_28_x86_64" in tags
    assert tags[-1] == "py30-none-any"


# --- manifest --------------------------------------------------------------------------------------------------------


def small(root: Path) -> Path:
    """A whole bundle with two files."""
    files = {}
    for sha256, text in (
        ("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", "foo"),
        ("fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9", "bar"),
    ):
        path = root / "files" / sha256 / f"{text}.whl"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        files[str(path.relative_to(root))] = {"sha256": sha256, "size": 3}
    manifest = {
        "format": 1,
        "playbook": "p",
        "arch": "x86_64",
        "python": "3.11",
        "glibc": None,
        "made": "now",
        "files": files,
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


def test_a_whole_bundle_is_whole_and_says_its_manifests_hash(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bundle", "--verify", str(small(tmp_path / "b"))])
    assert result.exit_code == 0, result.output
    assert "whole; p for x86_64 and Python 3.11" in result.output
    assert "manifest sha256 " in result.output


@pytest.mark.parametrize("what", ["altered", "longer", "missing"])
def test_a_file_that_is_not_as_listed_is_named(tmp_path: Path, what: str) -> None:
    root = small(tmp_path / "b")
    victim = next(root.rglob("foo.whl"))
    if what == "missing":
        victim.unlink()
    else:
        victim.write_text("fox" if what == "altered" else "foolish")
    result = CliRunner().invoke(main, ["bundle", "--verify", str(root)])
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if "checking" not in line]
    assert len(lines) == 1
    assert str(victim) in lines[0]
    assert ("missing from the bundle" if what == "missing" else "not the file that the manifest lists") in lines[0]


def test_no_bundle_and_no_manifest_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no bundle here.*lmcache-fleet bundle"):
        read_bundle(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match=r"not a bundle's manifest \(format"):
        read_bundle(tmp_path / "x")


def test_what_is_used_must_be_listed(tmp_path: Path) -> None:
    root = small(tmp_path / "b")
    data = json.loads((root / "manifest.json").read_text())
    data["tools"] = {"uv==1": f"files/{HASH}/uv.whl"}
    (root / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="used and not listed"):
        read_bundle(root)


@given(
    st.one_of(
        st.text(max_size=30),
        st.from_regex(r"(files|artifacts)/[./a-z\n\\]{0,12}"),
        st.from_regex(rf"files/{HASH}/[./a-z\n]{{1,9}}"),
    )
)
def test_no_path_of_a_manifest_leads_out_of_its_bundle(path: str) -> None:
    try:
        Manifest(
            playbook="p", arch="a", python="3", glibc=None, made="", files={path: BundledFile(sha256=HASH, size=0)}
        )
    except ValidationError:
        return
    inside = Path("/b", path)
    assert inside.parts == tuple(part for part in inside.parts if part not in ("..", "."))
    assert Path(path).parts[0] in ("files", "artifacts")
    assert not set("\n\\\0") & set(path)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_batches_hold_every_file_once_in_order(sizes: list[int], limit: int) -> None:
    files = {f"f{number}": BundledFile(sha256=HASH, size=size) for number, size in enumerate(sizes)}
    made = list(batches(files, files, limit))
    assert [path for batch in made for path in batch] == list(files)
    assert all(len(batch) == 1 or sum(files[path].size for path in batch) <= limit for batch in made)


def test_sources_and_extensions_go_into_the_store_and_what_is_there_stays(tmp_path: Path) -> None:
    root = tmp_path / "b"
    texts = {
        "artifacts/sources/s/d1/tree.json": "{}",
        "artifacts/sources/s/tags.json": '{"repo v1": "c1", "repo v2": "c2"}',
        "artifacts/wheels/p/k1/manifest.json": "{}",
    }
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    files = {path: BundledFile(sha256=HASH, size=2) for path in texts}
    bundle = Bundle(root, Manifest(playbook="p", arch="a", python="3", glibc=None, made="", files=files))
    store = tmp_path / "store"
    (store / "sources" / "s").mkdir(parents=True)
    (store / "sources" / "s" / "tags.json").write_text('{"repo v1": "mine"}')
    assert import_artifacts(bundle, store) == ["sources/s/d1", "wheels/p/k1"]
    assert json.loads((store / "sources/s/tags.json").read_text()) == {"repo v1": "mine", "repo v2": "c2"}
    assert import_artifacts(bundle, store) == []


def test_a_flat_index_has_each_package_of_the_files_once_at_its_place() -> None:
    entry = "Package: {0}\nVersion: {1}\nDepends: libc6 (>= 2.34)\nFilename: pool/main/{0}.deb\nSHA256: 1\n"
    text = "\n".join(entry.format(*item) for item in (("a", "1:2.0-1"), ("a", "1:2.0-1"), ("a", "1.9"), ("b", "3")))
    assert flat_index(text, ["a_1%3a2.0-1_amd64.deb", "b_3_all.deb"]) == (
        "Package: a\nVersion: 1:2.0-1\nDepends: libc6 (>= 2.34)\nFilename: ./a_1%3a2.0-1_amd64.deb\nSHA256: 1\n\n"
        "Package: b\nVersion: 3\nDepends: libc6 (>= 2.34)\nFilename: ./b_3_all.deb\nSHA256: 1\n\n"
    )


@pytest.mark.parametrize("damage_it", [None, "altered", "missing"])
def test_a_file_that_was_damaged_on_the_host_is_told_and_goes(tmp_path: Path, damage_it: str | None) -> None:
    root = small(tmp_path / "a b")
    files = sorted(root.glob("files/*/*.whl"))
    sums = "".join(f"{path.parent.name}  {path}\n" for path in files)
    if damage_it == "altered":
        files[0].write_text("x")
    elif damage_it == "missing":
        files[0].unlink()
    done = subprocess.run(["sh", "-c", f"{checked(sums)}; echo on"], capture_output=True, text=True, check=False)
    assert (done.returncode, files[0].parent.exists(), files[1].exists()) == (
        1 if damage_it else 0,
        not damage_it,
        True,
    )
    assert ("run again" in done.stdout, "on" in done.stdout.splitlines()) == (bool(damage_it), not damage_it)
