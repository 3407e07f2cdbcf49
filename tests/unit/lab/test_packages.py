"""The stand-in packages and repositories, and the server, without a host and without a network."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import services
from lab.packages import catalog, model, repositories, third_party, wheel

ARCH = platform.machine()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return catalog.build(tmp_path_factory.mktemp("wheels"))


def metadata(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return archive.read(name).decode().splitlines()


def find(wheels: dict[str, list[Path]], index: str, start: str) -> Path:
    return next(path for path in wheels[index] if path.name.startswith(start))


def test_wheels_are_the_same_each_time_and_their_record_is_true(wheels: dict[str, list[Path]], tmp_path: Path) -> None:
    again = {path.name: path.read_bytes() for paths in catalog.build(tmp_path).values() for path in paths}
    for paths in wheels.values():
        for path in paths:
            assert path.read_bytes() == again[path.name], path.name
            with zipfile.ZipFile(path) as archive:
                record = next(name for name in archive.namelist() if name.endswith("dist-info/RECORD"))
                rows = list(csv.reader(archive.read(record).decode().splitlines()))
                assert {row[0] for row in rows} == set(archive.namelist())
                for name, digest, size in rows:
                    if digest:
                        data = archive.read(name)
                        found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                        assert (digest, size) == (f"sha256={found}", str(len(data)))


def test_the_traps_are_in_the_metadata(wheels: dict[str, list[Path]]) -> None:
    vllm = metadata(find(wheels, catalog.MAIN, "vllm-0.23.0"))
    plugin = metadata(find(wheels, catalog.MAIN, "vllm_ascend-0.23.0"))
    npu = metadata(find(wheels, catalog.MAIN, "torch_npu-"))
    assert "Requires-Dist: torch==2.11.0" in vllm
    assert {"Requires-Dist: torch==2.10.0", "Requires-Dist: triton-ascend==3.2.2"} <= set(plugin)
    assert ("Requires-Dist: torch==2.10.0+cpu" in npu) == (ARCH == "x86_64")
    # the vendor's triton and torch's CPU build are on other indexes than the rest
    assert not any(path.name.startswith("triton_ascend") for path in wheels[catalog.MAIN])
    assert [path.name.split("-")[1] for path in wheels[catalog.CPU]] == ["2.10.0+cpu"]


def test_both_tritons_own_the_same_files_with_other_content(wheels: dict[str, list[Path]]) -> None:
    with (
        zipfile.ZipFile(find(wheels, catalog.MAIN, "triton-3.5.1")) as community,
        zipfile.ZipFile(find(wheels, catalog.ASCEND, "triton_ascend-3.2.2")) as vendor,
    ):
        both = set(community.namelist()) & set(vendor.namelist())
        assert {"triton/__init__.py", "triton/language/__init__.py"} <= both
        assert community.read("triton/__init__.py") != vendor.read("triton/__init__.py")
        assert b"constexpr_function" in vendor.read("triton/language/__init__.py")
        assert b"constexpr_function" not in community.read("triton/language/__init__.py")


def test_a_wheel_under_another_tag_keeps_a_true_record(tmp_path: Path) -> None:
    pure = wheel.write_wheel(tmp_path, "lmcache", "0.4.4", {"lmcache/__init__.py": b""})
    made = catalog.cuda_trap(tmp_path / "cuda", pure, "x86_64")
    assert [path.name for path in made][1] == "lmcache-0.4.4-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert catalog.cuda_trap(tmp_path / "cuda", pure, "aarch64") == []
    with zipfile.ZipFile(made[1]) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        wheel_file = archive.read("lmcache-0.4.4.dist-info/WHEEL").decode()
        assert "lmcache/c_ops.cpython-311-x86_64-linux-gnu.so" in names
    assert "Root-Is-Purelib: false" in wheel_file
    assert "\n\n" not in wheel_file


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_repositories_have_the_same_commits_each_time_and_the_places_to_patch(tmp_path: Path) -> None:
    commits = repositories.build(tmp_path / "a")
    assert commits == repositories.build(tmp_path / "b")
    bare = str(tmp_path / "a/LMCache-Ascend.git")
    assert git("-C", bare, "tag").split() == ["v0.4.3", "v0.4.4", "v0.5.6"]
    cmake = git("-C", bare, "show", "v0.4.4:csrc/hixl/CMakeLists.txt")
    assert "${ASCEND_CANN_PACKAGE_PATH}/${ARCH_SUBDIR}/pkg_inc/runtime" in cmake
    assert not re.search(r"/pkg_inc\s*$", cmake, re.M)
    connector = git("-C", bare, "show", "v0.4.4:lmcache_ascend/integration/vllm/lmcache_ascend_connector_v1.py")
    assert (
        "class LMCacheAscendConnectorV1Dynamic(LMCacheConnectorV1Dynamic):\n"
        '    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole) -> None:\n'
        "        super().__init__(vllm_config=vllm_config, role=role)\n"
    ) in connector
    newer = git("-C", bare, "show", "dsv4_support_045:csrc/hixl/CMakeLists.txt")
    assert re.search(r"/pkg_inc\s*$", newer, re.M)
    links = git("-C", bare, "ls-tree", "v0.4.4", "third_party/")
    assert f"160000 commit {commits['hcomm-8.5.0']}\tthird_party/hcomm" in links
    assert "hcomm" not in git("-C", bare, "ls-tree", "v0.4.3", "third_party/")


def test_connectors_import_the_patches_before_lmcache() -> None:
    """A formatter that sorts imports would break this in silence."""
    here = Path(catalog.__file__).parent
    for path in [*here.glob("lmcache_ascend/*/lmcache_ascend/integration/vllm/lmcache_ascend_connector*.py")]:
        text = path.read_text()
        assert text.index("\nimport lmcache_ascend") < text.index("\nfrom lmcache."), path


def test_model_files_are_a_model() -> None:
    files = model.files("Qwen/Qwen2.5-0.5B-Instruct")
    assert json.loads(files["config.json"])["num_hidden_layers"] == 24
    size = int.from_bytes(files["model.safetensors"][:8], "little")
    header = json.loads(files["model.safetensors"][8 : 8 + size])
    assert header["lab.weight"]["data_offsets"][1] == len(files["model.safetensors"]) - 8 - size
    vocab = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(259))


# --- the server ---


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A running server with stand-ins only: nothing is fetched."""
    monkeypatch.setenv("LMCACHE_FLEET_LAB", str(tmp_path / "cache"))
    monkeypatch.setattr(third_party, "fetch", lambda *_: [])
    state = tmp_path / "state"
    data = services.start(state, "127.0.0.1:0")
    yield state, data
    services.stop(state)


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    env.update(PIP_CONFIG_FILE=os.devnull, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_CACHE_DIR="1")
    argv = [sys.executable, "-m", "pip", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_server_serves_indexes_and_faults_and_writes_down_who_asked(
    served: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    state, data = served
    again = services.start(state, "127.0.0.1:0")
    assert again == data, "a second start finds the first"
    out = tmp_path / "out"
    index = ["--index-url", data["index_url"], "--no-deps", "--dest", str(out)]
    assert pip("download", *index, "lab-extra==1.0").returncode == 0
    assert (out / "lab_extra-1.0-py3-none-any.whl").exists()
    status, page = get(data["index_url"] + "/vllm/")
    link = re.search(rb'href="(/files/[^#]+)#sha256=([0-9a-f]{64})" data-requires-python', page)
    assert status == 200
    assert link
    root = data["index_url"].removesuffix("/simple")
    assert hashlib.sha256(get(root + link[1].decode())[1]).hexdigest() == link[2].decode()
    assert b"Name: vllm" in get(root + link[1].decode() + ".metadata")[1]
    assert get(data["index_url"] + "/triton-ascend/")[0] == 404, "only the vendor's index has it"
    assert get(data["ascend_index_url"] + "/triton-ascend/")[0] == 200

    services.control(state, corrupt=["lab_extra-1.1"])
    failed = pip("download", *index, "lab-extra==1.1")
    assert failed.returncode != 0
    assert "DO NOT MATCH THE HASHES" in failed.stderr
    services.control(state, hide_files=["lab_extra-1.1"])
    assert "No matching distribution found for lab-extra==1.1" in pip("download", *index, "lab-extra==1.1").stderr
    services.control(state, down=["ascend/simple"])
    assert get(data["ascend_index_url"] + "/triton-ascend/")[0] == 503
    assert get(data["index_url"] + "/vllm/")[0] == 200
    services.control(state)
    assert pip("download", *index, "lab-extra==1.1").returncode == 0
    with pytest.raises(ValueError, match="no such switch: dwon"):
        services.control(state, dwon=True)
    seen = [entry for entry in services.accesses(state) if entry["path"].startswith("/files/lab_extra-1.0")]
    assert {(entry["client"], entry["status"]) for entry in seen} == {("127.0.0.1", 200)}


def test_server_gives_shallow_clones_with_submodules(served: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    _, data = served
    for name in ("LMCache-Ascend.git", "LMCache/LMCache-Ascend.git"):
        work = tmp_path / name.replace("/", "-")
        url = f"{data['git_url']}/{name}"
        git("clone", "--quiet", "-c", "advice.detachedHead=false", "--depth=1", "--branch=v0.4.4", url, str(work))
        git("-C", str(work), "submodule", "--quiet", "update", "--init", "--recursive")
        assert git("-C", str(work), "describe", "--tags", "--exact-match").strip() == "v0.4.4"
        assert "8.5.0" in (work / "third_party/hcomm/src/pub_inc/hcomm_version.h").read_text()
        assert git("-C", str(work), "rev-list", "--count", "HEAD").strip() == "1"


def test_server_is_a_hub(served: tuple[Path, dict[str, Any]]) -> None:
    _, data = served
    name = next(iter(model.MODELS))
    listing = json.loads(get(f"{data['hf_url']}/api/models/{name}")[1])
    assert "config.json" in {entry["rfilename"] for entry in listing["siblings"]}
    pinned = "7" * 40
    assert json.loads(get(f"{data['hf_url']}/api/models/{name}/revision/{pinned}")[1])["sha"] == pinned
    status, body = get(f"{data['hf_url']}/{name}/resolve/{listing['sha']}/config.json")
    assert (status, body) == (200, model.files(name)["config.json"])
    assert get(f"{data['hf_url']}/nobody/nothing/resolve/main/config.json")[0] == 404


def test_stop_ends_the_server_and_nothing_happens_without_one(
    served: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    state, data = served
    services.stop(state)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(data["index_url"], timeout=5)
    services.stop(state)
    services.stop(tmp_path / "never")
