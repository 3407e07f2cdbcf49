"""Which build uv and pip really take: with the flags of our playbooks the right one, without one of them another.

Real installers against a small index and release pages on this machine (wheel_index.py). Nothing comes from elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.compatibility import findings
from lmcache_fleet.installer import install_call
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import read_playbook, resolve
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep
from lmcache_fleet.shell import run_program
from tests.wheel_index import serve

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).with_name("uv"))
MINOR = f"3.{sys.version_info[1]}"
Install = Callable[..., "Taken"]

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the wheels are for x86_64")


@dataclass(frozen=True)
class Taken:
    """What an installer left.

    Args:
        code: exit status of the last call.
        output: what it printed.
        versions: distribution → version in the environment.
        build: the mark of the lmcache that was taken.
    """

    code: int
    output: str
    versions: dict[str, str]
    build: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("wheels")) as url:
        yield url


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where environments are; each test has its own, all share the installers' caches."""
    return tmp_path_factory.mktemp("prefix")


def playbook(name: str, site: str) -> Playbook:
    document = read_playbook(ROOT / f"playbooks/{name}.yaml")
    places = {"index_url": "simple", "torch_index_url": "whl", "releases_url": "releases"}
    variables = {"python": MINOR, **{key: f"{site}/{place}" for key, place in places.items()}}
    fitting = {key: value for key, value in variables.items() if key in document.data["vars"]}
    return resolve(document, fitting, arch="x86_64", prefix="/p", host="h")


@pytest.fixture(scope="module")
def empty(prefix: Path) -> Path:
    """An environment with pip in it, made once."""
    subprocess.run([sys.executable, "-m", "venv", str(prefix / "empty")], check=True, env=clean(prefix))
    return prefix / "empty"


@pytest.fixture
def install(site: str, prefix: Path, empty: Path, request: pytest.FixtureRequest) -> Iterator[Install]:
    """Runs the packages steps of a playbook in a fresh environment with the playbook's own installer."""
    layout = Layout(str(prefix))
    release = layout.release(str(abs(hash(request.node.name))))

    def go(
        name: str,
        drop: tuple[str, ...] = (),
        image: dict[str, str] | None = None,
        steps: tuple[str, ...] = (),
        installer: str | None = None,
        **change: Any,
    ) -> Taken:
        wanted = playbook(name, site)
        (venv,) = wanted.of_kind(VenvStep)
        venv = venv.model_copy(update={"installer": installer or venv.installer})
        shutil.rmtree(release.root, ignore_errors=True)
        shutil.copytree(empty, release.venv, symlinks=True)
        packages = Path(release.venv) / f"lib/python{MINOR}/site-packages"
        for distribution, version in (image or {}).items():
            # What a vendor's image brings.
            info = packages / f"{distribution.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
            (info / "INSTALLER").write_text("image\n")
            (info / "RECORD").write_text(
                "".join(f"{info.name}/{part},,\n" for part in ("METADATA", "INSTALLER", "RECORD"))
            )
        lacking = {key: PackagesStep.model_fields[key].get_default(call_default_factory=True) for key in drop}
        code, output = 0, ""
        for written in wanted.of_kind(PackagesStep):
            if steps and written.name not in steps:
                continue
            step = written.model_copy(update={**lacking, **change}) if written.name == "lmcache" else written
            call = install_call(step, venv, layout, release, UV)
            done = subprocess.run(
                call.argv, env={**clean(prefix), **call.env}, capture_output=True, text=True, check=False, timeout=120
            )
            code, output = done.returncode, output + done.stdout + done.stderr
            if code:
                break
            asked = {"installed": step.installed, "imports": step.imports}
            held = subprocess.run(
                ["sh", "-c", run_program("check_installed.py", asked, release.python)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            code, output = held.returncode, output + held.stderr
            if code:
                break
        versions = {}
        for info in packages.glob("*.dist-info"):
            found, _, version = info.name.removesuffix(".dist-info").rpartition("-")
            versions[found.replace("_", "-")] = version
        mark = packages / "lmcache/_build.txt"
        return Taken(code, output, versions, mark.read_text() if mark.exists() else "")

    yield go
    shutil.rmtree(release.root, ignore_errors=True)


def clean(prefix: Path) -> dict[str, str]:
    """Nothing of this machine's own installer settings."""
    return {"PATH": os.environ["PATH"], "HOME": str(prefix), "UV_CACHE_DIR": f"{prefix}/cache/uv", "UV_NO_CONFIG": "1"}


# --- row 1: CUDA 13, the index ----------------------------------------------------------------------------------------


def test_cuda_13_takes_the_index(install: Install) -> None:
    taken = install("cuda")
    assert taken.code == 0, taken.output
    assert taken.build == "index, CUDA 13"
    assert taken.versions["torch"] == "2.13.0"
    assert "cupy-cuda13x" in taken.versions
    assert "nixl" not in taken.versions


# --- row 2: CUDA 12.9 -------------------------------------------------------------------------------------------------


def test_cuda_12_9_takes_the_page_and_the_torch_of_its_index(install: Install) -> None:
    taken = install("cuda-12.9")
    assert taken.code == 0, taken.output
    assert taken.build == "page, CUDA 12.9"
    assert taken.versions["torch"] == "2.13.0+cu129"
    assert "cupy-cuda12x" in taken.versions
    assert "cupy-cuda13x" not in taken.versions


def test_cuda_12_9_without_torchs_index_takes_cuda_13s_torch(install: Install, site: str) -> None:
    wanted = playbook("cuda-12.9", site)
    steps = [
        step.model_copy(update={"extra_index_urls": []}) if isinstance(step, PackagesStep) else step
        for step in wanted.steps
    ]
    bare = wanted.model_copy(update={"steps": steps})
    assert "cu129-without-torch-index" in [finding.rule for finding in findings(bare)]
    # Alone, as the guide has it: nothing brought a torch before.
    taken = install("cuda-12.9", drop=("extra_index_urls",), steps=("lmcache",))
    assert taken.versions["torch"] == "2.13.0"
    assert "wrong build: torch is 2.13.0, wanted *+cu129" in taken.output
    assert taken.code != 0


def test_cuda_12_9_without_the_page_takes_the_cuda_13_wheel_of_the_same_version(install: Install) -> None:
    taken = install("cuda-12.9", drop=("find_links",))
    assert taken.build == "index, CUDA 13"
    assert taken.code != 0
    assert "cupy-cuda12x is not installed" in taken.output


def test_cuda_12_9_without_best_match_stops_at_the_first_index_with_its_old_packages(install: Install) -> None:
    assert install("cuda-12.9", steps=("lmcache",)).versions["numpy"] == "2.2.6"
    assert install("cuda-12.9", drop=("index_strategy",), steps=("lmcache",)).versions["numpy"] == "1.26.4"


# --- rows 3 to 6: wheels for a vendor's image -------------------------------------------------------------------------

IMAGES = {
    "rocm": {"torch": "2.11.0+rocm7.2", "transformers": "4.57.0", "numpy": "2.3.1"},
    "rocm-amd": {"torch": "2.10.0+rocm7.2.4.git3d3aa833", "numpy": "2.3.1"},
    "xpu": {"torch": "2.12.0+xpu", "transformers": "4.57.0", "numpy": "2.3.1"},
    "musa": {"torch": "2.7.0", "torch-musa": "2.7.0", "transformers": "4.57.0", "numpy": "2.3.1"},
    "rocm-nightly": {"torch": "2.11.0+rocm7.2", "numpy": "2.3.1"},
}
MARKS = {
    "rocm": "page, ROCm", "rocm-amd": "page, ROCm 2.10", "xpu": "page, XPU", "musa": "page, MUSA",
    "rocm-nightly": "page, nightly ROCm",
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_vendors_image_gets_its_wheel_and_keeps_all_else(
    install: Install, site: str, name: str, installer: str
) -> None:
    extra = {} if name in {"xpu", "musa", "rocm-nightly"} else {"index_url": f"{site}/simple"}
    taken = install(name, image=IMAGES[name], installer=installer, **extra)
    assert taken.code == 0, taken.output
    assert taken.build == MARKS[name]
    assert "+" in taken.versions["lmcache"]
    kept = {key: value for key, value in taken.versions.items() if key not in {"lmcache", "pip", "setuptools", "wheel"}}
    assert kept == IMAGES[name]


@pytest.mark.parametrize("name", ["rocm", "musa"])
def test_without_no_deps_the_images_own_packages_are_replaced(install: Install, site: str, name: str) -> None:
    taken = install(name, drop=("no_deps", "no_index"), image=IMAGES[name], index_url=f"{site}/simple")
    assert taken.build == MARKS[name]
    assert taken.versions["transformers"] == "5.19.0"
    assert taken.versions["numpy"] == "2.2.6"


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize(("name", "version"), [("rocm", "0.5.3"), ("xpu", "0.5.3"), ("musa", "0.5.5")])
def test_without_page_and_local_version_the_cuda_wheel_comes(
    install: Install, site: str, name: str, version: str, installer: str
) -> None:
    taken = install(
        name, drop=("no_index", "find_links"), image=IMAGES[name], pins=[f"lmcache=={version}"], installer=installer,
        index_url=f"{site}/simple",
    )  # fmt: skip
    assert taken.build == "index, CUDA 13"


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_with_no_index_the_bare_version_finds_the_vendors_wheel_alone(install: Install, installer: str) -> None:
    """`==` ignores the local part: what keeps the CUDA wheel out is --no-index."""
    taken = install("xpu", image=IMAGES["xpu"], pins=["lmcache==0.5.3"], installer=installer)
    assert taken.build == "page, XPU"


def test_an_exact_tuple_finds_nothing_on_another_page(install: Install, site: str) -> None:
    taken = install("rocm-amd", image=IMAGES["rocm-amd"], find_links=[f"{site}/releases/v0.5.3-rocm"])
    assert taken.code != 0
    assert taken.build == ""


# --- row 8: nightlies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "torch", "mark"),
    [
        ("cuda-nightly", "2.13.0+cu130", "page, nightly CUDA 13"),
        ("cuda-12.9-nightly", "2.13.0+cu129", "page, nightly CUDA 12.9"),
    ],
)
def test_a_nightly_newer_than_the_index_is_taken(install: Install, name: str, torch: str, mark: str) -> None:
    taken = install(name)
    assert taken.code == 0, taken.output
    assert taken.build == mark
    assert taken.versions["torch"] == torch


def test_a_candidate_on_the_index_outranks_a_cuda_nightly_and_that_is_said(install: Install, site: str) -> None:
    taken = install("cuda-nightly", find_links=[f"{site}/releases/nightly-before"])
    assert taken.versions["lmcache"] == "0.5.7rc2"
    assert taken.code != 0
    assert "wrong build: lmcache is 0.5.7rc2, wanted *.dev*" in taken.output
    named = install("cuda-nightly", find_links=[f"{site}/releases/nightly-before"], present=["lmcache==0.5.7.dev30"])
    assert named.code == 0
    assert named.build == "page, nightly CUDA 13"


def test_without_pre_no_nightly_is_taken(install: Install) -> None:
    taken = install("cuda-nightly", drop=("pre",))
    assert taken.versions["lmcache"] == "0.5.6"


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_rocm_nightly_with_the_index_takes_the_cuda_candidate(install: Install, site: str, installer: str) -> None:
    """PEP 440: 0.5.4rc4 and all later ones are newer than 0.5.4.dev15+rocm7.2."""
    taken = install(
        "rocm-nightly",
        drop=("no_index",),
        image=IMAGES["rocm-nightly"],
        index_url=f"{site}/simple",
        installer=installer,
    )
    assert taken.build == "index, CUDA 13"
    assert "wrong build: lmcache is 0.5.7rc2, wanted *+rocm*" in taken.output


# --- row 9: torch for a source build ----------------------------------------------------------------------------------


def test_rocm_source_takes_torch_of_the_rocm_index_alone(install: Install, site: str) -> None:
    (torch,) = [step for step in playbook("rocm-source", site).of_kind(PackagesStep) if step.name == "torch"]
    assert torch.index_url == f"{site}/whl/rocm7.2"
    taken = install("rocm-source", steps=("torch",))
    assert taken.code == 0, taken.output
    assert taken.versions["torch"] == "2.11.0+rocm7.2"
    assert taken.versions["torchvision"] == "0.26.0+rocm7.2"
