"""Evidence across hosts: the first one stores a prompt in the tier that they share, the others have it from there."""

from __future__ import annotations

import json
import secrets
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import click
from pyinfra import host, state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from lmcache_fleet.changes import Change
from lmcache_fleet.cross_host import combine
from lmcache_fleet.evidence import Evidence, render
from lmcache_fleet.inventory import data_layers, host_settings
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import read_playbook
from lmcache_fleet.playbook.model import Connector, ServiceStep, VerifyStep
from lmcache_fleet.problems import InputError
from lmcache_fleet.repository import ROOT
from lmcache_fleet.shell import program_source, words
from lmcache_fleet.store import save_evidence
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session, session_for
from operations.verify import verify_request


class Proof:
    """One proof over the hosts of a run.

    Args:
        names: the hosts; the first one stores.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.nonce = secrets.token_hex(8)
        self.stored: Evidence | None = None


_proofs: WeakKeyDictionary[State, Proof] = WeakKeyDictionary()


def verify_across(path: str) -> None:
    """Prove that what the first host of the run stores is found by every other.

    Args:
        path: the playbook that the hosts were converged with, relative to the checkout.
    """
    this = state.inventory.get_host(host.name)
    try:
        document = read_playbook(ROOT / path)
        settings = {item.name: host_settings(item.name, data_layers(item.inventory, item)) for item in state.inventory}
        mine = settings[this.name]
        if document.data.get("role", "engine") not in mine.roles:
            return
        session = session_for(state, this, Layout(mine.prefix))
        plan = HostPlan(session, document, mine.vars)
    except InputError as error:
        raise DeployError(str(error)) from error
    proof = _proofs.get(this.state)
    if proof is None:
        active = {item.name for item in state.inventory.get_active_hosts()}
        names = [name for name, known in settings.items() if name in active and "engine" in known.roles]
        proof = _proofs[this.state] = Proof(names)
    if len(proof.names) < 2:
        raise DeployError(
            f"this needs two hosts with the role 'engine', and the run has {', '.join(proof.names) or 'none'}"
        )
    for name, call in this.loop(
        [("store", partial(store, session, plan, proof)), ("retrieve", partial(retrieve, session, plan, proof))]
    ):
        call(name=name)


@step_operation
def store(session: Session, plan: HostPlan, proof: Proof) -> Commands:
    """The first host computes a prompt that nobody has seen, and stores it.

    + proof: the hosts, and what was seen so far
    """
    name = session.host.name
    if name != proof.names[0]:
        session.show([])
        session.host.noop(f"{proof.names[0]} stores")
        return
    session.show([Change("KV of a new prompt", None, "stored in the shared tier")])

    def keep(text: str) -> None:
        proof.stored = _fresh(proof, text)

    yield _half(session, plan, proof, "store", keep)


@step_operation
def retrieve(session: Session, plan: HostPlan, proof: Proof) -> Commands:
    """Every other host answers the same prompt, from what the first one stored.

    + proof: the hosts, and what was seen so far
    """
    first, name = proof.names[0], session.host.name
    if name == first:
        session.show([])
        session.host.noop(f"{', '.join(proof.names[1:])} retrieve")
        return
    session.show([Change(f"KV that {first} stored", None, "retrieved")])
    if session.executing and proof.stored is None:
        raise HostFault(f"{first} stored nothing, so there is nothing to retrieve", f"see what {first} says")
    connector = _connector(plan)

    def judge(text: str) -> None:
        assert proof.stored is not None
        whole = combine(proof.stored, _fresh(proof, text), (first, name), connector.name)
        path = save_evidence(name, plan.target.name, f"cross-host-{first}", whole.as_json())
        for line in render(whole).splitlines():
            session.host.log(line)
        session.host.log(click.style(f"evidence: {path}", dim=True))
        if not whole.ok():
            wrong = next(finding for finding in whole.findings if finding.severity == "error")
            raise HostFault(f"{wrong.id}: {wrong.message}; {wrong.cause}", wrong.remedy)

    yield _half(session, plan, proof, "retrieve", judge)


def _fresh(proof: Proof, text: str) -> Evidence:
    """The evidence of this run; what an earlier one left on the host is none."""
    evidence = Evidence.from_json(json.loads(text))
    if not any(proof.nonce in note for note in evidence.notes):
        raise HostFault("the verification left no evidence", "see its output above")
    return evidence


def _connector(plan: HostPlan) -> Connector:
    service: ServiceStep | None = next(iter(plan.playbook.of_kind(ServiceStep)), None)
    if service is None or service.connector is None:
        what = "no service"
        if service:
            what = f"no vLLM ({service.engine if service.has_engine else 'an LMCache server alone'})"
        raise HostFault(f"the playbook has {what} on this host", "give a playbook whose service step runs vLLM")
    return service.connector


def _half(session: Session, plan: HostPlan, proof: Proof, part: str, then: Any) -> Any:
    """The command of one host's half."""
    _connector(plan)
    if plan.releases.current != plan.target.name:
        raise HostFault("the host doesn't serve what the playbook wants", "converge it first, then run this again")
    online = [step for step in plan.playbook.of_kind(VerifyStep) if step.stage == "online"]
    step = online[0] if online else VerifyStep(stage="online", mode="service")
    request = verify_request(session, plan, step)
    stage = f"cross-host-{part}"
    request.update(stage=stage, seal=False)
    config = request["config"]
    config["prompt"] = {**config.get("prompt", {}), "nonce": proof.nonce}
    config["service"] = {**config["service"], "part": part, "restart_command": None}
    config["limits"] = {**config["limits"], "settle_s": 20}
    return session.remote(
        words("python3", "-c", program_source("run_verify.py")),
        stdin=json.dumps(request),
        timeout=step.timeout,
        stream=True,
        doing={"store": "computing and storing a new prompt", "retrieve": f"asking what {proof.names[0]} stored"}[part],
        fetch=(session.layout.release(plan.target.name).file(f"evidence/{stage}.json"), then),
    )
