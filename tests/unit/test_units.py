"""What a service step puts on a host: units that name no release, loopback servers, secrets by file only."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from lmcache_fleet.envfile import parse_env
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import ServiceStep
from lmcache_fleet.units import (
    SERVER_UNIT,
    SGLANG_UNIT,
    VLLM_UNIT,
    connector_config,
    health_url,
    render_units,
    service_files,
    unit_digest,
    unit_names,
)

LAYOUT = Layout("/opt/x")
NAME = "0123456789ab-r2"


def step(**fields: Any) -> ServiceStep:
    return ServiceStep.model_validate({"model": "m", "connector": {"name": "C"}, "server": {}, **fields})


def sglang(**fields: Any) -> ServiceStep:
    return ServiceStep.model_validate({"engine": "sglang", "model": "m", "server": {}, **fields})


def files(service: ServiceStep, name: str = NAME) -> dict[str, str]:
    return service_files(service, "/models/m", LAYOUT.release(name), name, "/c.yaml").texts


def argv(script: str) -> list[str]:
    """What a start script runs: its exec line, as a shell splits it."""
    found = shlex.split(script.split("exec ", 1)[1].replace("\\\n", ""))
    told = script.replace("\nexec ", "\nprintf '%s\\0' ")
    seen = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    assert seen == found
    return seen


def after(words: list[str], option: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def test_sglang_is_told_of_its_server_by_a_file_of_the_release() -> None:
    service = sglang(served_name="q", port=30000, server={"port": 5599}, args=["--tp", 2])
    units = render_units(service, LAYOUT, ())
    assert tuple(units) == unit_names(service) == (SERVER_UNIT, SGLANG_UNIT)
    assert f"Requires={SERVER_UNIT}" in units[SGLANG_UNIT]
    assert "Description=SGLang with LMCache (q)" in units[SGLANG_UNIT]
    texts = files(service)
    assert set(texts) == {"env/service.env", "env/sglang-lmcache.yaml", "bin/sglang", "bin/lmcache-server"}
    words = argv(texts["bin/sglang"])
    assert words[1:5] == ["-m", "sglang.launch_server", "--model-path", "/models/m"]
    assert after(words, "--port") == ["30000"]
    (place,) = after(words, "--lmcache-config-file")
    assert place == LAYOUT.release(NAME).file("env/sglang-lmcache.yaml")
    assert yaml.safe_load(texts["env/sglang-lmcache.yaml"]) == {"mp_host": "127.0.0.1", "mp_port": 5599}
    # Without these nothing tells what came from LMCache.
    assert {"--enable-lmcache", "--enable-metrics", "--enable-cache-report"} <= set(words)
    assert words[-2:] == ["--tp", "2"]
    assert health_url(service) == "http://127.0.0.1:30000/health"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"connector": {"name": "C"}}, "`connector` is of vLLM"),
        ({"server": None}, "`server` is not given"),
        ({"args": ["--page-size", 48]}, "`chunk_size` of `server` is 256, no multiple of SGLang's --page-size 48"),
        ({"args": ["--page-size=512"]}, "no multiple"),
        ({"model": None, "server": None}, "`model` and `server` is not given"),
    ],
)
def test_sglang_needs_a_server_and_has_a_connector_of_its_own(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        sglang(**fields)


def test_a_service_of_vllm_has_the_digest_that_it_had_before_there_was_a_choice() -> None:
    assert "engine" not in step().model_dump()
    assert sglang().model_dump()["engine"] == "sglang"


def test_a_unit_names_no_release_and_no_secret_and_files_below_current() -> None:
    service = step(secrets=["HF_TOKEN"], env={"PRIVATE": "value-of-env"})
    units = render_units(service, LAYOUT, ("video",))
    assert tuple(units) == unit_names(service) == (SERVER_UNIT, VLLM_UNIT)
    for text in units.values():
        assert NAME not in text
        assert "/releases/" not in text
        assert "HF_TOKEN" not in text
        assert "value-of-env" not in text
        assert "EnvironmentFile=/opt/x/secrets/service.env" in text.splitlines()
        assert "EnvironmentFile=/opt/x/current/env/service.env" in text.splitlines()
        assert "SupplementaryGroups=video" in text.splitlines()
        assert "User=lmcache" in text.splitlines()
        assert text.count("[Unit]") == text.count("[Service]") == text.count("[Install]") == 1
        assert [line for line in text.splitlines() if line.startswith("ExecStart=")] == [
            f"ExecStart=/opt/x/current/bin/{'lmcache-server' if 'lmcache-server' in text else 'vllm'}"
        ]


def test_vllm_waits_for_its_server_only_where_there_is_one() -> None:
    both, alone = render_units(step(), LAYOUT, ()), render_units(step(server=None), LAYOUT, ())
    assert f"Requires={SERVER_UNIT}" in both[VLLM_UNIT]
    assert list(alone) == [VLLM_UNIT]
    assert SERVER_UNIT not in alone[VLLM_UNIT]
    assert "bin/lmcache-server" not in files(step(server=None))
    for text in (both[VLLM_UNIT], alone[VLLM_UNIT]):
        assert "SupplementaryGroups" not in text
        assert "/secrets/" not in text


def alone(**fields: Any) -> ServiceStep:
    """An LMCache server without an engine."""
    return ServiceStep.model_validate({"server": {"http_port": 7001, **fields.pop("server", {})}, **fields})


def test_a_server_alone_has_one_unit_as_hardened_as_it_is_beside_vllm_and_no_file_of_vllms() -> None:
    units = render_units(alone(), LAYOUT, ())
    assert tuple(units) == unit_names(alone()) == (SERVER_UNIT,)
    texts = service_files(alone(), "", LAYOUT.release(NAME), NAME, None).texts
    assert set(texts) == {"env/service.env", "bin/lmcache-server"}
    # But for what it says of itself it is the very unit that stands beside vLLM.
    beside = render_units(step(), LAYOUT, ())[SERVER_UNIT]
    shown = [line for line in units[SERVER_UNIT].splitlines() if not line.startswith(("Description", "Environment=LM"))]
    assert shown == [line for line in beside.splitlines() if not line.startswith(("Description", "Environment=LM"))]
    assert "Description=LMCache server" in units[SERVER_UNIT].splitlines()
    assert "Description=LMCache server for default" in beside.splitlines()
    assert health_url(alone()) == "http://127.0.0.1:7001/healthcheck"
    assert health_url(step(port=9000)) == "http://127.0.0.1:9000/health"


def test_a_server_listens_where_it_is_told_and_its_http_side_stays_on_loopback() -> None:
    words = argv(files(alone(server={"host": "10.0.0.5", "http_port": 7001}))["bin/lmcache-server"])
    assert after(words, "--host") == ["10.0.0.5"]
    assert after(words, "--http-host") == ["127.0.0.1"]
    # vLLM beside it goes to that address: it is not on loopback any more.
    vllm = argv(files(step(server={"host": "10.0.0.5"}))["bin/vllm"])
    extra = json.loads(after(vllm, "--kv-transfer-config")[0])["kv_connector_extra_config"]
    assert extra["lmcache.mp.host"] == "tcp://10.0.0.5"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "fd00::5", "kv-1", "10.0.0", ""])
def test_a_server_listens_on_no_address_that_is_not_named(host: str) -> None:
    with pytest.raises(ValidationError, match=r"server\.host"):
        alone(server={"host": host})


def test_an_address_that_says_nothing_makes_no_other_digest_of_releases_that_were_there() -> None:
    assert "host" not in step().model_dump(mode="json")["server"]
    assert step(server={"host": "10.0.0.5"}).model_dump(mode="json")["server"]["host"] == "10.0.0.5"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give `model` and `connector` for vLLM, or `server`"),
        ({"model": "m"}, "`model` is given and `connector` is not"),
        ({"model": "m", "server": {}}, "`model` is given and `connector` is not"),
        ({"connector": {"name": "C"}}, "`connector` is given and `model` is not"),
        ({"connector": {"name": "C"}, "server": {}}, "`connector` is given and `model` is not"),
        ({"server": {}, "args": ["--max-model-len", 8]}, "args: of vLLM"),
        ({"server": {}, "host": "10.0.0.5", "port": 80}, "host, port: of vLLM"),
    ],
)
def test_a_service_that_lacks_a_part_is_refused_with_that_part_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ServiceStep.model_validate(fields)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "key", ["NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "PrivateTmp=yes"]
)
def test_every_unit_is_sandboxed(key: str) -> None:
    assert all(key in text.splitlines() for text in render_units(step(), LAYOUT, ()).values())


def test_devices_close_the_rest() -> None:
    text = render_units(step(devices=["/dev/davinci*"]), LAYOUT, ())[VLLM_UNIT].splitlines()
    assert {"DevicePolicy=closed", "DeviceAllow=/dev/davinci* rw"} <= set(text)


def test_a_units_digest_is_stable_and_of_its_text() -> None:
    first, second = render_units(step(), LAYOUT, ()), render_units(step(), LAYOUT, ())
    assert first == second
    for text in first.values():
        mark = f"Environment=LMCACHE_FLEET_UNIT={unit_digest(text)}"
        assert text.splitlines().count(mark) == 1
        assert unit_digest(text.replace(mark + "\n", "")) == unit_digest(text)
        assert unit_digest(text + "# by hand\n") != unit_digest(text)
    for other in (step(user="other"), step(start_timeout=5), step(memlock="1G"), step(secrets=["A"])):
        changed = render_units(other, LAYOUT, ())
        assert all(unit_digest(changed[name]) != unit_digest(first[name]) for name in first)
    # What stands in the release's own files needs no other unit.
    assert render_units(step(args=["--x"], env={"A": "b"}, port=9000), LAYOUT, ()) == first


def test_both_ports_of_the_server_are_loopback_only() -> None:
    server = argv(files(step(server={"port": 7000, "http_port": 7001, "l1_size_gb": 1.5}))["bin/lmcache-server"])
    assert server[:2] == [f"/opt/x/releases/{NAME}/venv/bin/lmcache", "server"]
    assert after(server, "--host") == after(server, "--http-host") == ["127.0.0.1"]
    assert (after(server, "--port"), after(server, "--http-port")) == (["7000"], ["7001"])
    assert after(server, "--l1-size-gb") == ["1.5"]
    assert after(argv(files(step())["bin/vllm"]), "--host") == ["127.0.0.1"]


@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--http-host=0.0.0.0"]])
def test_arguments_do_not_open_the_servers_ports(words: list[str]) -> None:
    with pytest.raises(ValidationError):
        step(server={"args": words})


def test_vllm_is_told_where_the_server_is_and_what_else() -> None:
    service = step(
        server={"port": 7000},
        connector={"name": "C", "module_path": "a.b", "extra": {"k": [1]}},
        args=["it's", "$x", 4],
    )
    words = argv(files(service)["bin/vllm"])
    assert words[-3:] == ["it's", "$x", "4"]
    assert after(words, "--model") == ["/models/m"]
    config = json.loads(after(words, "--kv-transfer-config")[0])
    assert config == {
        "kv_connector": "C", "kv_role": "kv_both", "kv_connector_module_path": "a.b",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 7000, "k": [1]},
    }  # fmt: skip
    assert "kv_connector_extra_config" not in connector_config(step().connector)


def test_the_environment_names_the_release_whatever_the_step_says() -> None:
    texts = files(step(env={"LMCACHE_FLEET_RELEASE": "forged", "PYTHONHASHSEED": "7", "A": 'q"$x'}))
    seen = parse_env(texts["env/service.env"])
    assert seen["LMCACHE_FLEET_RELEASE"] == NAME
    assert seen["PYTHONHASHSEED"] == "7"
    assert seen["A"] == 'q"$x'
    assert seen["LMCACHE_CONFIG_FILE"] == "/c.yaml"
    assert service_files(step(), "/m", LAYOUT.release(NAME), NAME, None).executable == {
        "bin/vllm",
        "bin/lmcache-server",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"served_name": "x\n[Service]\nExecStartPre=+/bin/evil"},
        {"memlock": "1\nExecStartPre=+/bin/evil"},
        {"devices": ["/dev/x\nExecStartPre=+/bin/evil"]},
    ],
)
def test_no_value_adds_a_directive(fields: dict[str, Any]) -> None:
    try:
        units = render_units(step(**fields), LAYOUT, ())
    except ValidationError:
        return
    assert not any("\nExecStartPre" in text for text in units.values())
