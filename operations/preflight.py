"""Judge the current host for a playbook: every check of the catalogue, over one reading of the host."""

from __future__ import annotations

import os

from pyinfra import host, state
from pyinfra.api.exceptions import DeployError

from lmcache_fleet.inventory import data_layers, host_settings
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import read_playbook
from lmcache_fleet.playbook.model import Playbook, SourceStep, VenvStep
from lmcache_fleet.preflight import PREFLIGHT
from lmcache_fleet.preflight.catalogue import LANGUAGES, Finding, findings
from lmcache_fleet.preflight.control import unreachable
from lmcache_fleet.preflight.observation import ControlObservation, HostObservation, Subject
from lmcache_fleet.preflight.packages import index_urls
from lmcache_fleet.problems import InputError
from lmcache_fleet.repository import ROOT
from lmcache_fleet.resolution import platform_of, unresolved
from operations.bundle import use_bundle
from operations.host_fault import HostFault
from operations.observe import observe
from operations.plan import HostPlan, source_tree
from operations.session import Session, session_for

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def preflight_playbook(default: str) -> None:
    """Say what stands in the way of a playbook on the current host; the host fails when anything surely does.

    Args:
        default: the playbook's file, relative to the checkout; the host's data may name another as `playbook`.

    Nothing is changed. A fault of this host fails this host alone.
    """
    this = state.inventory.get_host(host.name)
    try:
        document = read_playbook(ROOT / str(this.data.get("playbook") or default))
        settings = host_settings(this.name, data_layers(this.inventory, this))
        session = session_for(state, this, Layout(settings.prefix))
        plan = HostPlan(session, document, settings.vars)
        use_bundle(plan, settings)
    except InputError as error:
        raise DeployError(str(error)) from error
    session.step = PREFLIGHT
    found = _judged(session, plan)
    if session.recorder:
        session.recorder.findings[this.name] = found
    language = os.environ.get("LMCACHE_FLEET_LANG", "en")
    language = language if language in LANGUAGES else "en"
    for item in found:
        this.log_styled(f"{item.severity}: {item.check}: {item.message(language)}", fg=_COLOURS[item.severity])
    errors = [item for item in found if item.severity == "error"]
    if errors:
        cause = "; ".join(f"{item.check}: {item.message(language)}" for item in errors)
        session.fail(HostFault(cause, "; ".join(dict.fromkeys(item.remedy(language) for item in errors))))
        state.fail_hosts({this})
    elif not found:
        session.progress("ready")


def _judged(session: Session, plan: HostPlan) -> list[Finding]:
    seen = observe(session, plan)
    if seen.arch is None:
        # Without an answer there is no playbook of the host's either: any architecture's will do to say so.
        return findings(Subject(plan.resolved("x86_64"), HostObservation(unread=seen.unread)))
    # What comes from a bundle is asked of nobody.
    control = _control(plan.playbook, seen) if plan.bundle is None else ControlObservation()
    return findings(Subject(plan.playbook, seen, control))


def _control(playbook: Playbook, seen: HostObservation) -> ControlObservation:
    sources = []
    steps: list[SourceStep] = playbook.of_kind(SourceStep)
    for step in steps:
        try:
            source_tree(step)
        except HostFault as fault:
            sources.append((step.name, fault.cause, fault.remedy))
    if seen.installed:
        return ControlObservation(sources=tuple(sources))
    lost = unreachable(index_urls(playbook))
    # What can't be reached can't be resolved either, and would only be said twice, after a long wait.
    lacking = () if lost else _lacking(playbook, seen)
    return ControlObservation(lost, lacking, tuple(sources))


def _lacking(playbook: Playbook, seen: HostObservation) -> tuple[tuple[str, str, str], ...]:
    """Each packages step whose pins can't be had for the host: (step, cause, remedy)."""
    venvs = playbook.of_kind(VenvStep)
    if not venvs or not venvs[0].resolve_first:
        return ()
    found = unresolved(playbook, platform_of(playbook, seen.arch or "", seen.glibc))
    return tuple((item.step, item.cause, item.remedy) for item in found)
