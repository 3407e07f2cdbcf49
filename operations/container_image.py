"""An image on the host: pulled by digest or made there, and what it holds, told from inside it."""

from __future__ import annotations

import base64
import json
from typing import Any

from pyinfra.connectors.util import CommandOutput

from facts.containers import Containers
from facts.releases import Releases
from lmcache_fleet.containers import (
    SPEC_LABEL,
    ContainerFault,
    device_arguments,
    expectations,
    image_record,
    need_engine,
)
from lmcache_fleet.dockerfile import render_dockerfile
from lmcache_fleet.judge import image_shortfalls
from lmcache_fleet.playbook.model import ContainerImageStep, ServiceStep
from lmcache_fleet.shell import program_source, words
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session


@step_operation
def container_image(session: Session, plan: HostPlan, step: ContainerImageStep) -> Commands:
    """The image is on the host, is the wanted one by its content, and holds what the step expects.

    + step: the image or what it is made from, and what it must hold
    """
    if not session.show(plan.changes(step)):
        session.host.noop(f"image {step.name} is there")
        return
    if plan.image_host.version is None and not session.executing:
        # A step above installs the engine.
        session.host.log(f"{session.step}  {step.engine} isn't there yet")
    request = image_request(session, plan, step) if session.executing else {}
    seen: dict[str, Any] = {}

    def note(output: CommandOutput) -> None:
        lines = [line for line in output.stdout_lines if line.startswith("image ")]
        if lines:
            seen.update(json.loads(lines[-1].partition(" ")[2])["seen"])
        wrong = image_shortfalls(step, seen)
        if wrong:
            raise HostFault(
                f"the image {step.name} doesn't hold what it must: {'; '.join(wrong)}",
                "take the image that these wheels are made for, or build from source against what the image holds",
            )

    wanted = plan.wanted.images[step.name]
    yield session.remote(
        words("python3", "-c", program_source("container_image.py")),
        stdin=json.dumps(request),
        timeout=step.timeout,
        doing=f"{'making' if wanted.spec else 'pulling'} the image {step.name}",
        then=note,
    )
    session.forget(Containers, Releases)


def image_request(session: Session, plan: HostPlan, step: ContainerImageStep) -> dict[str, Any]:
    """What `container_image.py` is given.

    Args:
        session: the host's session.
        plan: the host's plan.
        step: the step.
    """
    wanted = plan.wanted.images[step.name]
    build: dict[str, Any] | None = None
    if wanted.spec:
        build = {"spec": wanted.spec, "remote": wanted.remote, "base": wanted.base, "archive": None, "files": {}}
        build.update({"dockerfile": "Dockerfile", "target": None, "args": {}, "archive_sha256": None})
        if step.build:
            tree = plan.trees()[step.build.source]
            build.update(step.build.model_dump(include={"dockerfile", "target", "args"}))
            if step.build.version:
                # As in a source distribution; setuptools_scm reads it when there is no repository.
                info = f"Metadata-Version: 2.1\nName: {step.build.source}\nVersion: {step.build.version}\n"
                build["files"] = {"PKG-INFO": info}
            build["archive"] = base64.b64encode(tree.archive.read_bytes()).decode()
            build["archive_sha256"] = tree.sha256
        else:
            build["files"] = render_dockerfile(step, wanted.base or "")
    try:
        need_engine(step.engine, plan.image_host)
        # Without modules to load the probe only reads metadata, and an image can be prepared before the driver is.
        run = device_arguments(plan.vendor, step.engine, plan.image_host) if step.imports else []
    except ContainerFault as fault:
        raise HostFault(fault.cause, fault.remedy) from fault
    release = session.layout.release(plan.target.name)
    return {
        "engine": step.engine,
        "reference": wanted.reference,
        "tls_verify": step.tls_verify,
        "label": SPEC_LABEL,
        "build": build,
        "builds": f"{session.layout.prefix}/builds",
        "python": step.python,
        "program": program_source("probe_image.py"),
        "probe": expectations(step),
        "run": run,
        "ledger": session.layout.images,
        "record": release.file(f"records/{image_record(step.name)}.json"),
    }


def python_in(plan: HostPlan, *folders: str) -> str:
    """The interpreter that a release's programs run under: its venv's, or one in a container, as shell words.

    Args:
        plan: the host's plan.
        folders: what it may write to, in a container.
    """
    service = next(iter(plan.playbook.of_kind(ServiceStep)), None)
    if plan.engine is None or service is None or service.container is None:
        return words(plan.session.layout.release(plan.target.name).python)
    image = next(step for step in plan.playbook.of_kind(ContainerImageStep) if step.name == service.container.image)
    argv = [image.engine, "run", "--rm", "--interactive", "--pull", "never", "--network", "host"]
    argv += [word for folder in folders for word in ("--volume", f"{folder}:{folder}")]
    # Hubs are reached as the host reaches them.
    argv += [word for name in _PASSED for word in ("--env", name)]
    return words(*argv, "--entrypoint", image.python, plan.wanted.images[image.name].reference)


_PASSED = ("HF_TOKEN", "HF_HUB_OFFLINE", "https_proxy", "http_proxy", "no_proxy")
