"""Pins resolved before a host is touched, against a small index with real wheels; and that uv and pip install the same."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmcache_fleet import resolution
from lmcache_fleet.cli import main
from lmcache_fleet.installer import install_call
from lmcache_fleet.layout import Layout
from lmcache_fleet.lock import read_lock
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep
from lmcache_fleet.problems import InputError
from lmcache_fleet.resolution import (
    Locked,
    Platform,
    Unresolved,
    default_index,
    needs_host,
    parse_locked,
    resolve_step,
    unresolved,
)
from tests.unit.local_index import LocalIndex

UV = str(Path(sys.executable).parent / "uv")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
X86 = Platform("x86_64", "3.12", "2.36")
ARM = Platform("aarch64", "3.12", "2.36")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalIndex]:
    """The traps of the Ascend quickstart in small: two torches, a +cpu build on one index alone, two owners of triton/."""
    made = LocalIndex(tmp_path_factory.mktemp("index"))
    made.add("torch", "2.11.0", ["triton==3.6.0"])
    made.add("torch", "2.10.0", ["triton==3.5.1"])
    made.add("torch", "2.10.0+cpu", ["triton==3.5.1"], index="cpu")
    for version in ("3.5.1", "3.6.0"):
        made.add(
            "triton",
            version,
            files={"triton/__init__.py": f"owner = 'community {version}'\n".encode(), "triton/only.py": b""},
        )
    made.add("triton-ascend", "3.2.2", index="ascend", files={"triton/__init__.py": b"owner = 'ascend'\n"})
    made.add("engine", "1.0", ["torch==2.11.0", "helper>=1"])
    made.add("engine-ascend", "1.0", ["torch-npu==2.10.0", "triton-ascend==3.2.2"])
    made.add("torch-npu", "2.10.0", ["torch==2.10.0+cpu"], index="ascend", tag="py3-none-manylinux_2_28_x86_64")
    made.add("helper", "1.0")
    made.add("helper", "1.1")
    made.add("helper", "2.0rc1")
    made.add("newer", "1.0", python=">=3.13")
    made.add("shadowed", "2.0")
    made.add("shadowed", "1.0", index="cpu")
    with made.serving():
        yield made


def step(index: LocalIndex, *pins: str, **fields: Any) -> PackagesStep:
    base = {"name": "p", "pins": list(pins), "index_url": index.url(), "retries": 0}
    return PackagesStep.model_validate({**base, **fields})


def playbook(*steps: PackagesStep, **venv: Any) -> Playbook:
    first = VenvStep.model_validate({"python": "3.12", **venv})
    return Playbook.model_construct(name="t", steps=[first, *steps], vars={})


def refusal(wanted: PackagesStep, platform: Platform = X86) -> str:
    with pytest.raises(Unresolved) as caught:
        resolve_step(wanted, platform)
    return f"{caught.value.step}: {caught.value.cause}; {caught.value.remedy}"


def test_all_that_would_be_installed_is_resolved_with_hashes(index: LocalIndex) -> None:
    found = resolve_step(step(index, "engine==1.0"), X86, hashes=True)
    assert [item.requirement for item in found] == ["engine==1.0", "helper==1.1", "torch==2.11.0", "triton==3.6.0"]
    assert all(item.hashes[0].startswith("sha256:") for item in found)
    plain = resolve_step(step(index, "engine==1.0", no_deps=True), X86)
    assert plain == (Locked("engine==1.0"),)


def test_what_is_there_already_is_preferred_where_it_fits(index: LocalIndex) -> None:
    found = resolve_step(step(index, present=["helper"]), X86, prefer=["helper==1.0"])
    assert found == (Locked("helper==1.0"),)
    assert resolve_step(step(index, present=["helper>1.0"]), X86, prefer=["helper==1.0"]) == (Locked("helper==1.1"),)


def test_a_pin_that_no_index_has_is_named_with_the_indexes(index: LocalIndex) -> None:
    text = refusal(step(index, "engine==9.9", extra_index_urls=[index.url("cpu")]))
    assert text.startswith("p: the pins can't be resolved from the given indexes, for x86_64 and Python 3.12: ")
    assert "engine==9.9" in text
    assert f"Asked: {index.url()}, {index.url('cpu')}" in text


def test_an_index_that_is_down_is_named(index: LocalIndex) -> None:
    text = refusal(step(index, "engine==1.0", index_url="http://someone:secret@127.0.0.1:9/simple"))
    assert "can't be reached" in text
    assert "http://127.0.0.1:9/simple" in text
    assert "resolve_first: false" in text
    assert "secret" not in text


def test_an_architecture_without_a_wheel_is_named(index: LocalIndex) -> None:
    wanted = step(index, "torch-npu==2.10.0", extra_index_urls=[index.url("ascend")], no_deps=True)
    assert resolve_step(wanted, X86)
    assert "aarch64" in refusal(wanted, ARM)


def test_without_the_index_of_the_cpu_build_the_vendor_step_cannot_be_had(index: LocalIndex) -> None:
    urls = [index.url("ascend")]
    assert "torch==2.10.0+cpu" in refusal(
        step(index, "engine-ascend==1.0", extra_index_urls=urls, index_strategy="unsafe-best-match")
    )
    whole = step(
        index, "engine-ascend==1.0", extra_index_urls=[*urls, index.url("cpu")], index_strategy="unsafe-best-match"
    )
    assert Locked("torch==2.10.0+cpu") in resolve_step(whole, X86)


def test_another_python_is_another_answer(index: LocalIndex) -> None:
    assert "Python" in refusal(step(index, "newer==1.0"))
    assert resolve_step(step(index, "newer==1.0"), Platform("x86_64", "3.13"))


def test_pip_takes_the_best_of_all_indexes_whatever_the_strategy_says(index: LocalIndex) -> None:
    wanted = step(index, "shadowed==2.0", extra_index_urls=[index.url("cpu")])
    with pytest.raises(Unresolved):
        resolve_step(wanted, X86)
    assert resolve_step(wanted, X86, is_pip=True)


def test_each_step_is_asked_once_a_process_and_every_failure_is_told(index: LocalIndex) -> None:
    good, bad, also = (
        step(index, "engine==1.0", name="a"),
        step(index, "helper==9", name="b"),
        step(index, "torch==9", name="c"),
    )
    wanted = playbook(good, bad, also)
    assert [item.step for item in unresolved(wanted, X86)] == ["b", "c"]
    asked = len(index.asked)
    assert [item.step for item in unresolved(wanted, X86)] == ["b", "c"]
    assert len(index.asked) == asked
    assert unresolved(wanted, X86, [good]) == ()
    assert [item.step for item in unresolved(wanted, ARM, [bad])] == ["b"]
    assert len(index.asked) >= asked


@pytest.mark.parametrize(
    "fields",
    [
        {"machine_wheels": True},
        {"find_links": ["/srv/wheels"]},
        {"index_url": "file:///srv/simple"},
        {"requirements": {"source": "s", "files": ["build.txt"]}},
    ],
)
def test_steps_that_take_what_only_a_host_has_are_not_asked_about(index: LocalIndex, fields: dict[str, Any]) -> None:
    wanted = step(index, "nowhere==1", **fields)
    assert needs_host(wanted)
    assert unresolved(playbook(wanted), X86) == ()


@pytest.mark.parametrize(
    ("arch", "glibc", "name"),
    [("x86_64", "2.36", "x86_64-manylinux_2_36"), ("aarch64", "2.30", "aarch64-manylinux_2_28"), ("x86_64", "2.99", "x86_64-manylinux_2_40"),
     ("x86_64", None, "x86_64-unknown-linux-gnu"), ("aarch64", "2.5", "aarch64-unknown-linux-gnu"), ("x86_64", "odd", "x86_64-unknown-linux-gnu")],
)  # fmt: skip
def test_a_platform_has_the_name_that_uv_knows(arch: str, glibc: str | None, name: str) -> None:
    assert Platform(arch, "3.12", glibc).uv_name == name


def test_uv_knows_every_name_that_we_give(index: LocalIndex) -> None:
    for minor in resolution._GLIBC_MINORS[::4]:
        assert resolve_step(step(index, "helper==1.0"), Platform("aarch64", "3.12", f"2.{minor}"))


def test_a_requirements_file_is_read() -> None:
    text = "a==1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:aa\nb[x]==2.0+cpu  # via a\nc @ https://e.x/c.whl#sha256=1\n-i http://x\n"
    assert parse_locked(text) == (
        Locked("a==1", ("sha256:aa", "sha256:bb")),
        Locked("b[x]==2.0+cpu"),
        Locked("c @ https://e.x/c.whl#sha256=1"),
    )


# --- uv and pip ---

_INSTALLED = """
import importlib.metadata as m, json, pathlib, sys
found = {d.metadata["Name"]: d.version for d in m.distributions()}
for name in ("pip", "setuptools", "uv"):
    found.pop(name, None)
import triton
print(json.dumps({"found": found, "triton": triton.owner}, sort_keys=True))
"""


def installed(installer: str, steps: list[PackagesStep], folder: Path) -> dict[str, Any]:
    """What our own calls of one installer leave in a fresh environment."""
    layout = Layout(str(folder))
    release = layout.release("r")
    Path(release.root).mkdir(parents=True)
    venv = VenvStep.model_validate({"python": PYTHON, "installer": installer})
    bare = ["--without-pip"] if installer == "uv" else []
    subprocess.run([sys.executable, "-m", "venv", *bare, release.venv], check=True)
    for item in steps:
        call = install_call(item, venv, layout, release, UV)
        for path, text in call.files.items():
            target = Path(release.file(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        done = subprocess.run(
            call.argv,
            env={"PATH": "/usr/bin:/bin", **call.env},
            cwd=release.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(
        subprocess.run([release.python, "-c", _INSTALLED], capture_output=True, text=True, check=True).stdout
    )
    return seen


def three_calls(index: LocalIndex) -> list[PackagesStep]:
    extra = [index.url("ascend"), index.url("cpu")]
    return [
        step(index, "engine==1.0", name="engine"),
        step(index, "engine-ascend==1.0", name="engine-ascend", extra_index_urls=extra, index_strategy="unsafe-best-match"),
        step(index, "triton-ascend==3.2.2", name="triton-ascend", extra_index_urls=extra[:1], force_reinstall=True, no_deps=True, index_strategy="unsafe-best-match"),
    ]  # fmt: skip


def test_uv_and_pip_leave_the_same_installed_set_and_the_last_call_owns_triton(
    index: LocalIndex, tmp_path: Path
) -> None:
    seen = {installer: installed(installer, three_calls(index), tmp_path / installer) for installer in ("uv", "pip")}
    assert seen["uv"] == seen["pip"]
    assert seen["uv"]["triton"] == "ascend"
    assert seen["uv"]["found"]["torch"] == "2.10.0+cpu"
    assert {"engine", "engine-ascend", "helper", "torch-npu", "triton", "triton-ascend"} <= set(seen["uv"]["found"])


# --- the lock ---


LOCKED = """\
apiVersion: lmcache-fleet/v1
name: t
requires: {{architectures: [x86_64]}}
vars: {{engine: '1.0'}}
steps:
  - venv: {{python: '{python}'}}
  - packages: {{name: engine, pins: ['engine=={{{{ engine }}}}'], index_url: '{url}', retries: 0}}
  - packages: {{name: more, present: [helper], index_url: '{url}', retries: 0}}
  - packages: {{name: machine, pins: ['gone==1'], machine_wheels: true}}
"""


@pytest.fixture
def locked(tmp_path: Path, index: LocalIndex) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(LOCKED.format(python=PYTHON, url=index.url()))
    done = CliRunner().invoke(main, ["lock", str(path)])
    assert done.exit_code == 0, done.output
    assert "x86_64 machine: left out" in done.output
    return path


def load(path: Path, **given: Any) -> Playbook:
    read_playbook.cache_clear()
    read_lock.cache_clear()
    return check_document(read_playbook(path), given)


def test_a_lock_holds_all_that_is_installed_with_hashes(locked: Path, index: LocalIndex) -> None:
    engine, more, machine = load(locked).of_kind(PackagesStep)
    assert list(engine.locked) == ["engine==1.0", "helper==1.1", "torch==2.11.0", "triton==3.6.0"]
    assert all(value.startswith("sha256:") for values in engine.locked.values() for value in values)
    assert list(more.locked) == ["helper==1.1"]
    assert machine.locked == {}
    again = locked.with_name("t.lock.yaml").read_text()
    assert CliRunner().invoke(main, ["lock", str(locked)]).exit_code == 0
    assert locked.with_name("t.lock.yaml").read_text() == again


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_with_a_lock_a_newer_release_changes_nothing_and_another_file_is_refused(
    locked: Path, index: LocalIndex, tmp_path: Path, installer: str
) -> None:
    steps = load(locked).of_kind(PackagesStep)[:1]
    index.add("helper", "1.9")
    try:
        assert installed(installer, steps, tmp_path / "a")["found"]["helper"] == "1.1"
        index.add("helper", "1.1", files={"helper/__init__.py": b"import evil"})
        with pytest.raises(AssertionError, match=r"(?i)hash"):
            installed(installer, steps, tmp_path / "b")
    finally:
        index.add("helper", "1.1")
        index.remove("helper", "1.9")


def test_a_stale_lock_is_refused_where_and_why(locked: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"t\.lock\.yaml:\d+:\d+: architectures\.x86_64\.steps\.engine: the lock is of other pins.*lmcache-fleet lock",
    ):
        load(locked, engine="1.1")
    done = CliRunner().invoke(main, ["check", str(locked), "--set", "engine=1.1"])
    assert done.exit_code == 1
    text = locked.read_text()
    locked.write_text(text.replace("[x86_64]", "[aarch64]"))
    with pytest.raises(InputError, match="the lock has nothing for aarch64"):
        load(locked)
    locked.write_text(text.replace("name: more", "name: other"))
    with pytest.raises(InputError, match="the lock has no such step: helper"):
        load(locked)
    locked.write_text(text)
    locked.with_name("t.lock.yaml").write_text("steps: []\n")
    with pytest.raises(InputError, match="not a lock file"):
        load(locked)


def test_what_cannot_be_had_is_not_locked(tmp_path: Path, index: LocalIndex) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(LOCKED.format(python=PYTHON, url=index.url()))
    done = CliRunner().invoke(main, ["lock", str(path), "--set", "engine=9.9"])
    assert done.exit_code == 1
    assert "engine==9.9" in done.output
    assert not path.with_name("t.lock.yaml").exists()


def test_uv_says_what_its_default_index_is() -> None:
    assert re.fullmatch(r"https://[a-z.]+/simple", default_index())
