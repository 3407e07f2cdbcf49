"""The vendor's environment, captured from its scripts into a file that services read."""

from __future__ import annotations

from lmcache_fleet.judge import TOOLKIT_ENV
from lmcache_fleet.playbook.model import ToolkitEnvStep
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.session import Session
from operations.texts import write_texts


@step_operation
def toolkit_env(session: Session, plan: HostPlan, step: ToolkitEnvStep) -> Commands:
    """The release's environment file equals what the vendor's scripts give today.

    + step: the scripts, directories put before PATH, further variables
    """
    texts = {TOOLKIT_ENV: plan.wanted.toolkit_env or ""}
    yield from write_texts(session, plan, plan.changes(step), texts)
