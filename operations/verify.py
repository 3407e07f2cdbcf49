"""Evidence of KV offload: off-line before a release is sealed, on-line against the service."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from facts.releases import Releases
from lmcache_fleet.containers import WORK, ContainerCommand
from lmcache_fleet.envfile import parse_env
from lmcache_fleet.evidence import PROGRAM_FILES
from lmcache_fleet.judge import container_of, damage, evidence_change, evidence_subject
from lmcache_fleet.playbook.model import LmcacheConfigStep, ServiceStep, VerifyStep
from lmcache_fleet.repository import ROOT
from lmcache_fleet.shell import program_source, words
from lmcache_fleet.store import evidence_path, save_evidence
from lmcache_fleet.units import (
    ENGINE_UNITS,
    LMCACHE_MODULE,
    SERVER_UNIT,
    connector_config,
    container_name,
    server_url,
    service_environment,
)
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session

_SETTLE = 4


@lru_cache(maxsize=1)
def verify_programs() -> dict[str, str]:
    """Files of the verification program: name → text."""
    return {name: (ROOT / path).read_text(encoding="utf-8") for name, path in PROGRAM_FILES.items()}


def verify_request(session: Session, plan: HostPlan, step: VerifyStep) -> dict[str, Any]:
    """What `run_verify.py` is given: the program, its settings, and what the evidence is bound to.

    Args:
        session: the host's session.
        plan: the host's plan.
        step: the verify step.
    """
    wanted, target = plan.wanted, plan.target
    service = plan.playbook.described_service
    if service is None:
        raise HostFault("the verify step needs a service step, which says what is proved")
    config = _settings(plan, step, service)
    root = plan.system.uid == 0
    container = container_of(service, wanted, target.name)
    return {
        "release": session.layout.release(target.name).root,
        "stage": step.stage,
        "programs": verify_programs(),
        "config": _merged(config, step.options),
        "model": wanted.model_directory(service.model),
        "env": {
            **parse_env(wanted.toolkit_env or ""),
            **service_environment(service, target.name, wanted.config_path(target.name)),
            **(container.variables if container else {}),
        },
        # Off line the proof runs where the service will: in a container of its image, with its devices and mounts.
        "container": _one_off(container) if container and step.stage == "offline" else None,
        # On line it restarts the service, which only root can; off line it is whoever the service will be.
        "user": service.user if service.when and root and step.stage == "offline" else None,
        "subject": evidence_subject(step, wanted, target.name),
        "seal": step.stage == "offline",
    }


def _one_off(container: ContainerCommand) -> dict[str, Any]:
    return {
        "engine": container.engine,
        "arguments": [*container.arguments, "--volume", f"{WORK}:{WORK}"],
        "image": container.image,
        "python": container.python,
    }


def _settings(plan: HostPlan, step: VerifyStep, service: ServiceStep) -> dict[str, Any]:
    config: dict[str, Any] = {
        "mode": step.mode,
        "limits": {"total_s": max(60, step.timeout - 30)},
    }
    if not service.has_engine:
        return {**config, **_server_settings(plan, step, service)}
    config["model"] = plan.wanted.model_directory(service.model)
    config["engine"] = {"kind": service.engine}
    if service.connector:
        config["connector"] = connector_config(service.connector)
    lmcache = plan.playbook.of_kind(LmcacheConfigStep)
    if service.server:
        config["chunk_size"] = service.server.chunk_size
    elif lmcache:
        config["chunk_size"] = lmcache[0].settings.get("chunk_size", 256)
    if step.mode == "mp" and service.server:
        config["engine"]["args"] = list(service.args)
        config["server"] = {"l1_size_gb": service.server.l1_size_gb, "transfer_mode": service.server.transfer_mode}
    if step.mode == "service":
        unit = ENGINE_UNITS[service.engine]
        config["model"] = service.served_name
        config["service"] = {
            "url": f"http://127.0.0.1:{service.port}",
            # A second tier is written after the answer went out; a restart at once would cut that off.
            "restart_command": ["sh", "-c", f"sleep {_SETTLE} && systemctl restart {unit}"],
            **_running(unit),
        }
        if service.server:
            config["service"]["lmcache_metrics_urls"] = [f"{server_url(service.server)}/metrics"]
    return config


def _server_settings(plan: HostPlan, step: VerifyStep, service: ServiceStep) -> dict[str, Any]:
    """Of the proof of an LMCache server alone, whose client is LMCache's own."""
    server = service.server
    assert server is not None
    config: dict[str, Any] = {
        "mode": "server",
        "chunk_size": server.chunk_size,
        "server": {"l1_size_gb": server.l1_size_gb, "transfer_mode": server.transfer_mode},
    }
    if step.mode == "service":
        address = {"url": server_url(server), "rpc_url": f"tcp://{server.host}:{server.port}"}
        config["service"] = {**address, **_running(SERVER_UNIT)}
        container = container_of(service, plan.wanted, plan.target.name)
        if container:
            # The host has no LMCache: its client runs where the server does.
            inside = [container.engine, "exec", container_name(SERVER_UNIT), container.python]
            config["client"] = {"command": [*inside, "-m", LMCACHE_MODULE, "bench", "server"]}
    return config


def _running(unit: str) -> dict[str, list[str]]:
    """How a unit's log and main process are asked for."""
    # Since the main process's own start: what an earlier release wrote is no evidence.
    log = "journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID=$(systemctl show -p InvocationID --value "
    return {
        "log_command": ["sh", "-c", f"{log}{unit})"],
        "pid_command": ["systemctl", "show", "-p", "MainPID", "--value", unit],
    }


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Settings with the playbook's options laid over, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def evidence_file(session: Session, release: str, stage: str) -> tuple[str, Callable[[str], None]]:
    """Where a stage's evidence is on the host, and what stores it on the control machine.

    Args:
        session: the host's session.
        release: the release that is proved.
        stage: `offline` or `online`.
    """

    def keep(text: str) -> None:
        save_evidence(session.host.name, release, stage, json.loads(text))

    return session.layout.release(release).file(f"evidence/{stage}.json"), keep


@step_operation
def verify(session: Session, plan: HostPlan, step: VerifyStep) -> Commands:
    """There is evidence for this release, this driver and this model; off-line evidence seals the release.

    + step: stage, mode and settings of the verification program
    """
    target = plan.target
    changes = evidence_change(step, plan.wanted, target.state)
    if not session.show(changes):
        known = target.state.evidence.get(step.stage)
        if known and session.executing and not evidence_path(session.host.name, target.name, step.stage).exists():
            # Made when nobody fetched it: by a run whose control process was killed, or from another control machine.
            save_evidence(session.host.name, target.name, step.stage, known)
        session.host.noop(f"{step.stage} evidence is there")
        return
    if session.executing and step.stage == "offline":
        # Sealing says that every step's result is there: a later step may have undone an earlier one's.
        undone = damage(plan.wanted, plan.releases, target.state)
        if undone:
            raise HostFault(
                f"the release is not whole: {'; '.join(undone)}",
                "a later step undid an earlier one: change their order, or let the last word have `owns`",
            )
    request = verify_request(session, plan, step)

    # In a container playbook the host's own interpreter starts the one-off container.
    python = "python3" if plan.engine else session.layout.release(target.name).python
    yield session.remote(
        words(python, "-c", program_source("run_verify.py")),
        stdin=json.dumps(request),
        timeout=step.timeout,
        stream=True,
        doing=f"proving the KV offload {step.stage.replace('line', '-line')} (up to {step.timeout // 60} min)",
        fetch=evidence_file(session, target.name, step.stage),
    )
    session.forget(Releases)
