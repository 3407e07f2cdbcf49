"""Installer calls, held against the installers' own option parsers; and what installed state lacks of a step."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.installer import InstallerCall, install_call, package_changes
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import PackagesStep, VenvStep
from lmcache_fleet.release import ReleaseState

LAYOUT = Layout("/opt/x")
RELEASE = LAYOUT.release("r1")
UV = str(Path(sys.executable).parent / "uv")


def call(
    installer: str, machine: tuple[str, ...] = (), requirements: tuple[str, ...] = (), **fields: Any
) -> InstallerCall:
    step = PackagesStep.model_validate({"name": "p", "pins": ["a==1", "b==2"], "retries": 2, **fields})
    venv = VenvStep.model_validate({"python": "3.12", "installer": installer})
    return install_call(step, venv, LAYOUT, RELEASE, "/t/uv", machine, requirements)


UV_HEAD = ["/t/uv", "pip", "install", "--python", "/opt/x/releases/r1/venv/bin/python"]
PIP_HEAD = ["/opt/x/releases/r1/venv/bin/python", "-m", "pip", "install", "--retries", "2"]
REQUIREMENTS = "/opt/x/releases/r1/requirements/p"

FLAGS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, [], []),
    ({"index_url": "http://i"}, ["--default-index", "http://i"], ["--index-url", "http://i"]),
    ({"extra_index_urls": ["u", "v"]}, ["--index", "u", "--index", "v"], ["--extra-index-url", "u", "--extra-index-url", "v"]),
    ({"find_links": ["/w", "/v"]}, ["--find-links", "/w", "--find-links", "/v"], ["--find-links", "/w", "--find-links", "/v"]),
    ({"trusted_hosts": ["h"]}, ["--allow-insecure-host", "h"], ["--trusted-host", "h"]),
    ({"no_index": True}, ["--no-index"], ["--no-index"]),
    ({"index_strategy": "unsafe-best-match"}, ["--index-strategy", "unsafe-best-match"], []),
    ({"index_strategy": "first-index"}, ["--index-strategy", "first-index"], []),
    ({"index_strategy": "unsafe-first-match"}, ["--index-strategy", "unsafe-first-match"], []),
    ({"pre": True}, ["--prerelease", "allow"], ["--pre"]),
    ({"no_deps": True}, ["--no-deps"], ["--no-deps"]),
    ({"no_binary": ["a", "b"]}, ["--no-binary", "a", "--no-binary", "b"], ["--no-binary", "a", "--no-binary", "b"]),
    ({"only_binary": ["a"]}, ["--only-binary", "a"], ["--only-binary", "a"]),
    ({"force_reinstall": True}, ["--reinstall"], ["--force-reinstall"]),
    ({"build_isolation": False}, ["--no-build-isolation"], ["--no-build-isolation"]),
    ({"constraints": ["c<2"]}, ["--constraint", f"{REQUIREMENTS}.constraint.txt"], ["--constraint", f"{REQUIREMENTS}.constraint.txt"]),
    ({"compile_bytecode": True}, ["--compile-bytecode"], []),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "uv", "pip"), FLAGS, ids=lambda value: str(value)[:40])
def test_each_field_is_its_flag_and_nothing_else(fields: dict[str, Any], uv: list[str], pip: list[str]) -> None:
    assert list(call("uv", **fields).argv) == [*UV_HEAD, *uv, "--", "a==1", "b==2"]
    assert list(call("pip", **fields).argv) == [*PIP_HEAD, *pip, "a==1", "b==2"]


def everything(installer: str) -> InstallerCall:
    fields: dict[str, Any] = {}
    for given, _, _ in FLAGS:
        fields |= given
    return call(installer, **fields, require_hashes=True, hashes={"a==1": ["sha256:x"]}, overrides=["o==1"])


def test_uv_knows_every_flag_that_it_is_given() -> None:
    if not Path(UV).is_file():
        pytest.skip("needs uv")
    # `--help` is acted on where it stands, after everything before it was understood.
    options = list(everything("uv").argv[1:])
    done = subprocess.run([UV, *options, "--help"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    broken = subprocess.run([UV, *options, "--no-such-flag", "--help"], capture_output=True, timeout=20, check=False)
    assert broken.returncode != 0


def test_pip_is_not_given_overrides() -> None:
    assert "--override" not in everything("pip").argv


def test_files_are_written_beside_the_call() -> None:
    assert call("uv", overrides=["o==1", "x ; python_version > '3'"], constraints=["c<2"]).files == {
        "requirements/p.override.txt": "o==1\nx ; python_version > '3'\n",
        "requirements/p.constraint.txt": "c<2\n",
    }
    assert call("uv").files == {}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_hashes_go_by_file(installer: str) -> None:
    made = call(installer, require_hashes=True, hashes={"a==1": ["sha256:x", "sha256:y"]})
    assert made.argv[-3:] == ("--require-hashes", "-r", f"{REQUIREMENTS}.txt")
    assert made.files["requirements/p.txt"] == "a==1 \\\n    --hash=sha256:x \\\n    --hash=sha256:y\nb==2\n"
    assert not {"a==1", "b==2"} & set(made.argv)


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_what_is_at_hand_is_installed_in_place_of_the_pins(installer: str) -> None:
    made = call(installer, requirements=("/b/a-1.whl",), require_hashes=True)
    assert made.argv[-1] == "/b/a-1.whl"
    assert "--require-hashes" not in made.argv
    assert "a==1" not in made.argv


def test_the_machines_wheels_are_offered_only_where_asked() -> None:
    assert "/m" not in call("uv", ("/m",)).argv
    argv = call("uv", ("/m",), machine_wheels=True, find_links=["/w"]).argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--find-links"] == ["/w", "/m"]


def test_the_environment_lets_no_setting_of_the_host_in() -> None:
    uv, pip = call("uv", env={"NO_CUDA_EXT": 1}), call("pip", env={"PIP_NO_INPUT": "0"})
    assert uv.env["UV_NO_CONFIG"] == "1"
    assert uv.env["UV_CACHE_DIR"] == "/opt/x/cache/uv"
    assert uv.env["UV_HTTP_RETRIES"] == "2"
    assert uv.env["NO_CUDA_EXT"] == "1"
    assert pip.env["PIP_CONFIG_FILE"] == "/dev/null"
    assert pip.env["PIP_NO_INPUT"] == "0"


# What is lacking


def lacks(installed: dict[str, list[str]], *, before: dict[str, list[str]] | None = None, **fields: Any) -> list[str]:
    more = {name: fields.pop(name) for name in ("seen", "tags") if name in fields}
    state = ReleaseState("r", distributions=installed, owns=more.get("seen", {}), wheel_tags=more.get("tags", {}))
    old = ReleaseState("o", distributions=before) if before is not None else None
    changes = package_changes(PackagesStep.model_validate({"name": "p", **fields}), state, old)
    return [str(change) + (" kept" if change.kept else "") for change in changes]


@pytest.mark.parametrize(
    ("pin", "version", "fits"),
    [
        ("torch==2.10.0", "2.10.0", True),
        ("torch==2.10.0", "2.10.0+cpu", True),
        ("torch==2.10.0", "2.10.0+cu126", True),
        ("torch==2.10.0+cpu", "2.10.0+cpu", True),
        ("torch==2.10.0+cpu", "2.10.0", False),
        ("torch==2.10.0+cpu", "2.10.0+cu126", False),
        ("torch==2.10.0", "2.10.1", False),
        ("torch==2.10", "2.10.0", True),
        ("torch==2.10.0rc1", "2.10.0rc1", True),
        ("torch==2.10.0", "2.10.0rc1", False),
        ("torch==2.10.0", "2.10.0.post1", False),
        ("torch==2.10.0", "2.10.0.dev1+gabc", False),
        ("torch===2.10.0", "2.10.0", True),
        ("Torch==2.10.0", "2.10.0", True),
        ("torch[extra]==2.10.0", "2.10.0", True),
        ("torch==2.10.0", "not-a-version", False),
    ],
)
def test_a_pin_against_an_installed_version(pin: str, version: str, fits: bool) -> None:
    assert (lacks({"torch": [version]}, pins=[pin]) == []) is fits


def test_names_are_compared_as_packaging_does() -> None:
    assert lacks({"vllm-ascend": ["1"], "a-b-c": ["2"]}, pins=["vllm_ascend==1"], present=["A.B_C"]) == []


def test_what_is_missing_wrong_or_double_is_shown() -> None:
    assert lacks({}, pins=["a==1"], present=["b", "c>=2"]) == ["+ a: 1", "+ b: any version", "+ c: >=2"]
    assert lacks({"a": ["2"]}, pins=["a==1"]) == ["~ a: 2 → 1"]
    assert lacks({"a": ["1", "1"]}, pins=["a==1"]) == ["~ a: 1 and 1 → 1 (installed twice)"]
    assert lacks({"a": ["1", "2"]}, pins=["a==1"]) == ["~ a: 1 and 2 → 1 (installed twice)"]


def test_a_present_that_fits_stays_and_one_that_does_not_is_changed() -> None:
    for version in ("77.0.3", "80.9"):
        assert lacks({"setuptools": [version]}, present=["setuptools>=77.0.3,<81"]) == []
    assert lacks({"setuptools": ["81.0"]}, present=["setuptools>=77.0.3,<81"])
    assert lacks({"numpy": ["3.0rc1"]}, present=["numpy"]) == []


def test_a_new_release_shows_the_serving_ones_versions() -> None:
    assert lacks({}, before={"a": ["1"], "b": ["1"]}, pins=["a==1", "b==2"]) == ["~ a: 1 → 1 kept", "~ b: 1 → 2"]
    assert lacks({}, before={"a": ["1", "2"]}, pins=["a==1"]) == ["~ a: 1 and 2 → 1"]
    # What is judged is the release itself: what another one has makes nothing whole.
    assert lacks({"a": ["2"]}, before={"a": ["1"]}, pins=["a==1"]) == ["~ a: 2 → 1"]


TRITON: dict[str, Any] = {"pins": ["triton-ascend==3.2.2"], "owns": ["triton"]}
HAS = {"triton-ascend": ["3.2.2"]}


def owned(count: int, *claimed: str) -> dict[str, Any]:
    return {"triton": {"claimed_by": list(claimed), "wrong": ["triton/x.py"] * count, "wrong_count": count}}


def test_files_of_another_package_over_the_owners_are_damage() -> None:
    assert lacks(HAS, seen=owned(0, "triton", "triton-ascend"), **TRITON) == []
    assert lacks(HAS, seen=owned(0, "triton-ascend"), **TRITON) == []
    (wrong,) = lacks(HAS, seen=owned(3, "triton", "triton-ascend"), **TRITON)
    assert wrong.startswith("~ files of triton/: 3 files not from triton-ascend (triton/x.py), overwritten by triton →")
    (unknown,) = lacks(HAS, seen=owned(1, "triton-ascend"), **TRITON)
    assert "overwritten by another package" in unknown
    for seen in ({}, owned(0, "triton"), owned(0)):
        (absent,) = lacks(HAS, seen=seen, **TRITON)
        assert "not installed" in absent


def test_a_missing_owner_is_told_before_its_files() -> None:
    assert lacks({}, seen=owned(3, "triton"), **TRITON) == ["+ triton-ascend: 3.2.2"]


def test_another_build_of_the_same_version_is_damage() -> None:
    step: dict[str, Any] = {"pins": ["lmcache==0.4.4"], "wheel_tag": "py3-none-any"}
    has = {"lmcache": ["0.4.4"]}
    assert lacks(has, tags={"lmcache": ["py2-none-any", "py3-none-any"]}, **step) == []
    assert "cp312" in lacks(has, tags={"lmcache": ["cp312-cp312-linux_x86_64"]}, **step)[0]
    assert "unknown" in lacks(has, **step)[0]


def test_a_requirement_that_its_marker_leaves_out_is_not_lacking_or_is_refused() -> None:
    assert lacks({}, present=["pywin32 ; sys_platform == 'never'"]) == []
