"""Stand-in hardware of the other vendors without a host: what facts make of the tools, and who may run what."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts.runtimes import Runtimes
from facts.vendors import observe_accelerator, vendor_parts
from lab import vendors
from lmcache_fleet.compatibility import findings
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.requirements import Observed, shortfalls

ROOT = Path(__file__).resolve().parents[3]
MINOR = "3.12"
ELSEWHERE = ("/opt/rocm", "/usr/local/musa/version.json", "/usr/local/sbin", "/proc/driver", "/usr/local/cuda/v")


def observe(root: Path, profile: str, distributions: tuple[str, ...] = ()) -> Observed:
    """A host of a profile as the survey would see it, but for what is not the vendor's."""
    (root / f"usr/lib/python{MINOR}").mkdir(parents=True, exist_ok=True)
    host = vendors.install(root, profile)
    env = {
        "PATH": f"{root}/usr/local/sbin:{os.environ['PATH']}",
        "LMCACHE_FLEET_LAB_VENDOR": str(root / "etc/lmcache-fleet-lab/vendor.json"),
        "PYTHONPATH": str(root / f"usr/local/lib/python{MINOR}/dist-packages"),
    }

    def read(fact: Any, **arguments: Any) -> Any:
        command = fact().command(**arguments)
        for place in (
            "/opt/rocm",
            "/usr/local/musa/version.json",
            "/usr/local/sbin",
            "/proc/driver",
            "/usr/local/cuda/v",
        ):
            command = command.replace(place, f"{root}{place}")
        # Tools are run with this machine's python, which -I would keep from seeing nothing that is needed.
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=env, timeout=60)
        return fact().process(done.stdout.splitlines())

    assert vendor_parts(host.vendor)
    view = observe_accelerator(host.vendor, read)
    runtimes = read(Runtimes, minor=MINOR, also=("python3",), distributions=distributions)
    runtime = runtimes[0] if runtimes else None
    return Observed(
        arch="x86_64", glibc="2.39", pythons=(f"{MINOR}.3",), memory_gb=64, disk_free_gb=100,
        accelerators=view.accelerators, soc=view.soc, toolkit=view.toolkit, driver=view.driver,
        runtime=_as_minor(runtime),
    )  # fmt: skip


def _as_minor(runtime: Any) -> Any:
    """The interpreter that ran the probe is this machine's; the profile's would be of the image's version."""
    return replace(runtime, version=f"{MINOR}.3") if runtime else None


@pytest.mark.parametrize("name", vendors.names())
def test_every_profile_is_read_whole_by_the_vendors_fact(name: str, tmp_path: Path) -> None:
    host = vendors.load(name)
    seen = observe(tmp_path, name)
    assert seen.accelerators is not None
    assert (seen.accelerators.state, seen.accelerators.message) == ("ok", "")
    assert seen.accelerators.chip_count == host.cards.count
    assert {chip.name for chip in seen.accelerators.chips} == {host.cards.name}
    assert {chip.memory_total_mb for chip in seen.accelerators.chips} == {host.cards.memory_mb}
    assert seen.accelerators.driver_version == host.driver
    assert seen.accelerators.processes == ()
    if host.vendor == "cuda":
        assert str(seen.cuda) == host.runtime
        assert {str(capability) for _, _, capability in seen.compute_capabilities} == {host.cards.compute_capability}
    elif host.runtime:
        assert str(seen.toolkit).startswith(host.runtime)
    if host.stack:
        assert seen.runtime.torch == host.stack.torch  # type: ignore[union-attr]
        assert seen.runtime.cxx11_abi is host.stack.cxx11_abi  # type: ignore[union-attr]


# profile → playbooks that it may run, playbooks that refuse it with a piece of what they say
FITS: dict[str, tuple[list[str], dict[str, str]]] = {
    "h100x8": (["cuda", "cuda-12.9", "cuda-nightly", "cuda-source"], {"rocm": "rocm accelerator: tool-missing"}),
    "h100-cuda12": (["cuda-12.9", "cuda-12.9-source"], {"cuda": "CUDA of the driver: found 12.9, wanted >=13.0"}),
    "p100": ([], {"cuda": "6.0, wanted >=7.0", "cuda-12.9": "cuda-compute-capability"}),
    "mi300x8": (["rocm", "rocm-nightly", "rocm-source"], {"rocm-amd": "torch is 2.11.0+rocm7.2, wanted 2.10.0"}),
    "mi300x-torch210": (["rocm-amd"], {"rocm": "torch is 2.10.0+rocm7.2.4.git3d3aa833, wanted 2.11.*+rocm7.2*"}),
    "mi300x-torch210-oldabi": ([], {"rocm-amd": "torch's C++ ABI is 0, wanted 1"}),
    "mi250x8": (["rocm-source"], {"rocm": "gfx90a, wanted gfx942 or gfx950", "rocm-nightly": "rocm-architecture"}),
    "max1550x4": (["xpu", "xpu-source"], {"musa": "musa accelerator: tool-missing"}),
    "s5000x8": (["musa"], {"maca": "maca accelerator: tool-missing"}),
    "s5000-plain": ([], {"musa": "torch_musa is not there"}),
    "c500x8": (["maca"], {"cuda": "cuda accelerator: tool-missing"}),
}


@pytest.mark.parametrize("profile", FITS)
def test_a_host_may_run_its_playbooks_and_is_refused_by_others(profile: str, tmp_path: Path) -> None:
    fitting, refusing = FITS[profile]
    for name in (*fitting, *refusing):
        playbook = check_document(read_playbook(ROOT / f"playbooks/{name}.yaml"), {"python": MINOR})
        runtime = playbook.requires.runtime
        own = observe(tmp_path, profile, tuple(runtime.distributions) if runtime else ())
        if playbook.requires.accelerator and playbook.requires.accelerator.vendor != vendors.load(profile).vendor:
            own = _asked_for(playbook.requires.accelerator.vendor, tmp_path, own)
        said = [f"{item.what}: {item.cause}" for item in shortfalls(playbook.requires, own)]
        said += [str(finding) for finding in findings(playbook, own)]
        if name in fitting:
            assert said == []
        else:
            assert any(refusing[name] in text for text in said), said


def _asked_for(vendor: str, root: Path, own: Observed) -> Observed:
    """The same host, asked by the fact of another vendor: its tool is not there."""
    env = {"PATH": f"{root}/usr/local/sbin:/usr/bin:/bin"}

    def read(fact: Any, **arguments: Any) -> Any:
        command = fact().command(**arguments).replace("/usr/local/sbin", f"{root}/usr/local/sbin")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=env, timeout=60)
        return fact().process(done.stdout.splitlines())

    view = observe_accelerator(vendor, read)
    return replace(own, accelerators=view.accelerators, soc=view.soc, toolkit=view.toolkit)


def test_another_profile_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    (tmp_path / f"usr/lib/python{MINOR}").mkdir(parents=True)
    vendors.install(tmp_path, "mi300x8")
    vendors.install(tmp_path, "s5000-plain")
    tools = {path.name for path in (tmp_path / "usr/local/sbin").iterdir()}
    assert tools == {"mthreads-gmi"}
    assert not (tmp_path / "opt/rocm").exists()
    packages = tmp_path / f"usr/local/lib/python{MINOR}/dist-packages"
    assert {path.name for path in packages.glob("*.dist-info")} == {"torch-2.7.1.dist-info"}
    assert json.loads((tmp_path / "etc/lmcache-fleet-lab/vendor.json").read_text())["vendor"] == "musa"
