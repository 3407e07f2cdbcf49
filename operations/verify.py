"""Evidence of KV offload: off-line before a release is sealed, on-line against the service."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from facts.releases import Releases
from facts.system import System
from lmcache_fleet.evidence import render_evidence
from lmcache_fleet.judge import damage, evidence_change, evidence_subject
from lmcache_fleet.playbook.model import LmcacheConfigStep, ModelStep, NativeBuildStep, ServiceStep, VerifyStep
from lmcache_fleet.shell import program_source, words
from lmcache_fleet.store import save_evidence
from lmcache_fleet.units import SERVER_UNIT, VLLM_UNIT
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.session import HostFault, Session

_PROGRAMS = ("verify.py",)


def verify_request(session: Session, plan: HostPlan, step: VerifyStep) -> dict[str, Any]:
    """What `run_verify.py` is given.

    Args:
        session: the host's session.
        plan: the host's plan.
        step: the verify step.
    """
    wanted, target = plan.wanted, plan.target
    services = plan.playbook.of_kind(ServiceStep)
    models = plan.playbook.of_kind(ModelStep)
    config: dict[str, Any] = {"mode": step.mode, "timeout_s": step.timeout - 30}
    if models:
        config["model"] = wanted.model_directory(services[0].model if services else models[0].name)
    settings = plan.playbook.of_kind(LmcacheConfigStep)
    if settings and "chunk_size" in settings[0].settings:
        config["chunk_size"] = settings[0].settings["chunk_size"]
    config["packages"] = sorted({*(item.package for item in plan.playbook.of_kind(NativeBuildStep))})
    if services and step.stage == "online":
        service = services[0]
        config["url"] = f"http://127.0.0.1:{service.port}"
        config["model"] = service.served_name
        config["tokenizer"] = wanted.model_directory(service.model)
        config["connector"] = service.connector.name
        config["units"] = [SERVER_UNIT, VLLM_UNIT] if service.server else [VLLM_UNIT]
        config["restart_command"] = ["systemctl", "restart", VLLM_UNIT]
        config["log_command"] = ["journalctl", "-u", VLLM_UNIT, "-o", "cat", "--no-pager"]
        if service.server:
            config["chunk_size"] = service.server.chunk_size
            config["server_metrics_url"] = f"http://127.0.0.1:{service.server.http_port}/metrics"
    root = session.read(System, prefix=session.layout.prefix).uid == 0
    return {
        "release": session.layout.release(target.name).root,
        "stage": step.stage,
        "main": _PROGRAMS[0],
        "programs": {name: program_source(name) for name in _PROGRAMS},
        "config": {**config, **step.options},
        "env": {},
        # On line it restarts the service, which only root can.
        "user": services[0].user if services and root and step.stage == "offline" else None,
        "subject": evidence_subject(step, wanted, target.name),
        "seal": step.stage == "offline",
    }


def evidence_file(session: Session, plan: HostPlan, stage: str) -> tuple[str, Callable[[str], None]]:
    """Where a stage's evidence is on the host, and what stores it on the control machine and shows it.

    Args:
        session: the host's session.
        plan: the host's plan.
        stage: `offline` or `online`.
    """
    release = plan.target.name

    def keep(text: str) -> None:
        evidence = json.loads(text)
        save_evidence(session.host.name, release, stage, evidence)
        for line in render_evidence(evidence).splitlines():
            session.host.log(line)

    return session.layout.release(release).file(f"evidence/{stage}.json"), keep


@step_operation
def verify(session: Session, plan: HostPlan, step: VerifyStep) -> Commands:
    """There is evidence for this release, this driver and this model; off-line evidence seals the release.

    + step: stage, mode and settings of the verification program
    """
    target = plan.target
    changes = evidence_change(step, plan.wanted, target.state)
    if step.stage == "offline" and not changes and not target.state.sealed:
        changes = evidence_change(step, plan.wanted, plan.target.state.__class__(target.name))
    if not session.show(changes):
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

    python = session.layout.release(target.name).python
    yield session.remote(
        words(python, "-c", program_source("run_verify.py")),
        stdin=json.dumps(request),
        timeout=step.timeout,
        stream=True,
        doing=f"proving the KV offload {step.stage.replace('line', '-line')} (up to {step.timeout // 60} min)",
        fetch=evidence_file(session, plan, step.stage),
    )
    session.forget(Releases)
