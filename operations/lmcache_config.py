"""LMCache's configuration file in the release."""

from __future__ import annotations

from lmcache_fleet.judge import CONFIG, config_text
from lmcache_fleet.playbook.model import LmcacheConfigStep
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.session import Session
from operations.texts import write_texts


@step_operation
def lmcache_config(session: Session, plan: HostPlan, step: LmcacheConfigStep) -> Commands:
    """LMCache's configuration file equals the step's settings.

    + step: the settings, whose keys were checked against that LMCache version
    """
    yield from write_texts(session, plan, plan.changes(step), {CONFIG: config_text(step)})
