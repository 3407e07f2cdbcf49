"""The Dockerfile that puts a playbook's wheels on a base image."""

from __future__ import annotations

from lmcache_fleet.installer import install_call
from lmcache_fleet.layout import Layout, ReleaseLayout
from lmcache_fleet.playbook.model import ContainerImageStep, VenvStep
from lmcache_fleet.shell import exports, words
from lmcache_fleet.units import template_environment

_FOLDER = "/opt/lmcache-fleet-image"


def render_dockerfile(step: ContainerImageStep, base: str) -> dict[str, str]:
    """The build's context: path → text, its `Dockerfile` included.

    The calls are those of a `packages` step with pip: the same pins and the same flags, by the image's interpreter.

    Args:
        step: the step.
        base: the base image, by digest.
    """
    pip = VenvStep(python="3.12", installer="pip")
    calls, files = [], {}
    for install in step.install:
        call = install_call(install, pip, Layout(_FOLDER), ReleaseLayout(_FOLDER), "")
        calls.append(f"{exports(call.env)} {words(step.python, *call.argv[1:])}")
        files.update(call.files)
    values = {"base": base, "calls": calls, "files": files, "folder": _FOLDER}
    text = template_environment().get_template("image.Dockerfile.j2").render(values)
    return {"Dockerfile": text, **files}
