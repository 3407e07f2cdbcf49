"""LMCache's server image: its server alone in a container that is given no card, proved inside it by its own client.

Engine, registry and systemd are real; what is in the image is the lab's. In this order, each on the last.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import images
from lab.packages import builds
from lab.packages.wheel import write_wheel
from tests.lab.conftest import own_lab
from tests.lab.fleet import PREFIX
from tests.lab.images_site import HOST, Images, images_site

NAME = "lmcache/standalone:nightly"
PLAYBOOK = "lmcache-image"
SERVER = "lmcache-fleet-server"
# As in the real image: the environment is aside of the system's Python, and not on the PATH.
ENVIRONMENT = {"opt/venv/bin/python3": b'#!/bin/sh\nexec /usr/bin/python3 "$@"\n'}


def push(site: Images, version: str) -> str:
    """Push what stands for the server's image; gives its digest."""
    wheel = write_wheel(
        site.work / version, "lmcache", version, builds.lmcache(version, "cuda"), summary="Lab stand-in"
    )
    return site.push_wheels(NAME, [wheel], further=[images.layer(ENVIRONMENT)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """One host with a container engine's settings, and a registry that has the image."""
    if images.missing():
        pytest.skip(f"the registry needs {', '.join(images.missing())}: apt-get install {' '.join(images.NEEDED)}")
    with own_lab("server-image", {HOST: "none"}) as lab, images_site(lab, tmp_path_factory.mktemp("images")) as site:
        site.systems.places |= {"channel": "standalone", "image": site.image(NAME), "l1_size_gb": 1}
        push(site, "0.5.6")
        yield site


def pid(site: Images) -> str:
    """The unit's process, which is the container engine's."""
    return site.root(f"systemctl show -p MainPID --value {SERVER}")


def test_the_server_runs_in_its_image_and_both_proofs_hold(site: Images) -> None:
    result = site.run(PLAYBOOK)
    assert result.code == 0, result.err
    fleet = site.fleet(PLAYBOOK)
    for stage in ("offline", "online"):
        evidence = fleet.evidence(HOST, fleet.serving(HOST), stage)
        assert evidence["ok"], evidence
        assert evidence["mode"] == "server"
        assert evidence["tokens"]["retrieved_after_restart"] == 1024
    script = " ".join(
        shlex.split(site.root(f"cat {PREFIX}/current/bin/lmcache-server").replace("\\\n", " "), comments=True)
    )
    assert "--entrypoint /opt/venv/bin/python3" in script
    assert "--device" not in script
    inside = site.root(f"podman exec {SERVER} python3 -c 'import os; print(os.getuid())'")
    assert inside == site.root("id -u lmcache")
    assert site.root(f"ls {PREFIX}/current/bin") == "lmcache-server"


def test_again_nothing_changes_by_one_command(site: Images, tmp_path: Path) -> None:
    before, counts = pid(site), tmp_path / "counts.json"
    # The tag is followed: the registry is asked, and the host once.
    again = site.run(PLAYBOOK, env={"COUNTS": str(counts)})
    assert again.code == 0, again.err
    assert again.changed == set(), again.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert pid(site) == before


def test_a_server_that_keeps_nothing_is_refused_and_the_old_one_serves_on(site: Images) -> None:
    before, serving = pid(site), site.fleet(PLAYBOOK).serving(HOST)
    refused = site.run(PLAYBOOK, l1_size_gb=0.0001)
    assert refused.code != 0
    assert "no-hit" in refused.err
    assert (pid(site), site.fleet(PLAYBOOK).serving(HOST)) == (before, serving)


def test_the_tag_moved_and_the_new_image_serves(site: Images) -> None:
    serving = site.fleet(PLAYBOOK).serving(HOST)
    digest = push(site, "0.5.7")
    result = site.run(PLAYBOOK)
    assert result.code == 0, result.err
    assert site.fleet(PLAYBOOK).serving(HOST) != serving
    assert site.record("ready")["reference"].endswith(digest)
    inside = site.root(f"podman exec {SERVER} python3 -c 'import lmcache.version as v; print(v.__version__)'")
    assert inside == "0.5.7"
