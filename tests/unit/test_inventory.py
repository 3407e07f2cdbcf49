"""Hosts' own data: merged from the general to the special, checked, and no secret in any message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_fleet.inventory import HostSettings, SecretSource, host_settings
from lmcache_fleet.problems import InputError


def wrong(*layers: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        host_settings("h1", layers)
    return [str(problem) for problem in caught.value.problems]


def test_variables_are_merged_and_of_all_else_the_last_counts() -> None:
    settings = host_settings(
        "h1",
        [
            {"vars": {"a": 1, "b": 1, "deep": {"x": 1}}, "keep_releases": 4, "ssh_user": "u"},
            {"vars": {"b": 2, "deep": {"y": 2}}, "prefix": "/srv/x"},
            {},
            {"vars": {"c": 3}, "keep_releases": 2, "secrets": {"T": {"env": "T"}}},
        ],
    )
    assert settings.vars == {"a": 1, "b": 2, "c": 3, "deep": {"y": 2}}
    assert (settings.prefix, settings.keep_releases) == ("/srv/x", 2)
    assert settings.secrets["T"].env == "T"
    assert host_settings("h1", []) == HostSettings()


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ({"keep_release": 3}, "keep_release: unknown key (did you mean 'keep_releases'?)"),
        ({"var": {}}, "var: unknown key (did you mean 'vars'?)"),
        ({"keep_releases": 1}, "keep_releases: Input should be greater than or equal to 2; got 1"),
        ({"keep_releases": "3"}, "keep_releases: Input should be a valid integer; got '3'"),
        ({"prefix": "relative"}, "prefix: String should match pattern"),
        ({"prefix": "/"}, "prefix: String should match pattern"),
        ({"vars": [1]}, "vars: expected a mapping of variables, got [1]"),
        ({"vars": None}, "vars: expected a mapping of variables, got None"),
        ({"vars": {"a-b": 1}}, "vars: 'a-b' can't be a variable's name"),
        ({"vars": {1: 1}}, "vars"),
        ({"secrets": {"T": {}}}, "secrets.T: give exactly one of env, file and command"),
        ({"secrets": {"T": {"env": "A", "file": "/f"}}}, "secrets.T: give exactly one"),
        ({"secrets": {"T": {"envv": "A"}}}, "secrets.T.envv: unknown key 'envv' (did you mean 'env'?)"),
        ({"drain": {"haproxi": {}}}, "drain.haproxi: unknown key 'haproxi' (did you mean 'haproxy'?)"),
        ({"drain": {"nginx": {"flie": "/f"}}}, "drain.nginx.flie: unknown key 'flie' (did you mean 'file'?)"),
        ({"drain": {"atlimit": "fail"}}, "drain.atlimit: unknown key 'atlimit' (did you mean 'at_limit'?)"),
        ({"failure_domain": 1}, "failure_domain: "),
    ],
)
def test_a_slip_is_named_by_host_and_key(layer: dict[str, Any], expected: str) -> None:
    assert any(line.startswith(f"inventory data of h1: {expected}") for line in wrong(layer)), wrong(layer)


def test_all_slips_of_all_layers_are_told_at_once() -> None:
    assert len(wrong({"variables": {}}, {"vars": 1, "prefixes": "/x"})) == 3
    assert len(wrong({"keep_releases": 0, "prefix": "x"})) == 2


@pytest.mark.parametrize("given", ["hf_hunter2", {"env": "A", "value": "hf_hunter2"}, {"command": "echo hf_hunter2"}])
def test_a_secrets_value_in_the_wrong_place_is_not_shown(given: Any) -> None:
    assert "hunter2" not in "".join(wrong({"secrets": {"HF_TOKEN": given}}))


def test_secrets_come_from_environment_file_or_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", "from env ")
    (tmp_path / "s").write_text("from file \n")
    assert SecretSource(env="T").value() == "from env "
    assert SecretSource(file=str(tmp_path / "s")).value() == "from file "
    assert SecretSource(command=["printf", "from command\n"]).value() == "from command"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"env": "NOT_SET_AT_ALL"}, "the variable NOT_SET_AT_ALL is not set"),
        ({"file": "/nonexistent/s"}, "/nonexistent/s: No such file"),
        ({"command": ["sh", "-c", "echo hunter2; exit 1"]}, "the command sh failed"),
        ({"command": ["no-such-vault", "hunter3"]}, "No such file"),
    ],
)
def test_a_secret_that_cannot_be_had_names_its_place_and_no_value(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(LookupError, match=says) as caught:
        SecretSource.model_validate(fields).value()
    assert "hunter2" not in str(caught.value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        host_settings("h1", []).__setattr__("prefix", "/x")
