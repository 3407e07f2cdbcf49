"""The image of SGLang with LMCache: SGLang and an LMCache server in containers on NVIDIA's cards, proved inside them.

Engine, registry, systemd and the device names of the container device interface are real; cards, SGLang and LMCache are
the lab's. In this order, each on the last. About two minutes on two cores.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import images, vendors
from tests.lab.conftest import own_lab
from tests.lab.fleet import PREFIX, Fleet
from tests.lab.images_site import HOST, Images, images_site
from tests.lab.systems_site import refused_without

NAME = "lmcache/sglang:latest"
PLAYBOOK = "lmcache-image"
UNIT = "lmcache-fleet-sglang"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """One host with NVIDIA's cards and a container engine's settings, and a registry that has the image."""
    if images.missing():
        pytest.skip(f"the registry needs {', '.join(images.missing())}: apt-get install {' '.join(images.NEEDED)}")
    with own_lab("sglang-image", {HOST: "none"}) as lab, images_site(lab, tmp_path_factory.mktemp("images")) as site:
        site.systems.places |= {"channel": "sglang", "image": site.image(NAME), "l1_size_gb": 1, "max_model_len": 2048}
        site.cards("h100x8")
        site.container_devices("h100x8")
        site.push_sglang(NAME, "0.5.23", "0.5.6")
        yield site


def pid(site: Images, unit: str = UNIT) -> str:
    """A unit's process, which is the container engine's."""
    return site.root(f"systemctl show -p MainPID --value {unit}")


def fleet(site: Images) -> Fleet:
    """Runs of the playbook."""
    return site.fleet(PLAYBOOK)


def start_script(site: Images) -> str:
    """What the serving release starts SGLang with, on one line."""
    text = site.root(f"cat {PREFIX}/current/bin/sglang").replace("\\\n", " ")
    return " ".join(shlex.split(text, comments=True))


def test_a_host_without_the_cards_is_refused_and_nothing_of_it_is_touched(site: Images) -> None:
    site.cards("mi300x8")
    before = fleet(site).listing(HOST, "/opt /etc")
    refused = site.run(PLAYBOOK)
    assert refused.code != 0
    assert refused.table.split(" | ")[:2] == [HOST, "requirements"], refused.err
    assert fleet(site).listing(HOST, "/opt /etc") == before
    site.cards("h100x8")


def test_sglang_runs_in_its_image_and_both_proofs_hold(site: Images) -> None:
    result = site.run(PLAYBOOK)
    assert result.code == 0, result.err
    for stage, mode in (("offline", "mp"), ("online", "service")):
        evidence = fleet(site).evidence(HOST, fleet(site).serving(HOST), stage)
        assert evidence["ok"], evidence
        assert evidence["mode"] == mode
        assert evidence["tokens"] == {
            "prompt": 1033,
            "stored": 1024,
            "hit_after_reset": 1024,
            "retrieved_after_restart": 1024,
        }
        assert evidence["connector"]["class"] == "UnifiedLMCacheMPConnector"
        # On line the program runs on the host, which has no SGLang.
        assert evidence["versions"].get("sglang") == ("0.5.23" if stage == "offline" else None)
    script = start_script(site)
    for words in ("--device nvidia.com/gpu=all", "--enable-lmcache", f"--name {UNIT}", "--cap-drop all"):
        assert words in script
    inside = site.root(f"podman exec {UNIT} python3 -c 'import os; print(os.getuid(), sorted(os.listdir(\"/dev\")))'")
    assert inside.split()[0] == site.root("id -u lmcache")
    for node in vendors.load("h100x8").nodes["cards"]:
        assert f"'{node.rpartition('/')[2]}'" in inside
    assert site.root(f"ls {PREFIX}/current/bin").split() == ["lmcache-server", "sglang"]
    assert site.root(f"systemctl is-enabled {UNIT}") == "enabled"


def test_again_nothing_changes_by_one_command(site: Images, tmp_path: Path) -> None:
    before, counts = pid(site), tmp_path / "counts.json"
    planned = site.run(PLAYBOOK, "--dry")
    assert planned.code == 0, planned.err
    assert planned.planned == set()
    again = site.run(PLAYBOOK, env={"COUNTS": str(counts)})
    assert again.code == 0, again.err
    assert again.changed == set(), again.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert pid(site) == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--context-length", "9999999"], "context_length"),
    ],
)
def test_an_sglang_that_does_not_start_is_named_and_the_old_one_serves_on(
    site: Images, args: list[str], said: str
) -> None:
    before, serving = pid(site), fleet(site).serving(HOST)
    refused = site.run(PLAYBOOK, args=args)
    assert refused.code != 0
    assert said in refused.err
    assert (pid(site), fleet(site).serving(HOST)) == (before, serving)


def test_what_sglang_does_not_take_beside_lmcache_is_named_without_a_host_and_on_one(
    site: Images, tmp_path: Path
) -> None:
    before = pid(site)
    rule = "sglang-args-exclude-lmcache"
    # The channel stands in the text: a check without a host knows no variables of a run.
    channel = ("channel: stable\n", "channel: sglang\n")
    refused_without(
        site.systems, HOST, tmp_path, PLAYBOOK, "args: []\n", "args: [--disable-radix-cache]\n", rule, also=channel
    )
    assert pid(site) == before


def test_the_server_keeps_what_sglang_stored_while_sglang_starts_anew(site: Images) -> None:
    server = pid(site, "lmcache-fleet-server")
    site.root(f"podman kill --signal KILL {UNIT}")
    site.root("timeout 60 sh -c 'until curl -sf http://127.0.0.1:8000/health; do sleep 0.5; done'")
    assert pid(site, "lmcache-fleet-server") == server
    again = site.run(PLAYBOOK)
    assert again.code == 0, again.err
    assert again.changed == set(), again.err
