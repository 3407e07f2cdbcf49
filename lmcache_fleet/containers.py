"""Containers: which image a step stands for, and the arguments that a host's facts call for. Pure."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from lmcache_fleet.digest import digest
from lmcache_fleet.layout import STATE_DIRECTORY, ReleaseLayout
from lmcache_fleet.plain import Plain
from lmcache_fleet.playbook.model import ContainerImageStep, ServiceStep, parsed_requirement
from lmcache_fleet.problems import Trouble
from lmcache_fleet.registry import image_name

SPEC_LABEL = "lmcache-fleet.spec"
# Filled in on the host: the account's numbers, which an image's own /etc/passwd doesn't have.
USER, WORK = "@USER@", "@WORK@"


class ContainerFault(Trouble):
    """The host can't run the container as it must be run."""


@dataclass(frozen=True, slots=True)
class Image(Plain):
    """An image in a host's store.

    Args:
        id: digest of its configuration.
        digests: `name@sha256:…` by which it was pulled.
        tags: `name:tag` that lead to it.
        labels: its labels.
    """

    id: str
    digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerHost(Plain):
    """What of a host decides how containers run there.

    Args:
        version: of the engine, as it prints it; None without one.
        problem: what the engine said instead of listing its images; empty when it works.
        images: in its store.
        devices: paths of device nodes and device directories that accelerators have.
        files: those of the drivers' files and directories that exist.
        groups: group → its number on the host.
        cdi: kinds that the container device interface knows, such as `nvidia.com/gpu`.
    """

    version: str | None = None
    problem: str = ""
    images: tuple[Image, ...] = ()
    devices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    groups: dict[str, int] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """How a service's processes run in containers of one host.

    Args:
        engine: `podman` or `docker`.
        arguments: as `run_arguments` gave them.
        image: reference.
        python: the image's interpreter.
        user: account under which they run.
        variables: further variables of the service.
    """

    engine: str
    arguments: tuple[str, ...]
    image: str
    python: str
    user: str
    variables: dict[str, str]


@dataclass(frozen=True, slots=True)
class WantedImage:
    """The image that a step stands for.

    Args:
        reference: by which the engine finds it: `name@sha256:…`, or the tag of an image made on the host.
        base: what a made image is made on, by digest; None when its Dockerfile names it.
        spec: digest of all that a made image is made from; None for one that is pulled as it is.
        remote: where a made image is pushed to and taken from; None without.
    """

    reference: str
    base: str | None = None
    spec: str | None = None
    remote: str | None = None

    def found(self, host: ContainerHost) -> Image | None:
        """The image on a host, told by content: its digest, or the label of what it was made from."""
        if self.spec is None:
            wanted = self.reference.partition("@")[2]
            return next((i for i in host.images if any(d.endswith(f"@{wanted}") for d in i.digests)), None)
        tagged = (i for i in host.images if self.reference in i.tags)
        return next((i for i in tagged if i.labels.get(SPEC_LABEL) == self.spec), None)


def wanted_image(
    step: ContainerImageStep, resolved: str | None, source: dict[str, Any] | None, arch: str
) -> WantedImage:
    """The image that a step stands for.

    Args:
        step: the step.
        resolved: digest of `image`; None for a build from a source tree.
        source: identity of the source tree; None without one.
        arch: machine name of the host.
    """
    base = f"{image_name(step.image).name}@{resolved}" if step.image else None
    if not step.made:
        return WantedImage(base or "")
    parts = step.model_dump(mode="json", include={"build", "install", "python"})
    spec = digest([parts, base, source, arch], 20)
    remote = f"{image_name(step.push).name}:{spec}" if step.push else None
    return WantedImage(f"localhost/lmcache-fleet/{step.name}:{spec}", base, spec, remote)


# --- what a vendor's containers need ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Vendor:
    """Devices, groups, mounts and options of one vendor's containers.

    Args:
        devices: patterns, each of which a device of the host must match; all that match are handed over.
        shown: what is handed over in place of the devices that match, such as the directory that holds them.
        groups: groups of the host that own the devices, those that exist.
        files: files and directories of the driver, those that exist, mounted read-only; marked `!` when needed.
        options: further arguments.
        env: further variables.
        remedy: what to do when a device is missing.
    """

    devices: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    remedy: str = ""


_CDI = "nvidia.com/gpu"
_NVIDIA_RUNTIME = "/usr/bin/nvidia-container-runtime"
_VENDORS = {
    "cpu": _Vendor(),
    # The ROCm and XPU options are those of LMCache's installation guide, MUSA's too.
    "rocm": _Vendor(
        devices=("/dev/kfd", "/dev/dri/renderD*"),
        shown=("/dev/kfd", "/dev/dri"),
        groups=("video", "render"),
        options=("--security-opt", "seccomp=unconfined"),
        remedy="load the amdgpu driver (`modprobe amdgpu`) and look at `dmesg`",
    ),
    "xpu": _Vendor(
        devices=("/dev/dri/renderD*",),
        shown=("/dev/dri",),
        groups=("video", "render"),
        remedy="load the i915 or xe driver and look at `dmesg`",
    ),
    "musa": _Vendor(
        devices=("/dev/dri/renderD*",),
        # Privileged, and still not root: the account may open the nodes by their group only.
        groups=("video", "render"),
        options=("--privileged",),
        env={"MTHREADS_VISIBLE_DEVICES": "all"},
        remedy="install the MUSA driver and look at `mthreads-gmi`",
    ),
    "maca": _Vendor(
        devices=("/dev/mxcd", "/dev/dri/renderD*"),
        shown=("/dev/mxcd", "/dev/dri"),
        groups=("video", "render"),
        options=("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
        remedy="install the MetaX driver and look at `mx-smi`",
    ),
    "ascend": _Vendor(
        devices=("/dev/davinci[0-9]*", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        groups=("HwHiAiUser",),
        files=(
            "!/usr/local/Ascend/driver",
            "/usr/local/dcmi",
            "/usr/local/bin/npu-smi",
            "/etc/ascend_install.info",
            "/etc/vnpu.cfg",
        ),
        remedy="install the Ascend driver and firmware and look at `npu-smi info`",
    ),
    "cuda": _Vendor(
        remedy="install nvidia-container-toolkit, then `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
    ),
}

DEVICE_PATTERNS = tuple(dict.fromkeys(pattern for vendor in _VENDORS.values() for pattern in vendor.devices))
DRIVER_FILES = (_NVIDIA_RUNTIME, *(file.lstrip("!") for vendor in _VENDORS.values() for file in vendor.files))
GROUPS = tuple(dict.fromkeys(group for vendor in _VENDORS.values() for group in vendor.groups))


def vendor_environment(vendor: str) -> dict[str, str]:
    """Variables that a vendor's containers need."""
    return dict(_VENDORS[vendor].env)


def device_arguments(vendor: str, engine: str, host: ContainerHost, also: Sequence[str] = ()) -> list[str]:
    """Devices, groups, driver mounts and security options, as a host's facts call for.

    Args:
        vendor: the accelerator's.
        engine: `podman` or `docker`.
        host: the host's facts.
        also: further devices that the playbook names.

    Raises:
        ContainerFault: the host lacks one of them.
    """
    wanted = _VENDORS[vendor]
    if vendor == "cuda":
        if engine == "docker" and _NVIDIA_RUNTIME in host.files:
            arguments = ["--gpus", "all"]
        elif _CDI not in host.cdi:
            raise ContainerFault(f"no container device specification for {_CDI} on the host", wanted.remedy)
        else:
            arguments = ["--device", f"{_CDI}=all"]
    else:
        found = []
        for pattern in wanted.devices:
            matching = fnmatch.filter(host.devices, pattern)
            if not matching:
                raise ContainerFault(f"the host has no {pattern}", wanted.remedy)
            found += matching
        privileged = "--privileged" in wanted.options
        arguments = [] if privileged else _repeated("--device", wanted.shown or found)
    for path in also:
        if path not in host.devices:
            raise ContainerFault(f"the host has no {path}", "correct `devices` in the service step's `container`")
        arguments += ["--device", path]
    # By number: an image has groups of its own, and the same name may have another number there.
    arguments += _repeated("--group-add", [str(host.groups[name]) for name in wanted.groups if name in host.groups])
    for file in wanted.files:
        path = file.lstrip("!")
        if path in host.files:
            arguments += ["--volume", f"{path}:{path}:ro"]
        elif file.startswith("!"):
            raise ContainerFault(f"the host has no {path}", wanted.remedy)
    return arguments + list(wanted.options)


def _repeated(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def run_arguments(
    service: ServiceStep, engine: str, vendor: str, host: ContainerHost, volumes: Iterable[str]
) -> list[str]:
    """Everything between `ENGINE run` and the image, without name, environment and entry point.

    Args:
        service: the step; it has a `container`.
        engine: `podman` or `docker`.
        vendor: the accelerator's.
        host: the host's facts.
        volumes: mounts, as `there:inside[:ro]`.

    Raises:
        ContainerFault: the host lacks a device or the driver's files.
    """
    container = service.container
    assert container is not None
    # The unit's journal has the output already.
    arguments = ["--rm", "--pull", "never", "--log-driver", "none", "--network", "host", "--user", USER]
    devices = device_arguments(vendor, engine, host, container.devices)
    if "--privileged" not in devices:
        arguments += ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
    arguments += devices
    # Engine and server of MP mode hand tensors to one another in shared memory.
    arguments += ["--ipc", "host"] if service.server else ["--shm-size", container.shm_size]
    if container.memlock == "unlimited":
        arguments += ["--ulimit", "memlock=-1:-1"]
    elif engine == "podman":
        arguments += ["--ulimit", "host"]
    return arguments + _repeated("--volume", [*volumes, *container.mounts])


def need_engine(engine: str, host: ContainerHost) -> None:
    """See that the engine is there and answers.

    Raises:
        ContainerFault: it doesn't.
    """
    if host.version is None:
        raise ContainerFault(
            f"{engine} is not installed", f"put `system_packages: {{apt: [{_PACKAGES[engine]}]}}` before the image step"
        )
    if host.problem:
        raise ContainerFault(f"{engine} doesn't work: {host.problem}", f"look at `{engine} info` on the host")


_PACKAGES = {"podman": "podman", "docker": "docker.io"}


def volumes(release: ReleaseLayout, model: str) -> list[str]:
    """What every container of a release sees of the host, at the same paths as there.

    Args:
        release: paths of the release.
        model: directory of the weights; empty without any.
    """
    mounted = [f"{release.root}:{release.root}:ro", f"{STATE_DIRECTORY}:{STATE_DIRECTORY}"]
    return [*mounted, f"{model}:{model}:ro"] if model else mounted


def command_prefix(container: ContainerCommand, name: str, variables: Iterable[str], folder: str) -> list[str]:
    """Everything up to the entry point's value.

    Args:
        container: how processes run.
        name: the container's.
        variables: names of variables that go in; their values come from the environment, and are in no command line.
        folder: working directory.
    """
    command = [container.engine, "run", "--name", name, *container.arguments]
    return [*command, *_repeated("--env", sorted(variables)), "--workdir", folder, "--entrypoint"]


def start_script(container: ContainerCommand, name: str, variables: Iterable[str], argv: Sequence[str]) -> str:
    """A start script that runs a command in a container.

    Args:
        container: how it runs.
        name: the container's.
        variables: names of variables that go in.
        argv: the command; its first word becomes the entry point.
    """
    command = command_prefix(container, name, variables, STATE_DIRECTORY)
    command += [argv[0], container.image, *argv[1:]]
    user = shlex.quote(container.user)
    numbers = f'"$(id -u {user}):$(id -g {user})"'
    shown = " \\\n  ".join(numbers if word == USER else shlex.quote(word) for word in command)
    return f"#!/bin/sh\nexec {shown}\n"


def image_record(name: str) -> str:
    """Name of the record in which a release keeps what its image is and holds."""
    return f"image-{name}"


def expectations(step: ContainerImageStep) -> dict[str, Any]:
    """What the probe inside an image has to look at."""
    return {"attributes": sorted(step.attributes), "imports": list(step.imports)}


def unmet(step: ContainerImageStep, seen: dict[str, Any]) -> list[str]:
    """What an image that was probed lacks of a step, as short texts.

    Args:
        step: the step.
        seen: the probe's answer: `distributions`, `attributes`, `imports`, `python`.
    """
    wrong = []
    for pin in step.expect:
        requirement = parsed_requirement(pin)
        versions = seen["distributions"].get(canonicalize_name(requirement.name), [])
        if len(versions) != 1 or not requirement.specifier.contains(versions[0], prereleases=True):
            wrong.append(
                f"{requirement.name} is {' and '.join(versions) or 'not there'}, expected {requirement.specifier}"
            )
    for path, pattern in step.attributes.items():
        value = seen["attributes"].get(path)
        if value is None or not fnmatch.fnmatchcase(str(value), pattern):
            wrong.append(f"{path} is {value}, expected {pattern}")
    for module in step.imports:
        said = seen["imports"].get(module)
        if said:
            wrong.append(f"{module} doesn't load: {said}")
    return wrong
