"""Apply a playbook to the current host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyinfra import host, state
from pyinfra.api.exceptions import DeployError

from lmcache_fleet.compatibility import findings
from lmcache_fleet.inventory import HostSettings, data_layers, host_settings
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import read_playbook
from lmcache_fleet.playbook.model import (
    ContainerImageStep,
    KvStoreStep,
    LmcacheConfigStep,
    ModelStep,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SourceStep,
    StepBase,
    SystemPackagesStep,
    ToolkitEnvStep,
    VenvStep,
    VerifyStep,
)
from lmcache_fleet.problems import InputError
from lmcache_fleet.repository import ROOT
from lmcache_fleet.requirements import is_experimental, shortfalls
from operations.bundle import bundle, require_bundle, use_bundle
from operations.container_image import container_image
from operations.converged import Call, converged, unfinished
from operations.dependencies import dependencies
from operations.host_fault import HostFault
from operations.kv_store import kv_store
from operations.lmcache_config import lmcache_config
from operations.model import model
from operations.native_build import native_build, source
from operations.packages import packages
from operations.plan import HostPlan
from operations.release import carried, release, retention, switch
from operations.report import host_report
from operations.resolution import require_resolvable
from operations.service import account, secrets, service, service_files
from operations.session import Session, session_for
from operations.system_packages import system_packages
from operations.toolkit_env import toolkit_env
from operations.venv import installer_tool, venv
from operations.verify import verify

_STEPS: dict[type[StepBase], Callable[..., Any]] = {
    ToolkitEnvStep: toolkit_env,
    PackagesStep: packages,
    SourceStep: source,
    NativeBuildStep: native_build,
    ContainerImageStep: container_image,
    ModelStep: model,
    LmcacheConfigStep: lmcache_config,
}


def apply_playbook(path: str) -> None:
    """Bring the current host to what a playbook wants.

    Args:
        path: the playbook's file, relative to the checkout.

    A fault of this host fails this host alone; a fault of the playbook ends the run before any host is touched.
    """
    # The imported name is a proxy for whichever host is in context: what is kept must be the host itself.
    this = state.inventory.get_host(host.name)
    try:
        document = read_playbook(ROOT / path)
        settings = host_settings(this.name, data_layers(this.inventory, this))
        role = document.data.get("role", "engine")
        if role not in settings.roles:
            this.log(f"left alone: {path} is for hosts with the role '{role}'")
            return
        session = session_for(state, this, Layout(settings.prefix))
        plan = HostPlan(session, document, settings.vars)
        use_bundle(plan, settings)
    except InputError as error:
        raise DeployError(str(error)) from error
    session.step = "requirements"
    try:
        seen = plan.observed()
        unmet = shortfalls(plan.playbook.requires, seen)
        if unmet:
            cause = "; ".join(f"{item.what}: {item.cause}" for item in unmet)
            raise HostFault(cause, "; ".join(dict.fromkeys(item.remedy for item in unmet)))
        if is_experimental(plan.playbook.requires.accelerator, seen.soc):
            this.log(f"experimental: nobody vouches for {plan.playbook.name} on {seen.soc}")
        bad = findings(plan.playbook, seen)
        if bad:
            cause = "; ".join(f"{item.rule}: {item.message}" for item in bad)
            raise HostFault(cause, "; ".join(dict.fromkeys(item.remedy for item in bad)))
        # Worked out once here, so that what can't be had (a source, an environment) is said before anything is touched.
        _ = plan.target
        require_resolvable(plan)
        require_bundle(plan)
        kept = carried(session, plan)
        if kept:
            this.log(
                f"current stays at {plan.releases.current}, from which {' and '.join(kept)} starts: what this playbook "
                f"makes is {session.layout.release(plan.target.name).root}"
            )
        if session.recorder:
            session.recorder.reports[this.name] = host_report(session, plan)
    except HostFault as fault:
        session.fail(fault)
        state.fail_hosts({this})
        return
    except InputError as error:
        raise DeployError(str(error)) from error
    calls = list(_calls(session, plan, plan.playbook, settings))
    if unfinished(session, calls) is None:
        calls = [("converged", partial(converged, session, calls))]
    for name, call in this.loop(calls):
        call(name=name)


def _calls(session: Session, plan: HostPlan, playbook: Playbook, settings: HostSettings) -> Iterator[Call]:
    """The operations of a playbook, in order, each with its name.

    With `until: prepared` they end before the switch, and nothing that serves notices.

    The release's directory is made before the first step that puts something into it, the service's account and files
    before anything is proved as that account or started, and old releases go last.
    """
    if settings.bundle is not None:
        yield "00 bundle", partial(bundle, session, plan)
    made = False
    services = playbook.of_kind(ServiceStep)
    unprepared = list(services)
    for number, step in enumerate(playbook.steps, start=1):
        if not step.when:
            continue
        label = f"{number:02d} {_label(step)}"
        if isinstance(step, SystemPackagesStep):
            yield label, partial(system_packages, session, plan, step)
            continue
        if isinstance(step, KvStoreStep):
            yield label, partial(kv_store, session, plan, step, settings.secrets)
            continue
        if not made:
            made = True
            yield f"{number:02d} release", partial(release, session, plan)
        if unprepared and (isinstance(step, ServiceStep) or (isinstance(step, VerifyStep) and step.stage == "offline")):
            wanted = unprepared.pop()
            yield f"{number:02d} dependencies", partial(dependencies, session, plan)
            yield f"{number:02d} account", partial(account, session, plan, wanted)
            yield f"{number:02d} service files", partial(service_files, session, plan, wanted)
        if isinstance(step, VenvStep):
            yield f"{number:02d} installer", partial(installer_tool, session, plan, step)
            yield label, partial(venv, session, plan, step)
        elif settings.until == "prepared" and (
            isinstance(step, ServiceStep) or (isinstance(step, VerifyStep) and step.stage == "online")
        ):
            continue
        elif isinstance(step, ServiceStep):
            if step.secrets:
                yield f"{number:02d} secrets", partial(secrets, session, plan, step, settings.secrets)
            yield label, partial(service, session, plan, step, settings.secrets)
        elif isinstance(step, VerifyStep):
            yield label, partial(verify, session, plan, step)
        else:
            yield label, partial(_STEPS[type(step)], session, plan, step)
    if settings.until == "prepared":
        return
    if made and not services:
        yield "98 switch", partial(switch, session, plan)
    if made:
        yield "99 retention", partial(retention, session, plan, settings.keep_releases)


def _label(step: StepBase) -> str:
    kind = str(getattr(step, "kind", ""))
    detail = getattr(step, "name", None) or getattr(step, "package", None) or getattr(step, "stage", None)
    return f"{kind} {detail}" if detail else kind
