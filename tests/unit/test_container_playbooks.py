"""The container playbooks: the flags of LMCache's installation guide, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_fleet.dockerfile import render_dockerfile
from lmcache_fleet.playbook.load import read_playbook, resolve
from lmcache_fleet.playbook.model import ContainerImageStep, Playbook, ServiceStep, VerifyStep
from lmcache_fleet.repository import ROOT

PAGES = "https://github.com/LMCache/LMCache/releases/expanded_assets"


def playbook(name: str, **variables: Any) -> Playbook:
    document = read_playbook(ROOT / f"playbooks/{name}.yaml")
    return resolve(document, variables, arch="x86_64", prefix="/opt/lmcache-fleet", host="h1")


def image(name: str, **variables: Any) -> ContainerImageStep:
    (step,) = playbook(name, **variables).of_kind(ContainerImageStep)
    assert isinstance(step, ContainerImageStep)
    return step


@pytest.mark.parametrize(
    ("name", "base", "flags"),
    [
        (
            "rocm-image",
            "docker.io/vllm/vllm-openai-rocm:v0.25.0",
            f"--find-links {PAGES}/v0.5.3-rocm --no-deps lmcache==0.5.3+rocm7.2",
        ),
        (
            "rocm-amd-image",
            "docker.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0"
            "@sha256:4449f856653602317e4101a76fce599c7fcd58ccec2e539951fce5f73083179e",
            f"--find-links {PAGES}/v0.5.4-rocm-torch210 --no-deps "
            "lmcache==0.5.4+rocm7.2.4.torch2.10.git3d3aa833.cxx11abi1",
        ),
        (
            "xpu-image",
            "docker.io/vllm/vllm-openai-xpu:v0.26.0",
            f"--find-links {PAGES}/v0.5.3-xpu --no-index --no-deps lmcache==0.5.3+xpu",
        ),
        (
            "musa-image",
            "sh-harbor.mthreads.com/ai-kv/kuae-lmcache-vllm-ci"
            "@sha256:75c8c1012cf49caf6dd99dbbfd33931ef100d035647083b999eaf0092d94edba",
            f"--find-links {PAGES}/v0.5.5-musa --no-index --no-deps lmcache==0.5.5+musa",
        ),
    ],
)
def test_wheels_are_put_on_images_with_the_guides_flags(name: str, base: str, flags: str) -> None:
    step = image(name)
    assert step.image == base
    (line,) = [line for line in render_dockerfile(step, base)["Dockerfile"].splitlines() if line.startswith("RUN")]
    assert line.endswith(f"pip install --retries 3 {flags}")


@pytest.mark.parametrize(
    ("channel", "name", "follow"),
    [
        ("stable", "lmcache/vllm-openai:latest", False),
        ("cu129", "lmcache/vllm-openai:latest-cu129", False),
        ("nightly", "lmcache/vllm-openai:latest-nightly", True),
        ("nightly-cu129", "lmcache/vllm-openai:latest-nightly-cu129", True),
        ("rocm", "rocm/vllm-dev:nightly_0624_rc2_0624_rc2_20250620", False),
        ("xpu", "vllm/vllm-openai-xpu:v0.26.0", False),
        ("sglang", "lmcache/sglang:latest", False),
        ("standalone", "lmcache/standalone:nightly", True),
    ],
)
def test_ready_images_are_those_of_the_guide(channel: str, name: str, follow: bool) -> None:
    step = image("lmcache-image", channel=channel)
    assert (step.image, step.follow_tag, step.made) == (f"docker.io/{name}", follow, False)
    (service,) = playbook("lmcache-image", channel=channel).of_kind(ServiceStep)
    assert service.engine == ("sglang" if channel == "sglang" else "vllm")
    assert service.has_engine == (channel != "standalone")


def test_the_server_image_runs_its_server_alone_and_is_given_no_card() -> None:
    found = playbook("lmcache-image", channel="standalone", listen="10.0.0.5")
    (service,) = found.of_kind(ServiceStep)
    assert (service.has_engine, service.server.host) == (False, "10.0.0.5")
    assert found.requires.accelerator is not None
    assert found.requires.accelerator.vendor == "cpu"
    (ready,) = found.of_kind(ContainerImageStep)
    assert ready.python == "/opt/venv/bin/python3"
    assert [(step.stage, step.mode) for step in found.of_kind(VerifyStep)] == [
        ("offline", "server"),
        ("online", "service"),
    ]


def test_an_image_is_made_with_the_guides_target_and_arguments() -> None:
    build = image("built-image").build
    assert build is not None
    assert (build.dockerfile, build.target) == ("docker/Dockerfile", "image-build")
    assert build.args == {"CUDA_VERSION": "13.0", "UBUNTU_VERSION": "24.04", "VLLM_VERSION": "nightly"}
