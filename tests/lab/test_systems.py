"""Every system of LMCache's guide on a host with its cards: converged, converged again, and refused where it must be.

Hosts, systemd, installers and programs are real; cards, engine and wheels are the lab's. About four minutes on two
cores; with LMCACHE_FLEET_CHAOS=1 the nightlies and the builds of all platforms too, which takes twice that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import vendors
from tests.lab.conftest import own_lab
from tests.lab.fleet import PREFIX, UNIT, until
from tests.lab.systems_site import Systems, refused_without, systems_site

PROFILES = {
    "h1": "h100x8",
    "h2": "h100-cuda12",
    "h3": "mi300x8",
    "h4": "mi300x-torch210",
    "h5": "max1550x4",
    "h6": "s5000x8",
    "h7": "c500x8",
    "h8": "p100",
}
# Playbook, host, and the version of LMCache that must come.
ROWS: list[tuple[Any, ...]] = [
    ("cuda", "h1", "0.5.6"),
    ("cuda-12.9", "h2", "0.5.6"),
    ("rocm", "h3", "0.5.3+rocm7.2"),
    ("rocm-amd", "h4", "0.5.4+rocm7.2.4.torch2.10.git3d3aa833.cxx11abi1"),
    ("xpu", "h5", "0.5.3+xpu"),
    ("musa", "h6", "0.5.5+musa"),
    ("cuda-nightly", "h1", "0.5.8.dev12"),
    ("cuda-12.9-nightly", "h2", "0.5.8.dev12"),
    ("rocm-nightly", "h3", "0.5.4.dev15+rocm7.2"),
    ("maca", "h7", "0.5.6+maca0.0.0.0"),
    ("cuda-source", "h1", "0.5.6"),
    ("cuda-12.9-source", "h2", "0.5.6"),
    ("rocm-source", "h3", "0.5.6"),
    ("xpu-source", "h5", "0.5.6"),
]


ALL = os.environ.get("LMCACHE_FLEET_CHAOS") == "1"
ALWAYS = {"cuda", "cuda-12.9", "rocm", "rocm-amd", "xpu", "musa", "maca"}
WITHOUT_ENGINE = ("rocm-amd", "rocm-source")


def chosen(rows: list[tuple[Any, ...]], named: int) -> list[Any]:
    """Rows as parameters, named by their playbook and one more column; those of the long run are marked."""
    long = pytest.mark.skipif(not ALL, reason="LMCACHE_FLEET_CHAOS=1 runs the others")
    return [pytest.param(*row, id=f"{row[0]}-{row[named]}", marks=[] if row[0] in ALWAYS else [long]) for row in rows]


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systems]:
    """One fresh host of each hardware."""
    with own_lab("systems", PROFILES) as lab, systems_site(lab, tmp_path_factory.mktemp("systems")) as site:
        yield site


@pytest.mark.parametrize(("playbook", "host", "version"), chosen(ROWS, 1))
def test_a_system_converges_with_evidence_and_then_stays_as_it_is(
    systems: Systems, tmp_path: Path, playbook: str, host: str, version: str
) -> None:
    fleet = systems.fleet(playbook)
    served = fleet.active(host)
    was = (fleet.main_pid(host), fleet.serving(host) if served else "")
    result = systems.run(playbook, host)
    assert result.code == 0, result.err
    release = fleet.newest(host, playbook)
    python = f"{PREFIX}/releases/{release}/venv/bin/python"
    asked = "import importlib.metadata as m; print(m.version('lmcache'))"
    assert fleet.root(host, f'{python} -c "{asked}"') == version
    # AMD's image has no engine, and what is built from source there is for somebody's own: nothing is served from it.
    serves = playbook not in WITHOUT_ENGINE
    for stage in ("offline", "online") if serves else ():
        evidence = fleet.evidence(host, release, stage)
        assert evidence["ok"], evidence
    assert fleet.active(host) is (serves or served)
    if serves or not served:
        assert fleet.serving(host) == release
    else:
        # What another playbook put into service stays, and so does the link that it starts again from.
        assert (fleet.main_pid(host), fleet.serving(host)) == was
        assert f"current stays at {was[1]}" in result.err
        fleet.root(host, f"systemctl restart {UNIT}")
        until(lambda: fleet.active(host))
    before = (fleet.listing(host), fleet.main_pid(host))
    counts = tmp_path / "counts.json"
    again = systems.run(playbook, host, env={"COUNTS": str(counts)})
    assert again.code == 0, again.err
    assert again.changed == set(), again.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert (fleet.listing(host), fleet.main_pid(host)) == before


# --- hosts that don't fit ---------------------------------------------------------------------------------------------

# Playbook, host, what the host has in the place of its own cards, and what the refusal says.
MISFITS: list[tuple[Any, ...]] = [
    ("cuda", "h8", "p100", "6.0, wanted >=7.0", "such a card is too old"),
    ("cuda", "h2", None, "CUDA of the driver: found 12.9, wanted >=13.0", "driver"),
    ("cuda-12.9", "h8", "mi300x8", "tool-missing", "driver"),
    ("rocm", "h8", "mi250x8", "gfx90a, wanted gfx942 or gfx950", ""),
    ("rocm", "h4", None, "torch is 2.10.0+rocm7.2.4.git3d3aa833, wanted 2.11.*+rocm7.2*", ""),
    ("rocm-amd", "h8", "mi300x-torch210-oldabi", "torch's C++ ABI is 0, wanted 1", "playbooks/rocm-source.yaml"),
    ("rocm-amd", "h3", None, "torch is 2.11.0+rocm7.2, wanted 2.10.0", "build from source: playbooks/rocm-source.yaml"),
    ("rocm-nightly", "h8", "mi250x8", "gfx90a, wanted gfx942 or gfx950", ""),
    ("xpu", "h6", None, "tool-missing", ""),
    ("musa", "h8", "s5000-plain", "torch_musa is not there", "use the vendor's image"),
    ("maca", "h1", None, "tool-missing", ""),
]


@pytest.mark.parametrize(("playbook", "host", "profile", "cause", "remedy"), chosen(MISFITS, 1))
def test_a_host_that_does_not_fit_is_refused_and_nothing_of_it_is_touched(
    systems: Systems, playbook: str, host: str, profile: str | None, cause: str, remedy: str
) -> None:
    fleet = systems.fleet(playbook)
    if profile:
        vendors.install(systems.lab.lab.root(host), profile)
    before = fleet.listing(host, "/opt /etc /var/lib /usr/local")
    refused = systems.run(playbook, host)
    assert refused.code != 0
    row = refused.table.split(" | ")
    assert row[:2] == [host, "requirements"], refused.err
    assert cause in row[2]
    assert remedy in row[3]
    assert row[3] not in {"", "-"}
    assert fleet.listing(host, "/opt /etc /var/lib /usr/local") == before


# --- flags left out ---------------------------------------------------------------------------------------------------

# Playbook, its host, a text of it, what stands there instead, and the rule that names it.
FLAGS: list[tuple[Any, ...]] = [
    ("cuda-12.9", "h2", '      extra_index_urls: ["{{ torch_index_url }}/cu129"]\n', "", "cu129-without-torch-index"),
    ("cuda-12.9", "h2", "      index_strategy: unsafe-best-match\n", "", "torch-index-without-best-match"),
    ("rocm", "h3", "{{ lmcache }}+rocm7.2", "{{ lmcache }}", "rocm-without-local-version"),
    ("rocm", "h3", "      no_deps: true\n", "", "vendor-torch-replaced"),
    ("rocm-amd", "h4", "      no_deps: true\n", "", "vendor-torch-replaced"),
    ("xpu", "h5", "      no_index: true\n", "", "index-wheel-on-vendor-torch"),
    ("musa", "h6", "      no_deps: true\n", "", "vendor-torch-replaced"),
    ("maca", "h7", "        BUILD_WITH_MACA: 1\n", "        MAX_JOBS: 1\n", "maca-source-environment"),
    ("maca", "h7", "{{ lmcache }}+maca{{ maca_ai_version }}", "{{ lmcache }}", "maca-version-without-build"),
    ("cuda-nightly", "h1", "/nightly", "/v0.5.6", "nightly-without-page"),
    (
        "cuda-nightly",
        "h1",
        '      extra_index_urls: ["{{ torch_index_url }}/cu130"]\n',
        "",
        "cu130-nightly-without-torch-index",
    ),
    ("rocm-nightly", "h3", "      no_index: true\n", "", "rocm-nightly-from-index"),
    (
        "cuda-12.9-source",
        "h2",
        "LMCACHE_CUDA_MAJOR: 12",
        "LMCACHE_CUDA_MAJOR: 13",
        "cuda12-source-takes-cuda13-requirements",
    ),
    ("rocm-source", "h3", "        BUILD_WITH_HIP: 1\n", "", "rocm-source-environment"),
    ("xpu-source", "h5", "        BUILD_WITH_SYCL: 1\n", "        MAX_JOBS: 1\n", "xpu-source-environment"),
]


@pytest.mark.parametrize(("playbook", "host", "text", "instead", "rule"), chosen(FLAGS, 4))
def test_a_flag_left_out_is_named_without_a_host_and_on_one(
    systems: Systems, tmp_path: Path, playbook: str, host: str, text: str, instead: str, rule: str
) -> None:
    refused_without(systems, host, tmp_path, playbook, text, instead, rule)
