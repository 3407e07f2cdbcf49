"""The rollout's command line: what is wrong with it is said before any host is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from lmcache_fleet.cli_rollout import Span, quarter
from lmcache_fleet.repository import ROOT
from lmcache_fleet.rollout.journal import Begin, Journal, fleet_folder


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("0", 0), (7.0, 7)]
)
def test_times(text: object, seconds: float) -> None:
    assert Span().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "5 m", "m", "-5m", "5d"])
def test_times_that_make_no_sense(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a time"):
        Span().convert(text, None, None)


def test_at_least_one_host_may_be_out() -> None:
    assert [quarter(count) for count in (0, 1, 3, 4, 11, 500)] == [1, 1, 1, 1, 2, 125]


def called(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: pyinfra's command line makes blocking calls of its whole process yield."""
    return subprocess.run(
        [sys.executable, "-m", "lmcache_fleet.cli", *arguments],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "LMCACHE_FLEET_ARTIFACTS": str(place / "store")},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollout", "{inv}", "{deploy}", "--waves", "50%,10%"], "at least as large as the one before"),
        (["rollout", "{inv}", "{deploy}", "--limit", "fake9"], "matches no host"),
        (["rollout", "{inv}", "{deploy}", "--resume"], "no rollout of this fleet was begun from here"),
        (["rollback", "{inv}", "--wave", "3"], "the last rollout had 0 waves"),
        (["plan", "{inv}", "nowhere.py"], "no such deploy file"),
        (["plan", "nowhere.py", "{deploy}"], "no such inventory file"),
        (["status", "{broken}", "{deploy}"], "keep_releases"),
        (["adopt", "nobody", "{inv}", "--fingerprint", "SHA256:x"], "has no host 'nobody'"),
        (["adopt", "@fake/one", "{inv}", "--fingerprint", "SHA256:x"], "has no ssh_known_hosts_file"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_touched(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "inv.py").write_text("hosts = [('@fake/one', {'fake_delay': 0})]\n")
    (tmp_path / "broken.py").write_text("hosts = [('@fake/one', {'keep_releases': 0})]\n")
    (tmp_path / "deploy.py").write_text("raise SystemExit('a host was touched')\n")
    paths = {"inv": tmp_path / "inv.py", "deploy": tmp_path / "deploy.py", "broken": tmp_path / "broken.py"}
    argv = [item.format(**paths) for item in arguments]
    done = called(tmp_path, *argv)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("begun", "options", "message"),
    [
        ({"bundle": "b"}, [], "it was given bundle={place}/b"),
        ({}, ["--data", "bundle={place}/b"], "it was given no bundle"),
        ({"bundle": "b"}, ["--data", "bundle={place}/c"], "it was given bundle={place}/b"),
        ({"playbook": "p.yaml"}, ["--data", "playbook={place}/q.yaml"], "it was given playbook={place}/p.yaml"),
        ({}, ["--data", 'vars={{"chunk_size": 1}}'], "it had the variables {{}}"),
    ],
)
def test_a_rollout_is_taken_up_with_what_it_was_begun_with_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: dict[str, str], options: list[str], message: str
) -> None:
    monkeypatch.setenv("LMCACHE_FLEET_ARTIFACTS", str(tmp_path / "store"))
    inventory, deploy = tmp_path / "inv.py", tmp_path / "deploy.py"
    inventory.write_text("hosts = [('@fake/one', {'fake_delay': 0})]\n")
    deploy.write_text("raise SystemExit('a host was touched')\n")
    places = {name: f"{tmp_path}/{value}" for name, value in begun.items()}
    begin = Begin("rollout", str(inventory), str(deploy), [["@fake/one"]], {}, {}, places)
    Journal.new(fleet_folder(str(inventory)), begin).close()
    given = [item.format(place=tmp_path) for item in options]
    asked = called(tmp_path, "rollout", str(inventory), str(deploy), "--resume", *given)
    assert asked.returncode == 1, asked.stdout + asked.stderr
    assert message.format(place=tmp_path) in asked.stderr
    assert "Begin a new one" in asked.stderr
