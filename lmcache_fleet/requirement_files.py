"""Requirements files of a source tree, as plain requirements for one host."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lmcache_fleet.playbook.model import PackagesStep, Playbook, RequirementsFiles, VenvStep


class RequirementsFileError(Exception):
    """A requirements file can't be used; the message names file and line."""


def read_requirements(
    read: Callable[[str], str], path: str, environment: dict[str, str], seen: tuple[str, ...] = ()
) -> list[str]:
    """The requirements of a file and of those that it includes, markers judged and taken away.

    Args:
        read: gives a file's text by its path in the tree.
        path: the file.
        environment: marker variables of the host (`python_version`, `platform_machine`, ...).
        seen: files that include this one.

    Raises:
        RequirementsFileError: a line is no requirement, an option other than `-r`, or includes itself.
    """
    if path in seen:
        raise RequirementsFileError(f"{path} includes itself by way of {' and '.join(seen)}")
    found: list[str] = []
    for number, raw in enumerate(read(path).replace("\\\n", " ").splitlines(), start=1):
        line = raw.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        option, _, operand = line.partition(" ")
        if option in {"-r", "--requirement"} and operand.strip():
            inner = posixpath.normpath(posixpath.join(posixpath.dirname(path), operand.strip()))
            found += read_requirements(read, inner, environment, (*seen, path))
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise RequirementsFileError(f"{path}:{number}: '{line}' is no requirement that can be judged") from error
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            found.append(str(requirement))
    return list(dict.fromkeys(found))


def expanded(playbook: Playbook, archives: dict[str, Path], arch: str) -> Playbook:
    """The playbook with every `requirements` of a packages step turned into what the files ask for.

    Args:
        playbook: rendered for the host.
        archives: source step's name → its packed tree.
        arch: the host's machine name, for markers.

    Raises:
        RequirementsFileError: a file is missing or can't be used.
    """
    if not any(step.requirements for step in playbook.of_kind(PackagesStep)):
        return playbook
    venvs = playbook.of_kind(VenvStep)
    minor = venvs[0].python if venvs else "3.12"
    environment = {
        "python_version": minor,
        "python_full_version": f"{minor}.0",
        "platform_machine": arch,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    steps = [
        _with_lines(step, step.requirements, archives[step.requirements.source], environment)
        if isinstance(step, PackagesStep) and step.when and step.requirements
        else step
        for step in playbook.steps
    ]
    return playbook.model_copy(update={"steps": steps})


def _with_lines(
    step: PackagesStep, wanted: RequirementsFiles, archive: Path, environment: dict[str, str]
) -> PackagesStep:
    left_out = {canonicalize_name(name) for name in wanted.leave_out}
    with tarfile.open(archive, "r:gz") as packed:

        def read(path: str) -> str:
            try:
                member = packed.extractfile(f"{wanted.source}/{path}")
            except KeyError:
                member = None
            if member is None:
                raise RequirementsFileError(f"the source tree has no file {path}")
            return member.read().decode(errors="replace")

        lines = _lines(read, wanted.files, environment)
    kept = [line for line in lines if canonicalize_name(Requirement(line).name) not in left_out]
    return step.model_copy(update={"present": list(dict.fromkeys([*step.present, *kept]))})


def _lines(read: Callable[[str], str], files: Iterable[str], environment: dict[str, str]) -> list[str]:
    found: list[str] = []
    for path in files:
        found += read_requirements(read, path, environment)
    return found
