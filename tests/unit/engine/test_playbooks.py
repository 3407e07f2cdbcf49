"""Playbooks: our own are valid, and bad input is named by file, line, column and the nearest valid name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.compatibility import findings
from lmcache_fleet.playbook.load import check_document, read_playbook, resolve
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep, VerifyStep
from lmcache_fleet.playbook.source import parse_document
from lmcache_fleet.problems import InputError

ROOT = Path(__file__).resolve().parents[3]
HEAD = "apiVersion: lmcache-fleet/v1\nname: trial\n"


def load(tmp_path: Path, body: str, given: dict[str, Any] | None = None, arch: str = "x86_64") -> Playbook:
    path = tmp_path / "trial.yaml"
    path.write_text(HEAD + body, encoding="utf-8")
    return resolve(read_playbook(path), given or {}, arch=arch, prefix="/p", host="h1")


def problems(tmp_path: Path, body: str, given: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(tmp_path, body, given)
    return [str(problem).replace(str(tmp_path) + "/", "") for problem in caught.value.problems]


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yaml")), ids=lambda path: path.name)
def test_our_playbooks_are_valid_and_break_no_rule(path: Path) -> None:
    assert findings(check_document(read_playbook(path))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yaml")), ids=lambda path: path.name)
def test_the_verification_program_takes_the_options_of_our_playbooks(path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "templates/programs"))
    from verify_config import parse

    for step in check_document(read_playbook(path)).of_kind(VerifyStep):
        given = {"mode": step.mode, "model": "m", "connector": {"kv_connector": "c"}}
        if step.mode == "service":
            given["service"] = {"url": "http://127.0.0.1:8000"}
        config = parse({**given, **step.options})
        assert all(isinstance(word, str) for word in config.engine.args)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "steps:\n  - venv: {pyton: '3.12'}\n",
            "trial.yaml:4:12: steps[0].venv.pyton: unknown key 'pyton' (did you mean 'python'?)",
        ),
        (
            "steps:\n  - venvs: {python: '3.12'}\n",
            "trial.yaml:4:5: steps[0].venvs: unknown step 'venvs' (did you mean 'venv'?)",
        ),
        (
            "step: []\nsteps:\n  - venv: {python: '3.12'}\n",
            "trial.yaml:3:1: step: unknown key 'step' (did you mean 'steps'?)",
        ),
        (
            "steps:\n  - venv: {python: 3.12}\n",
            "trial.yaml:4:12: steps[0].venv.python: Input should be a valid string; got 3.12",
        ),
        ("steps:\n  - packages: {name: x, pins: [torch]}\n", "pin it exactly, as in 'torch==1.2.3'"),
        ("vars: {a: 1}\nsteps:\n  - venv: {python: '{{ b }}'}\n", "'b' is undefined"),
        ("steps:\n  - venv: {python: '3.12'}\n    model: {}\n", "a step is a mapping with one key"),
        ("steps:\n  - packages: {name: x, pins: ['a==1'], index_url: --evil}\n", "must not start with '-'"),
        ("steps:\n  - venv: {python: '3.12', python: '3.11'}\n", "the key 'python' stands twice"),
        ("steps:\n  - native_build: {source: s, package: p, module: m}\n", "names the source 's'"),
        ("steps: [\n", "not valid YAML"),
        ("steps:\n  - venv: {python: {by_arch: {riscv: '3.12'}}}\n", "no branch for the architecture 'x86_64'"),
        ("steps:\n  - venv: {python: '{{ ().__class__ }}'}\n", "steps[0].venv.python"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, body: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tmp_path, body)), problems(tmp_path, body)


def test_an_override_that_no_playbook_has_is_named(tmp_path: Path) -> None:
    found = problems(tmp_path, "vars: {chunk_size: 1}\nsteps:\n  - venv: {python: '3.12'}\n", {"chunk_sise": 2})
    assert "(did you mean 'chunk_size'?)" in found[0]


def test_missing_file_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read the file"):
        read_playbook(tmp_path / "absent.yaml")


def test_values_keep_their_types_and_branches_are_spliced(tmp_path: Path) -> None:
    body = (
        "vars: {flag: true, v: 1.0.0, more: '{{ v }}+x'}\n"
        "steps:\n"
        "  - venv: {python: '3.12', when: '{{ not flag }}'}\n"
        "  - packages:\n"
        "      name: p\n"
        "      pins: ['a=={{ v }}']\n"
        "      extra_index_urls: [one, {by_arch: {x86_64: [two, three], aarch64: []}}]\n"
    )
    playbook = load(tmp_path, body)
    assert playbook.of_kind(VenvStep) == []
    (step,) = playbook.of_kind(PackagesStep)
    assert step.pins == ["a==1.0.0"]
    assert step.extra_index_urls == ["one", "two", "three"]
    (other,) = load(tmp_path, body, arch="aarch64").of_kind(PackagesStep)
    assert other.extra_index_urls == ["one"]
    assert load(tmp_path, body, {"v": "2.0.0"}).vars["more"] == "2.0.0+x"


def test_places_are_those_of_the_keys() -> None:
    document = parse_document("a:\n  b: [1, {c: 2}]\n", "f.yaml")
    assert document.marks[("a", "b")] == (2, 3)
    assert document.marks[("a", "b", 1, "c")] == (2, 11)


def test_a_misspelt_lmcache_setting_is_named(tmp_path: Path) -> None:
    body = "steps:\n  - lmcache_config: {lmcache: 0.4.4, settings: {chunk_sise: 1}}\n"
    (finding,) = findings(load(tmp_path, body))
    assert "did you mean 'chunk_size'" in str(finding)
