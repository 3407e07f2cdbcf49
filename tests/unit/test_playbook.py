"""Playbooks: every slip is named by file, line, column and nearest name; none ends in a trace."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmcache_fleet.playbook.load import check_document, declared_variables, read_playbook, resolve
from lmcache_fleet.playbook.model import (
    STEP_KINDS,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SystemPackagesStep,
    VenvStep,
)
from lmcache_fleet.problems import InputError

FOLDER = Path(__file__).resolve().parents[2] / "playbooks"
OURS = sorted(FOLDER.glob("*.yaml"))
HEAD = "apiVersion: lmcache-fleet/v1\nname: trial\n"
VENV = "  - venv: {python: '3.12'}\n"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    read_playbook.cache_clear()
    declared_variables.cache_clear()
    yield


def load(tmp_path: Path, text: str, given: dict[str, Any] | None = None, arch: str = "x86_64") -> Playbook:
    path = tmp_path / "t.yaml"
    path.write_text(text, encoding="utf-8")
    read_playbook.cache_clear()
    declared_variables.cache_clear()
    return resolve(read_playbook(path), given or {}, arch=arch, prefix="/p", host="h1")


def problems(tmp_path: Path, body: str, given: dict[str, Any] | None = None, head: str = HEAD) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(tmp_path, head + body, given)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_playbooks_are_valid_on_every_architecture_and_alone(path: Path) -> None:
    document = read_playbook(path)
    playbook = check_document(document)
    assert playbook.name == path.stem
    for arch in ("x86_64", "aarch64"):
        assert resolve(document, {}, arch=arch, prefix="/p", host="h").steps


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_every_variable_of_our_playbooks_is_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in read_playbook(path).data["vars"]:
        assert text.count(name) > 1, name
        assert any(name in part.split("}}")[0] for part in text.split("{{")[1:]), f"{name} is in no template"


UNKNOWN = [
    ("steps:\n" + VENV.replace("python", "pyton"), "t.yaml:4:12: steps[0].venv.pyton: unknown key 'pyton' (did you mean 'python'?)"),
    ("steps:\n  - venvs: {}\n", "t.yaml:4:5: steps[0].venvs: unknown step 'venvs' (did you mean 'venv'?)"),
    ("requres: {}\nsteps:\n" + VENV, "t.yaml:3:1: requres: unknown key 'requres' (did you mean 'requires'?)"),
    ("requires:\n  disk_free: 1\nsteps:\n" + VENV, "t.yaml:4:3: requires.disk_free: unknown key 'disk_free' (did you mean 'disk_free_gb'?)"),
    ("requires: {accelerator: {vendor: cpu, sok: [a]}}\nsteps:\n" + VENV, "t.yaml:3:39: requires.accelerator.sok: unknown key 'sok' (did you mean 'soc'?)"),
    (
        "steps:\n  - model: {name: m, tiny: {}}\n  - service:\n      model: m\n      connector: {name: C, rol: kv_both}\n",
        "t.yaml:7:28: steps[1].service.connector.rol: unknown key 'rol' (did you mean 'role'?)",
    ),
    (
        "steps:\n  - source:\n      name: s\n      repo: r\n      ref: x\n      patches:\n        - {path: f, finds: a, replace: b}\n",
        "t.yaml:9:21: steps[0].source.patches[0].finds: unknown key 'finds' (did you mean 'find'?)",
    ),
    ("steps:\n" + VENV.replace("}", ", zzzzz: 1}"), "t.yaml:4:28: steps[0].venv.zzzzz: unknown key 'zzzzz' (known: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), UNKNOWN)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_one(tmp_path: Path, body: str, expected: str) -> None:
    found = problems(tmp_path, body)
    assert any(line.startswith(expected) for line in found), found


@pytest.mark.parametrize("kind", sorted(STEP_KINDS))
def test_a_slip_in_any_field_of_any_step_names_that_field(tmp_path: Path, kind: str) -> None:
    for field in STEP_KINDS[kind].model_fields:
        if field == "kind":
            continue
        slip = f"{field}x"
        found = problems(tmp_path, f"steps:\n  - {kind}:\n      {slip}: 1\n")
        wanted = f"t.yaml:5:7: steps[0].{kind}.{slip}: unknown key '{slip}' (did you mean '{field}'?)"
        assert wanted in found, (wanted, found)


WRONG = [
    ("steps:\n  - venv: {python: 3.12}\n", "t.yaml:4:12: steps[0].venv.python: Input should be a valid string; got 3.12"),
    ("steps:\n  - venv: {python: '3'}\n", "t.yaml:4:12: steps[0].venv.python: "),
    ("steps:\n  - venv: {}\n", "t.yaml:4:5: steps[0].venv.python: the key 'python' is missing"),
    ("steps:\n  - venv: {python: '3.12', when: 'yes'}\n", "t.yaml:4:28: steps[0].venv.when: "),
    ("steps:\n  - venv: {python: '3.12', installer: conda}\n", "t.yaml:4:28: steps[0].venv.installer: "),
    ("steps:\n  - packages: {name: p, pins: a==1}\n", "t.yaml:4:25: steps[0].packages.pins: "),
    ("steps:\n  - packages: {name: p, pins: [a==1, b]}\n", "t.yaml:4:38: steps[0].packages.pins[1]: pin it exactly, as in 'b==1.2.3'"),
    ("steps:\n  - packages: {name: p, pins: ['a==1.*']}\n", "pin it exactly"),
    ("steps:\n  - packages: {name: p, pins: ['a>=1']}\n", "pin it exactly"),
    ("steps:\n  - packages: {name: p, pins: ['a===']}\n", "not a requirement"),
    ("steps:\n  - packages: {name: p}\n", "give pins, present or requirements"),
    ("steps:\n  - packages: {name: p, present: [a], owns: [b]}\n", "there is none"),
    ("steps:\n  - packages: {name: ../p, pins: [a==1]}\n", "t.yaml:4:16: steps[0].packages.name: use letters"),
    ("steps:\n  - packages: {name: p, pins: [a==1], retries: -1}\n", "steps[0].packages.retries: "),
    ("steps:\n  - packages: {name: p, pins: [a==1], retries: true}\n", "steps[0].packages.retries: "),
    ("steps:\n  - packages: {name: p, pins: [a==1], index_url: -x}\n", "must not start with '-'"),
    ("steps:\n  - packages: {name: p, pins: [a==1], env: {'A B': x}}\n", "'A B' is no variable name"),
    ("steps:\n  - packages: {name: p, pins: [a==1], env: {A: \"x\\ny\"}}\n", "the value of A has a line break"),
    ("steps:\n  - source: {name: s, repo: r, ref: x, commit: abc}\n", "t.yaml:4:40: steps[0].source.commit: "),
    ("steps:\n  - model: {name: m}\n", "give exactly one of tiny, directory and hub"),
    ("steps:\n  - model: {name: m, tiny: {}, directory: /m}\n", "give exactly one of tiny, directory and hub"),
    ("steps:\n  - model: {name: m, hub: a/b}\n", "a hub model needs a revision"),
    ("steps:\n  - toolkit_env: {path: [relative]}\n", "t.yaml:4:26: steps[0].toolkit_env.path[0]: "),
    ("steps:\n  - toolkit_env: {scripts: [relative]}\n", "steps[0].toolkit_env.scripts[0].first_of[0]: "),
    ("requires: {cann: '9.1'}\nsteps:\n" + VENV, "t.yaml:3:12: requires.cann: not a version condition"),
    ("requires: {architectures: [riscv]}\nsteps:\n" + VENV, "t.yaml:3:28: requires.architectures[0]: "),
    ("steps: []\n", "t.yaml:3:1: steps: "),
    ("steps: {venv: {}}\n", "t.yaml:3:1: steps: "),
    ("steps:\n  - venv\n", "t.yaml:4:5: steps[0]: a step is a mapping with one key"),
    ("steps:\n  - {venv: {python: '3.12'}, when: false}\n", "t.yaml:4:5: steps[0]: a step is a mapping with one key"),
    ("vars: [1]\nsteps:\n" + VENV, "t.yaml:3:1: vars: expected a mapping of variables"),
    ("steps:\n" + VENV + VENV, "at most one venv step"),
    ("name: again\nsteps:\n" + VENV, "t.yaml:3:1: name: the key 'name' stands twice"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), WRONG)
def test_a_wrong_value_is_named_with_its_place(tmp_path: Path, body: str, expected: str) -> None:
    found = problems(tmp_path, body)
    assert any(expected in line for line in found), found
    assert all(line.startswith("t.yaml:") and line.split(":")[1].isdigit() for line in found), found


def test_a_file_that_is_no_playbook_is_said_so(tmp_path: Path) -> None:
    for text in ("[]\n", "text\n", "1\n"):
        assert "expected a mapping with apiVersion" in problems(tmp_path, text, head="")[0]
    assert "'apiVersion' is missing" in "".join(problems(tmp_path, "name: x\nsteps:\n" + VENV, head=""))
    assert "apiVersion" in problems(tmp_path, "apiVersion: v2\nname: x\nsteps:\n" + VENV, head="")[0]


def test_all_slips_are_told_at_once(tmp_path: Path) -> None:
    body = "steps:\n  - venv: {pyton: '3.12'}\n  - packages: {name: p, pins: [a]}\n"
    assert len(problems(tmp_path, body)) >= 3


def test_undefined_names_are_named_with_the_nearest_variable(tmp_path: Path) -> None:
    found = problems(tmp_path, "vars: {chunk_size: 1}\nsteps:\n  - venv: {python: '{{ chunk_sise }}'}\n")
    assert found == ["t.yaml:5:12: steps[0].venv.python: 'chunk_sise' is undefined (did you mean 'chunk_size'?)"]
    found = problems(tmp_path, "vars:\n  a: '{{ ach }}'\nsteps:\n" + VENV)
    assert found == ["t.yaml:4:3: vars.a: 'ach' is undefined (did you mean 'arch'?)"]


def test_built_in_names_are_there(tmp_path: Path) -> None:
    body = HEAD + "steps:\n" + VENV + "  - model: {name: '{{ host }}-{{ arch }}', directory: '{{ prefix }}/m'}\n"
    assert load(tmp_path, body).steps[1].model_dump(include={"name", "directory"}) == {
        "name": "h1-x86_64",
        "directory": "/p/m",
    }


BRANCHED = HEAD + (
    "steps:\n  - packages:\n      name: p\n      pins: [a==1]\n"
    "      extra_index_urls: [one, {by_arch: {x86_64: [two, three], aarch64: []}}, last]\n"
    "      timeout: {by_arch: {x86_64: 5, aarch64: 6}}\n"
)


def test_branches_are_picked_and_spliced_by_architecture(tmp_path: Path) -> None:
    for arch, urls, timeout in (("x86_64", ["one", "two", "three", "last"], 5), ("aarch64", ["one", "last"], 6)):
        (step,) = load(tmp_path, BRANCHED, arch=arch).of_kind(PackagesStep)
        assert (step.extra_index_urls, step.timeout) == (urls, timeout)


def test_a_branch_that_only_one_architecture_lacks_is_found_without_a_host(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(BRANCHED.replace(", aarch64: 6", ""))
    with pytest.raises(InputError, match="no branch for the architecture 'aarch64'"):
        check_document(read_playbook(tmp_path / "t.yaml"))


def test_a_problem_after_a_spliced_branch_is_at_its_own_line(tmp_path: Path) -> None:
    body = "steps:\n  - packages:\n      name: p\n      pins:\n        - by_arch: {x86_64: [a==1, b==1]}\n        - good==1\n        - bad\n"
    assert problems(tmp_path, body)[0].startswith("t.yaml:9:")


# References

SOURCE = "  - source: {name: s, repo: r, ref: v1}\n"
BUILD = "  - native_build: {source: s, package: p, module: m}\n"
MODEL = "  - model: {name: m, tiny: {}}\n"
SERVICE = "  - service: {model: m, connector: {name: C}}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (BUILD, "names the source 's'"),
        (SERVICE, "names the model 'm'"),
        (SOURCE.replace("name: s", "name: t") + BUILD, "names the source 's'"),
        (SOURCE.replace("}", ", when: false}") + BUILD, "names the source 's'"),
        (MODEL.replace("}}", "}, when: false}") + SERVICE, "names the model 'm'"),
        (MODEL + SERVICE + SERVICE, "at most one service step"),
        (BUILD + SOURCE, "names the source 's'"),
        (SERVICE + MODEL, "names the model 'm'"),
    ],
)  # fmt: skip
def test_a_step_that_names_what_no_step_above_makes_is_refused(tmp_path: Path, body: str, expected: str) -> None:
    assert any(expected in line for line in problems(tmp_path, "steps:\n" + body))


def test_a_step_left_out_needs_nothing_and_is_not_active(tmp_path: Path) -> None:
    off = BUILD.replace("}", ", when: '{{ not flag }}'}")
    playbook = load(tmp_path, HEAD + "vars: {flag: true}\nsteps:\n" + VENV + off)
    assert playbook.of_kind(NativeBuildStep) == []
    assert len(playbook.of_kind(VenvStep)) == 1
    assert playbook.of_kind(ServiceStep) == playbook.of_kind(SystemPackagesStep) == []


SERVER = "  - service: {server: {}}\n"
SGLANG = "  - model: {name: m, tiny: {}}\n  - service: {engine: sglang, model: m, server: {}}\n"
VLLM = "  - model: {name: m, tiny: {}}\n  - service: {model: m, connector: {name: C}}\n"


@pytest.mark.parametrize(
    ("service", "proof", "said"),
    [
        (SERVER, "{stage: offline, mode: mp}", "`mode: mp` proves an engine"),
        (SERVER, "{stage: offline, mode: inprocess}", "`mode: inprocess` proves an engine"),
        (SERVER, "{stage: online, mode: server}", "give it `mode: service` when on-line"),
        (SGLANG, "{stage: offline, mode: inprocess}", "SGLang is proved by `mode: mp`"),
        (VLLM, "{stage: offline, mode: server}", "`mode: server` proves an LMCache server alone"),
    ],
)
def test_a_proof_that_does_not_fit_what_runs_is_named(tmp_path: Path, service: str, proof: str, said: str) -> None:
    found = problems(tmp_path, f"steps:\n{VENV}{service}  - verify: {proof}\n")
    assert any(said in line for line in found)
    left_out = proof.replace("}", ", when: false}")
    load(tmp_path, f"{HEAD}steps:\n{VENV}{service}  - verify: {left_out}\n")


@pytest.mark.parametrize("alone", [True, False])
def test_of_two_services_the_one_that_runs_is_proved(tmp_path: Path, alone: bool) -> None:
    engine, server = ("false", "true") if alone else ("true", "false")
    service = VLLM.replace("{name: C}", f"{{name: C}}, when: {engine}")
    service += f"  - service: {{server: {{}}, when: {server}}}\n"
    mode = "server" if alone else "mp"
    playbook = load(tmp_path, f"{HEAD}steps:\n{VENV}{service}  - verify: {{stage: offline, mode: {mode}}}\n")
    assert playbook.described_service is not None
    assert playbook.described_service.has_engine is not alone


# Overrides


def test_overrides_replace_and_those_of_no_playbook_are_named(tmp_path: Path) -> None:
    body = "vars: {chunk_size: 1, more: '{{ chunk_size }}x'}\nsteps:\n" + VENV
    assert load(tmp_path, HEAD + body, {"chunk_size": 5}).vars == {"chunk_size": 5, "more": "5x"}
    found = problems(tmp_path, body, {"chunk_sise": 2, "zzz": 1})
    assert (
        "t.yaml:3:1: vars: an override names 'chunk_sise', a variable that the playbook has not (did you mean 'chunk_size'?)"
        in found
    )
    assert any("names 'zzz'" in line for line in found)


def test_an_override_of_a_playbook_beside_it_is_no_slip(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("vars: {elsewhere: 1}\n")
    (tmp_path / "broken.yaml").write_text("vars: [\n")
    assert load(tmp_path, HEAD + "vars: {a: 1}\nsteps:\n" + VENV, {"elsewhere": 2, "a": 3}).vars == {"a": 3}


@pytest.mark.parametrize("name", ["given", "document", "arch"])
def test_an_override_of_a_built_in_name_is_refused(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, "steps:\n" + VENV, {name: "x"})


# Whatever else


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*at, key))


FULL = HEAD + (
    "vars: {a: '1', flag: true}\n"
    "requires: {accelerator: {vendor: cpu}, cann: '>=9', architectures: [x86_64]}\n"
    "steps:\n"
    "  - toolkit_env: {scripts: [/s, {first_of: [/t]}], path: [/x], env: {A: b}}\n"
    "  - venv: {python: '3.12', when: '{{ flag }}'}\n"
    "  - packages: {name: p, pins: ['a=={{ a }}'], extra_index_urls: [{by_arch: {x86_64: [u]}}], hashes: {a: [b]}}\n"
    "  - source: {name: s, repo: r, ref: v, patches: [{path: f, find: a, replace: b, present: [x]}]}\n"
    "  - native_build: {source: s, package: p, module: m}\n"
    "  - model: {name: m, tiny: {}}\n"
    "  - service: {model: m, connector: {name: C}, server: {}, args: [1, x]}\n"
    "  - verify: {stage: offline, mode: mp}\n"
)
ODD: list[Any] = [None, 0, -1.5, True, "", "x", "{{ nothing }}", "{{", [], {}, [None], {"k": None}, {1: 2}, [[]], "\n"]


def _fails_otherwise(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    read_playbook.cache_clear()
    declared_variables.cache_clear()
    try:
        check_document(read_playbook(path), {"a": "2"} if "a" in (data.get("vars") or {}) else {})
    except InputError:
        pass
    except Exception as error:
        return f"{error!r}"
    return ""


def _outcomes(tmp_path: Path, places: list[tuple[Any, ...]], base: Any) -> list[str]:
    escaped = []
    for number, at in enumerate(places):
        # Each place meets a fifth of the odd values; all places together meet all of them many times.
        for odd in ODD[number % 5 :: 5]:
            data = copy.deepcopy(base)
            holder = data
            for key in at[:-1]:
                holder = holder[key]
            holder[at[-1]] = odd
            failure = _fails_otherwise(tmp_path, data)
            escaped += [f"{at} = {odd!r}: {failure}"] if failure else []
    return escaped


def test_an_odd_value_anywhere_is_a_named_problem_and_never_a_trace(tmp_path: Path) -> None:
    base = yaml.safe_load(FULL)
    assert _fails_otherwise(tmp_path, base) == ""
    assert _outcomes(tmp_path, list(_paths(base)), base) == []


def test_odd_architectures_are_a_named_problem(tmp_path: Path) -> None:
    base = yaml.safe_load(FULL)
    found = [_fails_otherwise(tmp_path, {**base, "requires": {"architectures": odd}}) for odd in ODD]
    assert not any(found), found


def test_a_variable_whose_name_is_no_text_is_a_named_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, "vars: {1: a, b: c}\nsteps:\n" + VENV.replace("3.12", "{{ x }}"))
    assert any("vars" in line for line in found)


def test_a_version_that_yaml_reads_as_another_number_is_refused(tmp_path: Path) -> None:
    problems(tmp_path, "vars: {v: 0.10}\nsteps:\n  - packages: {name: p, pins: ['a=={{ v }}']}\n")
