"""What reaches a host: surveys, environment files, units, installer calls, patches, releases."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.units import Unit
from lmcache_fleet import survey
from lmcache_fleet.envfile import parse_env, render_env
from lmcache_fleet.failures import explain
from lmcache_fleet.installer import install_call, package_changes
from lmcache_fleet.layout import Layout
from lmcache_fleet.patches import apply_patch
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import PackagesStep, Patch, ServiceStep, VenvStep
from lmcache_fleet.release import HostKey, HostReleases, ReleaseState, choose_target, release_spec
from lmcache_fleet.shell import program_source, write_file
from lmcache_fleet.units import render_units, service_files, unit_digest
from operations.release import expendable
from operations.service import unit_changes

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = Layout("/opt/x")


def shell(script: str) -> list[str]:
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()


def test_survey_parts_cannot_reach_into_one_another() -> None:
    commands = [
        "echo one",
        "printf 'no newline'",
        "exit 7",
        "echo '@@lmcache-fleet-end 0 0'",
        "cat",
        "cd /; false",
        "pwd",
    ]
    parts = survey.split(shell(survey.compose(commands)))
    assert [parts[i].exit_code for i in range(7)] == [0, 0, 7, 0, 0, 1, 0]
    assert parts[0].lines == ("one",)
    assert parts[1].lines == ("no newline",)
    assert parts[3].lines == ("@@lmcache-fleet-end 0 0",)
    assert parts[4].lines == ()
    assert parts[6].lines != ("/",)


def test_a_survey_cut_off_tells_which_parts_are_missing() -> None:
    lines = shell(survey.compose(["echo one", "echo two"]))
    parts = survey.split(lines[:5])
    assert parts[0].exit_code == 0
    assert 1 not in parts or parts[1].exit_code is None


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=30),
        min_size=1,
        max_size=4,
    )
)
def test_environment_files_read_the_same_in_a_shell(variables: dict[str, str]) -> None:
    variables = {f"T_{name}": value for name, value in variables.items()}
    text = render_env(variables)
    assert parse_env(text) == variables
    script = f"set -a\n{text}set +a\nenv -0"
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode()
    seen = dict(item.split("=", 1) for item in out.split("\0") if item)
    assert {name: seen[name] for name in variables} == variables


@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_environment_files_refuse_what_they_cannot_carry(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        render_env({"A": value})


def test_files_are_written_with_their_mode_and_leave_the_mask_alone(tmp_path: Path) -> None:
    target = tmp_path / "it's"
    text = '$HOME `x` "q"'
    shell(f"umask 022; {write_file(str(target), text, '0640')}; mkdir '{tmp_path}/after'")
    assert target.read_text() == text
    assert target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "after").stat().st_mode & 0o777 == 0o755


# Packages

ASCEND = PackagesStep(name="t", pins=["triton-ascend==3.2.2"], owns=["triton"], force_reinstall=True, no_deps=True)


def state(**values: Any) -> ReleaseState:
    return ReleaseState("r", **values)


def test_a_pin_is_judged_by_what_is_installed() -> None:
    step = PackagesStep(name="p", pins=["torch==2.10.0"], present=["numpy"])
    assert package_changes(step, state(distributions={"torch": ["2.10.0+cpu"], "numpy": ["1"]})) == []
    assert [str(change) for change in package_changes(step, state())] == ["+ torch: 2.10.0", "+ numpy: any version"]
    (twice,) = package_changes(step, state(distributions={"torch": ["2.10.0", "2.11.0"], "numpy": ["1"]}))
    assert "installed twice" in str(twice)


def test_community_triton_over_triton_ascend_is_seen() -> None:
    owned = {
        "triton": {
            "claimed_by": ["triton", "triton-ascend"],
            "wrong": ["triton/__init__.py is another file"],
            "wrong_count": 1,
        }
    }
    (change,) = package_changes(ASCEND, state(distributions={"triton-ascend": ["3.2.2"]}, owns=owned))
    assert "overwritten by triton" in str(change)
    owned["triton"]["wrong_count"] = 0
    assert package_changes(ASCEND, state(distributions={"triton-ascend": ["3.2.2"]}, owns=owned)) == []


def test_another_build_of_the_same_version_is_seen() -> None:
    step = PackagesStep(name="l", pins=["lmcache==0.4.4"], wheel_tag="py3-none-any")
    installed = {"lmcache": ["0.4.4"]}
    assert package_changes(step, state(distributions=installed, wheel_tags={"lmcache": ["py3-none-any"]})) == []
    assert package_changes(step, state(distributions=installed, wheel_tags={"lmcache": ["cp311-cp311-linux_x86_64"]}))


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_both_installers_are_given_every_flag(installer: Any) -> None:
    step = PackagesStep(
        name="p", pins=["a==1"], index_url="http://i", extra_index_urls=["http://e"], find_links=["/w"], no_index=True,
        pre=True, no_deps=True, no_binary=["a"], force_reinstall=True, build_isolation=False, constraints=["b<2"],
        trusted_hosts=["i"], retries=7, env={"X": "1"}, index_strategy="unsafe-best-match",
    )  # fmt: skip
    call = install_call(step, VenvStep(python="3.12", installer=installer), LAYOUT, LAYOUT.release("r"), "/uv")
    text = " ".join(call.argv)
    for flag in (
        "http://i",
        "http://e",
        "--find-links /w",
        "--no-index",
        "--no-deps",
        "--no-binary a",
        "--no-build-isolation",
    ):
        assert flag in text, flag
    assert "a==1" in call.argv
    assert call.files == {"requirements/p.constraint.txt": "b<2\n"}
    assert call.env["X"] == "1"
    expected = (
        ["--reinstall", "--prerelease allow", "unsafe-best-match"]
        if installer == "uv"
        else ["--force-reinstall", "--pre", "--retries 7"]
    )
    for flag in expected:
        assert flag in text, flag


# Patches

PATCH = Patch(path="f", find="old()\n", replace="new()\n", present=[r"^new\(\)$"], refs=["v0.4.*"])


def test_patches_are_applied_once_and_refused_with_the_nearest_lines() -> None:
    first = apply_patch(PATCH, "a\nold()\nb\n", "v0.4.4")
    assert (first.state, first.text) == ("applied", "a\nnew()\nb\n")
    assert "+new()" in first.diff
    assert apply_patch(PATCH, first.text, "v0.4.4").state == "present"
    assert apply_patch(PATCH, "x", "v0.5.0").state == "not-needed"
    refused = apply_patch(PATCH, "a\nolder()\nb\n", "v0.4.4")
    assert refused.state == "refused"
    assert "2: older()" in refused.nearest


# Releases

SPEC = {"steps": []}


def test_a_sealed_release_is_never_worked_on_again() -> None:
    whole: dict[str, list[str]] = {}
    first = choose_target(HostReleases(), SPEC, lambda _: [])
    assert (first.exists, first.complete) == (False, False)
    made = ReleaseState(first.name, first.spec)
    resumed = choose_target(HostReleases(releases={first.name: made}), SPEC, lambda _: whole.get("x", []))
    assert (resumed.name, resumed.exists, resumed.complete) == (first.name, True, False)
    sealed = ReleaseState(first.name, first.spec, sealed=True)
    host = HostReleases(current=first.name, releases={first.name: sealed})
    assert choose_target(host, SPEC, lambda _: []).complete
    mended = choose_target(host, SPEC, lambda _: ["torch is gone"])
    assert (mended.name, mended.exists) == (f"{first.name}-r2", False)
    assert "torch is gone" in mended.why
    host = HostReleases(
        current=first.name, releases={first.name: sealed, mended.name: ReleaseState(mended.name, first.spec)}
    )
    assert choose_target(host, SPEC, lambda _: ["torch is gone"]).name == mended.name


def test_another_soc_or_toolkit_is_another_release() -> None:
    playbook = check_document(read_playbook(ROOT / "playbooks/ascend.yaml"))
    one = HostKey("x86_64", "debian", "12", "2.36", "Ascend910B3", "9.1.0")
    other = HostKey("x86_64", "debian", "12", "2.36", "Ascend910B4", "9.1.0")
    assert release_spec(playbook, one) != release_spec(playbook, other)
    assert release_spec(playbook, one) == release_spec(playbook, one)


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=3), st.booleans()), unique_by=lambda item: item[0], max_size=8
    ),
    st.data(),
)
def test_retention_never_takes_what_serves_or_could_serve(names: list[tuple[str, bool]], data: st.DataObject) -> None:
    releases = {name: ReleaseState(name, sealed=sealed) for name, sealed in names}
    pick = st.sampled_from([*releases, None])
    host = HostReleases(current=data.draw(pick), previous=data.draw(pick), releases=releases)
    target = data.draw(st.sampled_from([*releases, "new"]))
    gone = expendable(host, target, keep=3)
    assert not {host.current, host.previous, target} & set(gone)
    assert len(releases) - len(gone) <= max(3, len({host.current, host.previous, target} & set(releases)))


# Units

SERVICE = ServiceStep.model_validate(
    {"model": "m", "connector": {"name": "C"}, "server": {}, "secrets": ["HF_TOKEN"], "args": ["--x", "it's"]}
)


def test_units_name_no_release_and_servers_listen_on_loopback_only() -> None:
    units = render_units(SERVICE, LAYOUT, ("HwHiAiUser",))
    files = service_files(SERVICE, "/m", LAYOUT.release("0123abcd"), "0123abcd", None)
    for text in units.values():
        assert "0123abcd" not in text
        assert "NoNewPrivileges=yes" in text
        assert "HF_TOKEN" not in text
        assert f"Environment=LMCACHE_FLEET_UNIT={unit_digest(text)}" in text
    server = files.texts["bin/lmcache-server"]
    assert server.count("127.0.0.1") == 2
    assert "--supported-transfer-mode" in server
    assert "PYTHONHASHSEED" in files.texts["env/service.env"]
    assert subprocess.run(["sh", "-n"], input=files.texts["bin/vllm"], text=True, check=False).returncode == 0


def test_a_unit_edited_by_hand_is_mended_without_a_restart() -> None:
    wanted = render_units(SERVICE, LAYOUT, ())
    running = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}

    def on_host(edit: str = "", release: str = "r") -> dict[str, Unit]:
        return {
            name: Unit(
                text + edit, running, {"LMCACHE_FLEET_RELEASE": release, "LMCACHE_FLEET_UNIT": unit_digest(text)}
            )
            for name, text in wanted.items()
        }

    assert unit_changes(wanted, on_host(), "r") == []
    edited = unit_changes(wanted, on_host("# by hand\n"), "r")
    assert len(edited) == 2
    assert not any(change.what.startswith("process") for change in edited)
    assert all(change.what.startswith("process") for change in unit_changes(wanted, on_host(release="old"), "r"))
    assert unit_changes(wanted, {}, "r")


# Failures


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("fatal error: runtime/rt_external_device.h: No such file or directory", "pkg_inc"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend", "lock"),
        ("ImportError: libatb.so: cannot open shared object file", "NNAL"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("sudo: 1 incorrect password attempt", "sudo"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory"),
    ],
)
def test_failures_are_explained(line: str, cause: str) -> None:
    assert cause in explain(["noise", f"\x1b[31m{line}\x1b[0m", "more noise"])[0]


def test_a_process_that_was_stopped_is_not_out_of_memory() -> None:
    assert "memory" not in explain(["the engine did not stop when asked and was killed"])[0]


# The release probe


def test_probe_reads_an_empty_prefix_and_a_release(tmp_path: Path) -> None:
    def probe() -> HostReleases:
        request = json.dumps({"prefix": str(tmp_path), "owns": {"triton": "triton-ascend"}})
        done = subprocess.run(
            ["python3", "-c", program_source("probe_releases.py"), request], capture_output=True, text=True, check=True
        )
        return HostReleases.from_json(json.loads(done.stdout))

    assert probe() == HostReleases()
    site = tmp_path / "releases/r1/venv/lib/python3.11/site-packages"
    info = site / "triton_ascend-3.2.2.dist-info"
    info.mkdir(parents=True)
    (site / "triton").mkdir()
    (site / "triton/__init__.py").write_text("community")
    (info / "RECORD").write_text("triton/__init__.py,sha256=AAAA,1\n")
    (tmp_path / "releases/r1/release.json").write_text('{"spec": "s"}')
    (tmp_path / "current").symlink_to("releases/r1")
    seen = probe()
    assert seen.current == "r1"
    assert seen.releases["r1"].distributions == {"triton-ascend": ["3.2.2"]}
    assert seen.releases["r1"].owns["triton"]["wrong_count"] == 1
