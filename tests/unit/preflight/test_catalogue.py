"""The catalogue's texts, its pages, `explain`, and what a preflight's report says."""

from __future__ import annotations

import json
import string

import pytest
from click.testing import CliRunner
from rich.console import Console

from lmcache_fleet.cli import main
from lmcache_fleet.failures import Failure
from lmcache_fleet.preflight.catalogue import LANGUAGES, Finding, catalogue
from lmcache_fleet.preflight.report import Report
from lmcache_fleet.recording import Recorder
from lmcache_fleet.reporters.preflight import catalogue_page, show_report
from lmcache_fleet.repository import ROOT

BAD = Finding("driver-version", "error", (("found", "23.0.6"), ("wanted", ">=24.1")))
SLOW = Finding("login-shell-slow", "warning", (("seconds", "3.0"),))


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_both_languages_say_the_same_values(name: str) -> None:
    entry = catalogue()[name]
    assert placeholders(entry.en.message) == placeholders(entry.zh.message)
    assert placeholders(entry.en.remedy) == placeholders(entry.zh.remedy)
    for field in ("condition", "remedy"):
        chinese = getattr(entry.zh, field)
        assert chinese == "{remedy}" or any("\u4e00" <= char <= "\u9fff" for char in chinese)


@pytest.mark.parametrize(("language", "file"), [("en", "checks.md"), ("zh", "checks.zh.md")])
def test_the_pages_are_current(language: str, file: str) -> None:
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    command = f"lmcache-fleet explain --markdown --lang {language} > docs/{file}"
    assert written == catalogue_page(catalogue(), language), f"run: {command}"


def test_explain_tells_a_check_in_both_languages_and_the_nearest_on_a_typo() -> None:
    run = CliRunner()
    english = run.invoke(main, ["explain", "npu-in-use", "--lang", "en"])
    assert english.exit_code == 0
    assert "-8020" in english.output
    assert "fires when" in english.output
    assert "触发条件" in run.invoke(main, ["explain", "npu-in-use", "--lang", "zh"]).output
    typo = run.invoke(main, ["explain", "npu-in-user"])
    assert typo.exit_code == 1
    assert "did you mean 'npu-in-use'?" in typo.output
    listed = run.invoke(main, ["explain", "--lang", "en"])
    assert all(name in listed.output for name in catalogue())
    assert json.loads(run.invoke(main, ["explain", "--json"]).output).keys() == catalogue().keys()


def test_a_wrong_playbook_or_inventory_is_one_error() -> None:
    run = CliRunner()
    result = run.invoke(main, ["preflight", "inventories/none.py", "playbooks/none.yaml"])
    assert result.exit_code == 2
    assert "playbooks/none.yaml" in result.output


def report(**found: list[Finding]) -> Report:
    recorder = Recorder()
    recorder.findings.update(found)
    return Report.of([*found], recorder)


def test_exit_status() -> None:
    assert report(h1=[]).status() == 0
    assert report(h1=[SLOW]).status() == 0
    assert report(h1=[SLOW]).status(strict=True) == 2
    assert report(h1=[SLOW], h2=[BAD]).status(strict=True) == 1


def test_hosts_that_were_not_judged_are_named_and_fail_the_whole() -> None:
    recorder = Recorder()
    recorder.findings["h1"] = []
    recorder.fail(Failure("h2", "connect", "no route", "look"))
    found = Report.of(["h1", "h2", "h3"], recorder)
    assert [failure.host for failure in found.failures] == ["h2", "h3"]
    assert found.status() == 1
    plain = found.as_json()
    assert plain["ok"] is False
    assert plain["hosts"]["h2"]["failed"]["cause"] == "no route"
    assert plain["hosts"]["h1"] == {"ready": True, "findings": []}


@pytest.mark.parametrize("language", LANGUAGES)
def test_hosts_that_agree_are_told_together(language: str) -> None:
    out = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    show_report(out, report(h1=[BAD], h2=[BAD, SLOW], h3=[]), language)
    text = out.export_text()
    assert text.count("driver-version") == 1
    assert "h1 h2" in text
    assert "23.0.6" in text
