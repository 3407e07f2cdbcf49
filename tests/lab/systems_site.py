"""Where lab hosts of all vendors get their wheels: the real names, versions and conflicts, and stand-ins that run."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab import vendors
from lab.packages import builds, third_party
from lab.vendors import dist_packages
from lmcache_fleet.playbook.load import read_playbook
from tests.lab.conftest import REPO, RunningLab
from tests.lab.fleet import Fleet, Result
from tests.wheel_index import Build, plain, serve
from tests.wheel_index import builds as all_builds

# What a build's mark says of the cards that it is for.
_VENDORS = {"CUDA": "cuda", "ROCm": "rocm", "XPU": "xpu", "MUSA": "musa"}


def contents(build: Build) -> tuple[dict[str, bytes], str]:
    """What a wheel holds, and its entry points: an engine and an LMCache that run, all else to be imported."""
    if build.name == "vllm":
        return builds.vllm(build.version), builds.VLLM_PLATFORM
    if build.name == "torch":
        return builds.torch(build.version, platform.machine()), ""
    if build.name == "lmcache":
        vendor = next(vendor for word, vendor in _VENDORS.items() if word in build.mark)
        return builds.lmcache(build.version, vendor), builds.LMCACHE_COMMAND
    return plain(build)


@dataclass
class Systems:
    """Hosts of all vendors, and the places that their playbooks install from."""

    lab: RunningLab
    artifacts: Path
    places: dict[str, Any]
    fleets: dict[str, Fleet] = field(default_factory=dict)

    def fleet(self, playbook: str) -> Fleet:
        """Runs of one playbook."""
        return self.fleets.setdefault(playbook, Fleet(self.lab, self.artifacts, f"deploys/{playbook}.py"))

    def run(
        self,
        playbook: str,
        host: str,
        *options: str,
        file: Path | None = None,
        env: dict[str, str] | None = None,
        **variables: Any,
    ) -> Result:
        """Run a playbook, or another text of it, on one host with the lab's places for those variables that it has."""
        known = read_playbook(REPO / f"playbooks/{playbook}.yaml").data["vars"]
        given = {name: value for name, value in {**self.places, **variables}.items() if name in known}
        fleet = self.fleet("apply" if file else playbook)
        other = ["--data", f"playbook={file}"] if file else []
        # With --json the host's lines, a diff among them, are not shown.
        shown = [] if "--diff" in options else ["--json"]
        # With -y the plan is not worked out before the run.
        shown += [] if "--dry" in options else ["-y"]
        return fleet.run("--limit", host, *shown, *other, *options, limit=600, env=env, **given)


def refused_without(
    systems: Systems,
    host: str,
    folder: Path,
    playbook: str,
    text: str,
    instead: str,
    rule: str,
    also: tuple[str, str] = ("", ""),
    **variables: Any,
) -> None:
    """A playbook in which a text is left out is refused by a rule's name, without a host and on one.

    `also` is another text and what stands there instead.
    """
    whole = (REPO / f"playbooks/{playbook}.yaml").read_text().replace(*also)
    assert text in whole
    # Beside its siblings: the inventory's variables are for any of them.
    place = shutil.copytree(REPO / "playbooks", folder / "playbooks") / f"{playbook}.yaml"
    place.write_text(whole.replace(text, instead))
    command = [str(Path(sys.executable).parent / "lmcache-fleet"), "check", str(place)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert f"{rule}: " in checked.stderr
    fleet = systems.fleet(playbook)
    before = fleet.listing(host, "/opt /etc")
    refused = systems.run(playbook, host, file=place, **variables)
    assert refused.code != 0
    assert refused.table.split(" | ")[:2] == [host, "requirements"], refused.err
    assert f"{rule}: " in refused.table
    assert fleet.listing(host, "/opt /etc") == before


def hub_client(cache: Path, out: Path, minor: str) -> Path:
    """The real client of the model hub, which transformers bring everywhere, and all that it needs."""
    found = max(cache.glob("third-party-*/huggingface_hub-*.whl"), key=lambda path: path.stat().st_mtime)
    pip = [str(third_party.build_env(cache)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    place = ["--no-index", "--find-links", str(found.parent), "--python-version", minor, "--target", str(out)]
    subprocess.run([*pip, *place, "--only-binary=:all:", "huggingface_hub"], check=True)
    return out


@contextmanager
def wheel_places(lab: RunningLab, work: Path) -> Iterator[dict[str, Any]]:
    """Pages and indexes of wheels for the hosts' Python, served for as long as the block lasts, as variables."""
    state = lab.lab.reload()
    minor = third_party.host_python()
    index = str(state.services["index_url"])
    listed = [
        replace(build, requires=(*build.requires, "huggingface_hub")) if build.name == "transformers" else build
        for build in all_builds()
    ]
    # What only a source's requirements name.
    listed += [Build("simple", "cufile-python", "0.2.0"), Build("simple", "nvtx", "0.2.14")]
    number = int(minor.partition(".")[2])
    with serve(work / "wheels", state.gateway, number, listed, contents, index) as url:
        yield {
            "index_url": f"{url}/simple",
            "torch_index_url": f"{url}/whl",
            "releases_url": f"{url}/releases",
            "lmcache_repo": f"{state.services['git_url']}/LMCache.git",
            "maca_index_url": f"{url}/maca/simple",
            "maca_trusted_hosts": [state.gateway],
            # The lab's Python, where the wheel's own is 3.12 under a newer C library.
            "wheel_tag": f"cp3{number}-cp3{number}-manylinux_2_28_x86_64",
        }


@contextmanager
def systems_site(lab: RunningLab, work: Path) -> Iterator[Systems]:
    """Hosts of all vendors whose Python stacks can fetch models, and what their playbooks install from."""
    client = hub_client(lab.lab.paths.cache / "packages", work / "hub-client", third_party.host_python())
    for host in lab.lab.reload().hosts:
        if vendors.load(host.profile).stack:
            for packages in dist_packages(lab.lab.root(host.name)):
                shutil.copytree(client, packages, dirs_exist_ok=True)
    with wheel_places(lab, work) as places:
        yield Systems(lab, work / "artifacts", places)
