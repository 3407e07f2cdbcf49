"""The playbook's pins can be had: asked on the control machine before anything is changed on the host."""

from __future__ import annotations

from lmcache_fleet.playbook.model import PackagesStep
from lmcache_fleet.resolution import platform_of, unresolved
from operations.host_fault import HostFault
from operations.plan import HostPlan


def require_resolvable(plan: HostPlan) -> None:
    """Refuse to begin what an index would stop half-way. A host with nothing to install asks nobody.

    Args:
        plan: the host's plan.

    Raises:
        HostFault: a step's pins can't be had; `plan.session.step` then names that step.
    """
    venv = plan.venv
    if plan.target.complete or venv is None or not venv.resolve_first or plan.bundle is not None:
        return
    playbook, system = plan.playbook, plan.system
    lacking = [step for step in playbook.of_kind(PackagesStep) if plan.changes(step)]
    failures = unresolved(playbook, platform_of(playbook, system.arch or "", system.glibc), lacking)
    if not failures:
        return
    numbers = {step.name: number for number, step in enumerate(playbook.steps, 1) if isinstance(step, PackagesStep)}
    first = failures[0]
    plan.session.step = f"{numbers[first.step]:02d} packages {first.step}"
    others = ", ".join(failure.step for failure in failures[1:])
    raise HostFault(first.cause + (f" (likewise the steps {others})" if others else ""), first.remedy)
