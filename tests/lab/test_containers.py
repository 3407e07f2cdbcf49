"""The container playbooks on one host: a real engine, a real registry, real pip; stand-in cards, vLLM and wheels.

In this order, each on the last. About three minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lab import images, services
from lab.packages import builds, catalog
from lab.packages.wheel import write_wheel
from tests.lab.conftest import RunningLab
from tests.lab.fleet import PREFIX, Fleet, Result

HOST = "h1"
SERVER = "lmcache-fleet-server.service"
CARDS = [
    {
        "gpu": number,
        "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
        "bus": {"bdf": f"0000:0{number}:00.0"},
        "driver": {"name": "amdgpu", "version": "6.14.14"},
        "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
    }
    for number in range(2)
]
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
PREPARE = f"""
mkdir -p /etc/containers /opt/rocm/bin /dev/dri
printf '%s' '{STORAGE}' > /etc/containers/storage.conf
printf '%s' '{ENGINE}' > /etc/containers/containers.conf
printf '#!/bin/sh\\n[ "$1" = static ] || exit 1\\ncat /opt/rocm/cards.json\\n' > /opt/rocm/bin/amd-smi
chmod 755 /opt/rocm/bin/amd-smi
printf '%s' '{json.dumps(CARDS)}' > /opt/rocm/cards.json
getent group render >/dev/null || groupadd --system render
for node in /dev/kfd /dev/dri/renderD128 /dev/dri/renderD129; do
  [ -e $node ] || mknod -m 660 $node c 1 3; chgrp render $node; chmod 660 $node
done
"""


@dataclass
class Site:
    """One host, a registry and a page of wheels."""

    fleet: Fleet
    registry: str
    pages: str
    work: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def run(self, *options: str, **variables: Any) -> Result:
        """Run the playbook to its end on the one host."""
        return self.fleet.run("--limit", HOST, *options, limit=600, **{**self.variables, **variables})

    def root(self, command: str, *, check: bool = True) -> str:
        """What a command of root's prints on the host."""
        return self.fleet.root(HOST, command, check=check)

    def record(self, name: str = "image-vllm-rocm") -> dict[str, Any]:
        """What the serving release notes of its image."""
        found: dict[str, Any] = json.loads(self.root(f"cat {PREFIX}/current/records/{name}.json"))
        return found


def wheels(folder: Path) -> None:
    """Pages as LMCache's releases have them, and an index that has the other wheel of the same version."""
    for page, version in (("v0.5.3-rocm", "0.5.3+rocm7.2"), ("v0.5.3-xpu", "0.5.3+xpu"), ("simple/lmcache", "0.5.3")):
        files = builds.lmcache(version, "rocm")
        entry = builds.LMCACHE_COMMAND
        wheel = write_wheel(folder / page, "lmcache", version, files, entry_points=entry, summary="Lab stand-in")
        (folder / page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')


# What stands for ROCm in vLLM: a platform that can work only when this very process may open the cards.
PLATFORM = """
import os


def register():
    return "lab_rocm.RocmPlatform"


class RocmPlatform:
    device_type = "cuda"
    device_name = "cuda"

    def make_worker(self, config):
        return Worker()


class Worker:
    def init_device(self):
        for path in ("/dev/kfd", "/dev/dri/renderD128"):
            os.close(os.open(path, os.O_RDWR))

    def before_inference(self):
        open(os.path.join(os.environ["HOME"], "kernels"), "a").close()

    def cache_bytes(self):
        return 1 << 30

    def release(self):
        pass
"""


def vendor_layers(site_folder: Path, base: Path, torch: str = "2.11.0") -> list[bytes]:
    """What stands for vLLM's image: Python and pip, vLLM and torch."""
    out = site_folder / f"wheels-{torch}"
    entry = "[vllm.platform_plugins]\nrocm = lab_rocm:register\n"
    write_wheel(out, "lab-rocm", "1", {"lab_rocm.py": PLATFORM.encode()}, entry_points=entry, summary="Lab stand-in")
    made = [path for path in catalog.build(out)[catalog.MAIN] if path.name.startswith((f"torch-{torch}-", "vllm-0.23"))]
    made.append(out / "lab_rocm-1-py3-none-any.whl")
    assert len(made) == 3, made
    minor = images.python_minor(base)
    return [images.base_layer(base, pip_wheel()), images.wheel_layer(made, minor)]


def pip_wheel() -> Path:
    """pip, as the lab's own index keeps it."""
    from lab.state import Paths

    return sorted((Paths.here("").cache / "packages").glob("third-party-*/**/pip-*.whl"))[-1]


@pytest.fixture(scope="module")
def site(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The host, with cards of a sort and nothing of ours on it."""
    if images.missing():
        pytest.skip(f"the registry needs {', '.join(images.missing())}: apt-get install {' '.join(images.NEEDED)}")
    reuse = os.environ.get("LMCACHE_FLEET_TEST_REUSE")
    work = Path(reuse) if reuse else tmp_path_factory.mktemp("containers")
    fleet = Fleet(lab, work / "artifacts", playbook="deploys/rocm-image.py")
    state = lab.lab.reload()
    if not reuse:
        lab.reimage(HOST, profile="none")
        services.control(lab.lab.paths.lab)
    fleet.root(HOST, PREPARE)
    pages = work / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    wheels(pages)

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(pages))

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((state.gateway, 5078), Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    with images.registry(state.gateway, 5077, work / "registry") as address:
        base = lab.lab.paths.root(HOST)
        layers = vendor_layers(work / "layers", base)
        images.push(f"{address}/vllm/vllm-openai-rocm:v0.25.0", layers, work)
        url = f"http://{state.gateway}:{server.server_port}"
        yield Site(
            fleet,
            address,
            url,
            work,
            {
                "image": f"{address}/vllm/vllm-openai-rocm:v0.25.0",
                "tls_verify": False,
                "releases_url": url,
                "index_url": f"{url}/simple",
                "trusted_hosts": [state.gateway],
                "memlock": "host",
                "model_tiny": True,
                "model": "tiny",
                "disk_gb": 1,
            },
        )
    server.shutdown()


def test_a_wheel_is_put_on_the_image_and_the_service_runs_in_it(site: Site) -> None:
    result = site.run("-y", "--json")
    assert result.code == 0, result.err + result.out
    record = site.record()
    assert record["seen"]["distributions"]["lmcache"] == ["0.5.3+rocm7.2"]
    pinned = json.loads((site.fleet.artifacts / "images.json").read_text())
    assert list(pinned) == [site.variables["image"]]
    script = " ".join(shlex.split(site.root(f"cat {PREFIX}/current/bin/vllm").replace("\\\n", " "), comments=True))
    for words in ("--device /dev/kfd", "--device /dev/dri", "seccomp=unconfined", "--cap-drop all", "--pull never"):
        assert words in script
    for stage in ("offline", "online"):
        assert site.fleet.evidence(HOST, site.fleet.serving(HOST), stage)["ok"]
    inside = site.root(
        "podman exec lmcache-fleet-vllm python3 -c 'import os; print(os.getuid(), sorted(os.listdir(\"/dev\")))'"
    )
    assert "'dri'" in inside
    assert "'kfd'" in inside
    assert inside.split()[0] == site.root("id -u lmcache")


def test_a_second_run_changes_nothing_and_asks_the_host_once(site: Site, tmp_path: Path) -> None:
    before = (site.fleet.listing(HOST), site.fleet.main_pid(HOST))
    result = site.run("--dry", "--json")
    assert result.code == 0, result.err
    assert result.planned == set()
    counts = tmp_path / "counts.json"
    env = {"COUNTS": str(counts)}
    result = site.fleet.run("--limit", HOST, "-y", "--json", "--diff", limit=600, env=env, **site.variables)
    assert result.code == 0, result.err
    assert result.changed == set(), result.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert (site.fleet.listing(HOST), site.fleet.main_pid(HOST)) == before


def test_drift_of_command_environment_and_image_is_seen_and_mended(site: Site) -> None:
    serving = site.fleet.serving(HOST)
    tag = site.record()["reference"]
    release = f"{PREFIX}/releases/{serving}"
    site.root(
        f"sed -i 's/--max-model-len/--max-num-seqs/' {release}/bin/vllm; echo VLLM_X=1 >> {release}/env/service.env"
    )
    # Another image under the name of ours: whatever it holds, it is not what the name says.
    base = site.root("podman images --quiet --filter reference=*/vllm/vllm-openai-rocm | head -1")
    site.root(f"podman untag {tag} && podman tag {base} {tag}")
    result = site.run("--dry", "--diff")
    assert result.code == 0, result.err
    shown = "\n".join(result.diff[HOST])
    assert "image vllm-rocm" in shown
    result = site.run("-y", "--diff")
    assert result.code == 0, result.err
    assert site.fleet.serving(HOST) != serving
    assert "VLLM_X" not in site.root(f"cat {PREFIX}/current/env/service.env")
    assert site.record()["seen"]["distributions"]["lmcache"] == ["0.5.3+rocm7.2"]
    inside = site.root("podman exec lmcache-fleet-vllm python3 -c 'import os; print(dict(os.environ))'")
    assert site.fleet.serving(HOST) in inside
    result = site.run("-y", "--json")
    assert result.changed == set(), result.err


def test_what_does_not_fit_is_refused_by_name_and_the_service_goes_on(site: Site) -> None:
    pid = site.fleet.main_pid(HOST)
    name = site.variables["image"].rsplit(":", 1)[0]
    # A digest that the registry hasn't, torch of another version, and a page without the wheel: the index has only the
    # CUDA wheel of that version, which the exact pin doesn't take.
    for variables, words in (
        ({"image": f"{name}@sha256:{'b' * 64}"}, "can't be pulled"),
        ({"torch": "2.12.*"}, "torch.__version__ is 2.11.0, expected 2.12.*"),
        ({"releases_url": f"{site.pages}/nowhere"}, "lmcache==0.5.3+rocm7.2"),
    ):
        result = site.run("-y", **variables)
        assert result.code != 0
        assert words in result.err
    # Refused once is refused again: the image is there by now, and still isn't what it must be.
    result = site.run("-y", torch="2.12.*")
    assert result.code != 0
    assert "torch.__version__ is 2.11.0, expected 2.12.*" in result.err
    site.root("mv /dev/kfd /dev/kfd.away")
    try:
        result = site.run("-y")
        assert result.code != 0
        assert "the host has no /dev/kfd" in result.table
        assert "modprobe amdgpu" in result.table
    finally:
        site.root("mv /dev/kfd.away /dev/kfd")
    assert site.fleet.main_pid(HOST) == pid
    assert site.fleet.healthy(HOST)


DOCKERFILE = """
ARG BASE
FROM ${BASE} AS base
FROM base AS image-build
ARG VLLM_VERSION
COPY . /src
RUN python3 -m pip install --no-index --no-deps /src/wheels/*.whl
ENV BUILT_FOR=${VLLM_VERSION}
FROM base AS image-release
RUN false
"""


def test_an_image_is_made_from_a_source_tree_once(site: Site) -> None:
    tree = site.work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "docker").mkdir(parents=True)
    (tree / "docker/Dockerfile").write_text(DOCKERFILE)
    shutil.copytree(site.work / "pages/v0.5.3-rocm", tree / "wheels")
    git = ["git", "-C", str(tree), "-c", "user.name=lab", "-c", "user.email=lab@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "x"], ["tag", "v0.5.6"]):
        subprocess.run([*git, *words], check=True)
    variables = {name: site.variables[name] for name in ("tls_verify", "memlock", "model_tiny", "model", "disk_gb")}
    variables |= {"lmcache_repo": str(tree), "vendor": "rocm"}
    variables["build_args"] = {"BASE": site.variables["image"], "VLLM_VERSION": "nightly"}
    built = Site(
        Fleet(site.fleet.lab, site.fleet.artifacts, "deploys/built-image.py"), site.registry, "", site.work, variables
    )
    result = built.run("-y")
    assert result.code == 0, result.err
    assert "image-release" not in result.err
    record = built.record("image-built")
    label = '{{index .Config.Labels "lmcache-fleet.spec"}} {{.Config.Env}}'
    seen = built.root(f"podman image inspect --format '{label}' {record['id']}")
    assert seen.split()[0] == record["reference"].rsplit(":", 1)[1]
    assert "BUILT_FOR=nightly" in seen
    # Another argument of the service: another release, the same image.
    result = built.run("-y", max_model_len=2048)
    assert result.code == 0, result.err
    assert "STEP" not in result.err
    assert built.record("image-built")["id"] == record["id"]
