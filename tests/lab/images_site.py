"""A host with a container engine, a registry with vendors' images, and the pages that their wheels come from.

Engine, registry, pip and systemd are real; cards, and what stands for vLLM, torch and LMCache in images, are the lab's.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import images, services, vendors
from lab.packages import builds
from lab.packages.wheel import write_wheel
from lab.state import Paths
from tests.lab.conftest import RunningLab
from tests.lab.fleet import PREFIX, Fleet, Result
from tests.lab.systems_site import Systems, wheel_places

HOST = "h1"
# The lab's hosts may raise no limit and load no device filter (no CAP_SYS_RESOURCE on most machines that run labs).
STORAGE = """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
ENGINE = """
[containers]
cgroups = "disabled"
keyring = false
default_sysctls = []
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
env = ["BUILDAH_ISOLATION=chroot"]
"""
# No firewall rules of docker's own and no bridge: the service's containers have the host's network.
DOCKER = json.dumps(
    {
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "storage-driver": "vfs",
        "insecure-registries": ["10.0.0.0/8"],
    }
)
PREPARE = f"""
mkdir -p /etc/containers /etc/docker
printf '%s' '{STORAGE}' > /etc/containers/storage.conf
printf '%s' '{ENGINE}' > /etc/containers/containers.conf
printf '%s' '{DOCKER}' > /etc/docker/daemon.json
"""


@dataclass
class Images:
    """One host, a registry and pages of wheels."""

    systems: Systems
    registry: str
    work: Path
    pushed: dict[str, list[str]] = field(default_factory=dict)
    """Name in the registry → what was pushed under it, by digest, the oldest first."""

    def fleet(self, playbook: str) -> Fleet:
        """Runs of a playbook, and what is asked of the host."""
        return self.systems.fleet(playbook)

    def run(
        self,
        playbook: str,
        *options: str,
        file: Path | None = None,
        env: dict[str, str] | None = None,
        **variables: Any,
    ) -> Result:
        """Run a playbook, or another text of it, to its end on the one host."""
        return self.systems.run(playbook, HOST, *options, file=file, env=env, **variables)

    def root(self, command: str, *, check: bool = True) -> str:
        """What a command of root's prints on the host."""
        return self.fleet("rocm-image").root(HOST, command, check=check)

    def record(self, name: str, release: str = "") -> dict[str, Any]:
        """What a release notes of its image; the serving one, unless another is named."""
        place = f"releases/{release}" if release else "current"
        found: dict[str, Any] = json.loads(self.root(f"cat {PREFIX}/{place}/records/image-{name}.json"))
        return found

    def newest(self, playbook: str) -> str:
        """The release that a playbook made last."""
        return self.fleet(playbook).newest(HOST, playbook)

    def image(self, name: str) -> str:
        """The name of an image of the registry."""
        return f"{self.registry}/{name}"

    def there(self, reference: str, engine: str = "podman") -> bool:
        """Whether an image is on the host."""
        return self.root(f"{engine} image inspect {reference} >/dev/null 2>&1 && echo yes", check=False) == "yes"

    def brought(self) -> set[str]:
        """The images that are on the host for our sake."""
        noted = self.root(f"cat {PREFIX}/images/*.json").replace("}{", "}\n{").splitlines()
        return {name for entry in noted for name in json.loads(entry)["names"]}

    def named(self) -> set[str]:
        """The images that releases on the host name."""
        program = (
            f"import glob, json\nfor p in glob.glob('{PREFIX}/releases/*/records/image-*.json'):\n"
            "    r = json.load(open(p)); print(r['reference']); print(r['base'] or '')"
        )
        return set(self.fleet("rocm-image").python(HOST, program).split())

    @contextmanager
    def without(self, path: str) -> Iterator[None]:
        """A device that is gone for a while."""
        self.root(f"mv {path} {path}.away")
        try:
            yield
        finally:
            self.root(f"mv {path}.away {path}")

    def cards(self, profile: str) -> None:
        """Put other cards into the host."""
        vendors.install(self.systems.lab.lab.root(HOST), profile)
        self.root("rm -rf /dev/kfd /dev/dri; systemctl daemon-reload; systemctl restart lab-cards.service")

    def container_devices(self, profile: str) -> None:
        """Let the container engine know NVIDIA's cards by name, as the vendor's toolkit does."""
        self.root(f"mkdir -p /etc/cdi && printf '%s' {shlex.quote(vendors.cdi_spec(profile))} > /etc/cdi/nvidia.yaml")

    def push_sglang(self, name: str, version: str, lmcache: str) -> str:
        """Push what stands for the image of SGLang with LMCache; gives its digest.

        Args:
            name: name and tag in the registry.
            version: SGLang's.
            lmcache: LMCache's.
        """
        out = self.work / f"sglang-{lmcache}"
        inside = {
            ("sglang", version): builds.sglang(version, vendors.NODES["cuda"]),
            ("lmcache", lmcache): builds.lmcache(lmcache, "cuda"),
        }
        wheels = [write_wheel(out, *key, files, summary="Lab stand-in") for key, files in inside.items()]
        return self.push_wheels(name, [*wheels, third_party("pyyaml")])

    def push_wheels(self, name: str, *layers: list[Path], further: Sequence[bytes] = ()) -> str:
        """Push Python, pip and wheels; gives the image's digest.

        Args:
            name: name and tag in the registry.
            layers: wheels, those of each layer.
            further: layers on top of these.
        """
        base = self.systems.lab.lab.paths.root(HOST)
        minor = images.python_minor(base)
        packed = [images.wheel_layer(wheels, minor) for wheels in layers]
        return images.push(self.image(name), [images.base_layer(base, pip_wheel()), *packed, *further], self.work)

    def push(self, name: str, profile: str, lmcache: str | None = None) -> str:
        """Push what stands for a vendor's image; gives its digest.

        Args:
            name: name and tag in the registry.
            profile: of the host whose Python stack is in the image.
            lmcache: version of LMCache that is in it already.
        """
        layers = [vendors.stack_wheels(profile, self.work / f"stack-{profile}")]
        if lmcache:
            files, entry = builds.lmcache(lmcache, vendors.load(profile).vendor), builds.LMCACHE_COMMAND
            wheel = write_wheel(self.work / "ready", "lmcache", lmcache, files, entry_points=entry, summary="Stand-in")
            layers.append([wheel])
        digest = self.push_wheels(name, *layers)
        self.pushed.setdefault(name, []).append(f"{self.image(name).rpartition(':')[0]}@{digest}")
        return digest


def third_party(name: str) -> Path:
    """A real wheel, as the lab's own index keeps it."""
    return sorted((Paths.here("").cache / "packages").glob(f"third-party-*/**/{name}-*.whl"))[-1]


def pip_wheel() -> Path:
    """pip, for images that are built on."""
    return third_party("pip")


@contextmanager
def images_site(lab: RunningLab, work: Path) -> Iterator[Images]:
    """The host, blank and with AMD's cards, and the registry, still empty; LMCACHE_FLEET_TEST_REUSE keeps an old host.

    Args:
        lab: booted hosts, the first of which is taken.
        work: for wheels, images and artifacts.
    """
    if not os.environ.get("LMCACHE_FLEET_TEST_REUSE"):
        lab.reimage(HOST, profile="mi300x8")
        services.control(lab.lab.paths.lab)
    state = lab.lab.reload()
    with (
        wheel_places(lab, work) as places,
        images.registry(state.gateway, 5077, work / "registry") as address,
    ):
        trial = {"tls_verify": False, "memlock": "host", "model_tiny": True, "model": "tiny", "disk_gb": 1}
        site = Images(Systems(lab, work / "artifacts", {**places, **trial}), address, work)
        site.systems.places["trusted_hosts"] = [state.gateway]
        site.root(PREPARE)
        yield site
