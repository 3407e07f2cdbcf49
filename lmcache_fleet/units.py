"""What a service step puts on a host: unit files, start scripts, the service's environment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lmcache_fleet.containers import ContainerCommand, start_script
from lmcache_fleet.digest import text_digest
from lmcache_fleet.envfile import render_env
from lmcache_fleet.layout import Layout, ReleaseLayout
from lmcache_fleet.playbook.model import LOOPBACK, Connector, MpServer, ServiceStep
from lmcache_fleet.repository import ROOT

VLLM_UNIT = "lmcache-fleet-vllm.service"
SGLANG_UNIT = "lmcache-fleet-sglang.service"
SERVER_UNIT = "lmcache-fleet-server.service"
#: Every unit that a service step may have, in the order in which they start.
SERVICE_UNITS = (SERVER_UNIT, VLLM_UNIT, SGLANG_UNIT)
ENGINE_UNITS = {"vllm": VLLM_UNIT, "sglang": SGLANG_UNIT}
_ENGINE_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
#: What tells SGLang's connector where the LMCache server is, below a release.
SGLANG_CONFIG = "env/sglang-lmcache.yaml"
LMCACHE_MODULE = "lmcache.cli.main"
_TEMPLATES = ROOT / "templates"


@lru_cache(maxsize=1)
def template_environment() -> Environment:
    """Jinja2 over `templates/`, for what hosts are given."""
    # Autoescaping is for HTML; values that reach a unit are checked by the model and quoted here.
    return Environment(  # noqa: S701
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def unit_names(service: ServiceStep) -> tuple[str, ...]:
    """The units of a service step, in the order in which they start; the last is the one that is asked."""
    return ((SERVER_UNIT,) if service.server else ()) + ((ENGINE_UNITS[service.engine],) if service.has_engine else ())


def health_url(service: ServiceStep) -> str:
    """What answers 200 on the host when the service is up."""
    if service.server and not service.has_engine:
        return f"{server_url(service.server)}/healthcheck"
    return f"http://{LOOPBACK}:{service.port}/health"


def server_url(server: MpServer) -> str:
    """The LMCache server's HTTP side, as the host itself reaches it."""
    return f"http://{LOOPBACK}:{server.http_port}"


def render_units(
    service: ServiceStep, layout: Layout, groups: tuple[str, ...], engine: str | None = None
) -> dict[str, str]:
    """Unit name → text.

    A unit names only `current`, never a release, so that switching a release is a link and a restart. It carries the
    digest of its own text, so that a running process tells which text it was started with.

    Args:
        service: the step.
        layout: paths on the host.
        groups: supplementary groups, those of the step that exist on the host.
        engine: what runs the service's containers; None without.
    """
    values = {
        "service": service,
        "engine": engine,
        "title": _ENGINE_TITLES[service.engine],
        "current": layout.current,
        "groups": groups,
        "server_unit": SERVER_UNIT,
        "secrets": layout.secrets("service"),
    }
    units = {}
    for name in unit_names(service):
        template = "units/server.service.j2" if name == SERVER_UNIT else "units/engine.service.j2"
        units[name] = render_unit(template, {**values, "container": container_name(name)})
    return units


def render_unit(template: str, values: Mapping[str, object]) -> str:
    """A unit's text, which carries the digest of the rest of it.

    Args:
        template: path below `templates/`.
        values: for the template.
    """
    text = template_environment().get_template(template).render(values)
    return text.replace("[Service]\n", f"[Service]\nEnvironment=LMCACHE_FLEET_UNIT={unit_digest(text)}\n", 1)


def unit_digest(text: str) -> str:
    """Digest of a unit's text, without the line that carries it."""
    kept = [line for line in text.splitlines() if not line.startswith("Environment=LMCACHE_FLEET_UNIT=")]
    return text_digest("\n".join(kept))[:12]


def connector_config(connector: Connector) -> dict[str, object]:
    """vLLM's kv_transfer_config, without what only a running server decides."""
    config: dict[str, object] = {"kv_connector": connector.name, "kv_role": connector.role}
    if connector.module_path:
        config["kv_connector_module_path"] = connector.module_path
    if connector.extra:
        config["kv_connector_extra_config"] = dict(connector.extra)
    return config


def _transfer_config(connector: Connector, server: MpServer | None) -> str:
    config = connector_config(connector)
    if server:
        place = {"lmcache.mp.host": f"tcp://{server.host}", "lmcache.mp.port": server.port}
        config["kv_connector_extra_config"] = {**place, **connector.extra}
    return json.dumps(config, sort_keys=True)


def server_argv(server: MpServer, release: ReleaseLayout) -> list[str]:
    """The LMCache server's command. Neither side of it has authentication: HTTP is on loopback whatever `host` says."""
    argv = [f"{release.venv}/bin/lmcache", "server", "--host", server.host, "--port", str(server.port)]
    argv += ["--http-host", LOOPBACK, "--http-port", str(server.http_port), "--l1-size-gb", f"{server.l1_size_gb:g}"]
    argv += ["--eviction-policy", server.eviction_policy, "--chunk-size", str(server.chunk_size)]
    # Left at its default the server and a CPU engine wait for one another for ever.
    argv += ["--supported-transfer-mode", server.transfer_mode]
    if server.l2_adapter:
        argv += ["--l2-adapter", json.dumps(server.l2_adapter, sort_keys=True)]
    return argv + list(server.args)


def vllm_argv(service: ServiceStep, connector: Connector, model: str, release: ReleaseLayout) -> list[str]:
    """vLLM's command. The module, not `vllm serve`, which the CPU wheel's metadata has no name for."""
    argv = [release.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    argv += ["--served-model-name", service.served_name, "--host", service.host, "--port", str(service.port)]
    argv += ["--kv-transfer-config", _transfer_config(connector, service.server)]
    return argv + list(service.args)


def sglang_argv(service: ServiceStep, model: str, release: ReleaseLayout) -> list[str]:
    """SGLang's command, with the counters by which its cached tokens are told apart."""
    argv = [release.python, "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--served-model-name", service.served_name, "--host", service.host, "--port", str(service.port)]
    argv += ["--enable-lmcache", "--lmcache-config-file", release.file(SGLANG_CONFIG)]
    return [*argv, "--enable-metrics", "--enable-cache-report", *service.args]


def engine_argv(service: ServiceStep, model: str, release: ReleaseLayout) -> list[str]:
    """The engine's command."""
    if service.connector:
        return vllm_argv(service, service.connector, model, release)
    return sglang_argv(service, model, release)


def _engine_texts(service: ServiceStep) -> dict[str, str]:
    """What the engine reads beside its command line: path below the release → text."""
    if service.engine != "sglang" or service.server is None:
        return {}
    return {SGLANG_CONFIG: yaml.safe_dump({"mp_host": service.server.host, "mp_port": service.server.port})}


@dataclass(frozen=True, slots=True)
class ServiceFiles:
    """What a release holds for its service.

    Args:
        texts: path below the release → text.
        executable: those of them that are started.
    """

    texts: dict[str, str]
    executable: frozenset[str]


def service_environment(
    service: ServiceStep, name: str, config: str | None, also: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables of the service and of whatever proves a release off-line.

    Args:
        service: the step.
        also: what the vendor's containers need.
        name: the release's name, which the running process carries in its environment.
        config: path of LMCache's configuration file; None without one.
    """
    return {
        # Unset, each process hashes tokens its own way and nothing that another one stored is ever found.
        "PYTHONHASHSEED": "0",
        "LMCACHE_TRACK_USAGE": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **({"LMCACHE_CONFIG_FILE": config} if config else {}),
        **(also or {}),
        **service.env,
        "LMCACHE_FLEET_RELEASE": name,
    }


def service_files(
    service: ServiceStep,
    model: str,
    release: ReleaseLayout,
    name: str,
    config: str | None,
    container: ContainerCommand | None = None,
) -> ServiceFiles:
    """Start scripts and environment of a release.

    Args:
        service: the step.
        model: directory of the weights; empty without an engine.
        release: paths of the release.
        name: the release's name, which the running process carries in its environment.
        config: path of LMCache's configuration file; None without one.
        container: how the processes run in an image; None when they run in the release's venv.
    """
    variables = service_environment(service, name, config, container.variables if container else None)

    def script(unit: str, argv: list[str], *module: str) -> str:
        # In an image a module, since its command need not be on the PATH there.
        if container is None:
            return _start_script(argv, f"{release.venv}/bin")
        inside = [*variables, *service.secrets, "HOME"]
        return start_script(container, container_name(unit), inside, [container.python, *module, *argv[1:]])

    texts = {"env/service.env": render_env(variables), **_engine_texts(service)}
    if service.has_engine:
        texts[f"bin/{service.engine}"] = script(ENGINE_UNITS[service.engine], engine_argv(service, model, release))
    if service.server:
        server = server_argv(service.server, release)
        texts["bin/lmcache-server"] = script(SERVER_UNIT, server, "-m", LMCACHE_MODULE)
    return ServiceFiles(texts, frozenset(text for text in texts if text.startswith("bin/")))


def container_name(unit: str) -> str:
    """Name of the container that a unit runs."""
    return unit.removesuffix(".service")


def _start_script(argv: list[str], path: str) -> str:
    command = " \\\n  ".join(shlex.quote(word) for word in argv)
    return f'#!/bin/sh\nPATH={shlex.quote(path)}:"$PATH"\nexport PATH\nexec {command}\n'
