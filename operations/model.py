"""Weights on disk, in a directory of their own that releases share."""

from __future__ import annotations

from facts.releases import Releases
from lmcache_fleet.judge import TOOLKIT_ENV, model_name
from lmcache_fleet.playbook.model import ModelStep
from lmcache_fleet.shell import program_source, script, words
from operations.bundle import laid_out
from operations.container_image import python_in
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session


@step_operation
def model(session: Session, plan: HostPlan, step: ModelStep) -> Commands:
    """The model's files are there, as its manifest lists them.

    + step: a hub repository at a revision, a directory, or a tiny random model
    """
    if not session.show(plan.changes(step)):
        session.host.noop(f"model {step.name} is there")
        return
    release = session.layout.release(plan.target.name)
    directory = session.layout.model(model_name(step))
    staging = f"{directory}.new"
    if step.tiny is not None:
        program, arguments = "make_tiny_model.py", ["--out", staging, "--seed", str(step.tiny.seed)]
    elif step.hub and step.revision:
        program, arguments = "fetch_model.py", ["--out", staging, "--repo", step.hub, "--revision", step.revision]
        arguments += ["--endpoint", step.endpoint] if step.endpoint else []
    else:
        raise HostFault(f"the model step {step.name} names no origin")
    carried = plan.bundle.manifest.models.get(model_name(step)) if plan.bundle and step.hub else None
    if plan.bundle and carried:
        yield session.remote(
            script(
                laid_out(plan, list(carried.values()), staging, carried),
                f"rm -rf {words(directory)} && mv {words(staging, directory)}",
            ),
            timeout=step.timeout,
            doing=f"taking the model {step.hub} from the bundle",
        )
        session.forget(Releases)
        return
    toolkit = release.file(TOOLKIT_ENV)
    yield session.remote(
        script(
            f"umask 022; rm -rf {words(staging)} && mkdir -p {words(session.layout.model(''))}",
            f"if [ -f {words(toolkit)} ]; then set -a; . {words(toolkit)}; set +a; fi",
            f"cd / && {python_in(plan, session.layout.model(''))} {words('-', *arguments)}",
            f"rm -rf {words(directory)} && mv {words(staging, directory)}",
        ),
        stdin=program_source(program),
        timeout=step.timeout,
        stream=True,
        doing=f"making the tiny model {step.name}" if step.tiny else f"fetching the model {step.hub}",
    )
    session.forget(Releases)
