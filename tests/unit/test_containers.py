"""Containers: names of images, what a step stands for, and the arguments that a host's facts call for."""

from __future__ import annotations

import json
import re
import shlex
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.containers import Containers
from lmcache_fleet import registry
from lmcache_fleet.containers import (
    ContainerCommand,
    ContainerFault,
    ContainerHost,
    Image,
    device_arguments,
    run_arguments,
    unmet,
    wanted_image,
)
from lmcache_fleet.dockerfile import render_dockerfile
from lmcache_fleet.judge import Wanted, changes_of, image_shortfalls
from lmcache_fleet.layout import Layout, ReleaseLayout
from lmcache_fleet.playbook.model import (
    Connector,
    ContainerImageStep,
    ContainerRun,
    MpServer,
    PackagesStep,
    Playbook,
    ServiceStep,
)
from lmcache_fleet.registry import RegistryError, image_name, pinned_digest
from lmcache_fleet.release import HostKey, HostReleases, ReleaseState
from lmcache_fleet.units import service_files

DIGEST = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("vllm/vllm-openai-rocm:v0.25.0", "docker.io/vllm/vllm-openai-rocm:v0.25.0"),
        ("lmcache/vllm-openai", "docker.io/lmcache/vllm-openai:latest"),
        ("debian", "docker.io/library/debian:latest"),
        ("localhost/x:1", "localhost/x:1"),
        ("10.0.0.1:5000/a/b", "10.0.0.1:5000/a/b:latest"),
        (f"sh-harbor.mthreads.com/ai-kv/ci@{DIGEST}", f"sh-harbor.mthreads.com/ai-kv/ci@{DIGEST}"),
        (f"rocm/pytorch:tag@{DIGEST}", f"docker.io/rocm/pytorch:tag@{DIGEST}"),
    ],
)
def test_names_are_read_as_engines_read_them(text: str, full: str) -> None:
    assert str(image_name(text)) == full


_part = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)


@given(st.lists(_part, min_size=1, max_size=4), st.none() | _part, st.booleans())
def test_a_full_name_reads_as_itself(parts: list[str], tag: str | None, pinned: bool) -> None:
    text = "/".join(parts) + (f":{tag}" if tag else "") + (f"@{DIGEST}" if pinned else "")
    once = str(image_name(text))
    assert str(image_name(once)) == once
    assert image_name(text).digest == (DIGEST if pinned else None)


def test_a_tag_is_asked_for_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [DIGEST, OTHER]
    monkeypatch.setattr(registry, "ask_digest", lambda name, tls_verify: answers.pop(0))
    name = image_name("vllm/vllm-openai-rocm:v0.25.0")
    assert pinned_digest(name, root=tmp_path) == DIGEST
    assert pinned_digest(name, root=tmp_path) == DIGEST
    assert pinned_digest(name, follow=True, root=tmp_path) == OTHER
    assert json.loads((tmp_path / "images.json").read_text()) == {str(name): OTHER}


def test_what_is_recorded_serves_when_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: Any, tls_verify: bool) -> str:
        raise RegistryError("no answer", "wait")

    monkeypatch.setattr(registry, "ask_digest", refuse)
    name = image_name("a/b:c")
    with pytest.raises(RegistryError):
        pinned_digest(name, root=tmp_path)
    (tmp_path / "images.json").write_text(json.dumps({str(name): DIGEST}))
    assert pinned_digest(name, follow=True, root=tmp_path) == DIGEST


def step(**fields: Any) -> ContainerImageStep:
    return ContainerImageStep(name="x", image="vllm/vllm-openai-rocm:v0.25.0", **fields)


WHEEL = PackagesStep(
    name="lmcache", pins=["lmcache==0.5.3+rocm7.2"], no_deps=True, find_links=["https://x/v0.5.3-rocm"]
)


def test_a_pulled_image_is_told_by_its_digest_whatever_its_tags_say() -> None:
    wanted = wanted_image(step(), DIGEST, None, "x86_64")
    assert wanted.reference == f"docker.io/vllm/vllm-openai-rocm@{DIGEST}"
    right = Image("1", (f"mirror/vllm@{DIGEST}",))
    wrong = Image("2", (f"docker.io/vllm/vllm-openai-rocm@{OTHER}",), ("docker.io/vllm/vllm-openai-rocm:v0.25.0",))
    assert wanted.found(ContainerHost(images=(wrong, right))) is right
    assert wanted.found(ContainerHost(images=(wrong,))) is None


def test_a_made_image_is_told_by_the_label_of_what_it_is_made_from() -> None:
    wanted = wanted_image(step(install=[WHEEL]), DIGEST, None, "x86_64")
    assert wanted == wanted_image(step(install=[WHEEL]), DIGEST, None, "x86_64")
    assert wanted.spec != wanted_image(step(install=[WHEEL]), OTHER, None, "x86_64").spec
    assert wanted.spec != wanted_image(step(install=[WHEEL]), DIGEST, None, "aarch64").spec
    mine = Image("1", tags=(wanted.reference,), labels={"lmcache-fleet.spec": str(wanted.spec)})
    planted = Image("2", tags=(wanted.reference,), labels={})
    assert wanted.found(ContainerHost(images=(mine,))) is mine
    assert wanted.found(ContainerHost(images=(planted,))) is None


def test_the_dockerfile_has_the_guides_flags_and_the_base_by_digest() -> None:
    text = render_dockerfile(step(install=[WHEEL]), f"x@{DIGEST}")["Dockerfile"]
    assert f"FROM x@{DIGEST}\n" in text
    assert "--find-links https://x/v0.5.3-rocm --no-deps lmcache==0.5.3+rocm7.2" in text
    assert "--no-index" not in text


def service(**container: Any) -> ServiceStep:
    return ServiceStep(
        model="m", connector=Connector(name="C"), container=ContainerRun(image="x", **container), server=MpServer()
    )


NODES = (
    "/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc",
    "/dev/kfd", "/dev/dri/renderD128", "/dev/mxcd",
)  # fmt: skip
FULL = ContainerHost(
    version="4.3.1",
    devices=NODES,
    files=("/usr/local/Ascend/driver", "/usr/local/dcmi"),
    groups={"video": 44, "render": 105, "HwHiAiUser": 1000},
    cdi=("nvidia.com/gpu",),
)
EXPECTED = {
    "cpu": "",
    "rocm": "--device /dev/kfd --device /dev/dri --group-add 44 --group-add 105 --security-opt seccomp=unconfined",
    "xpu": "--device /dev/dri --group-add 44 --group-add 105",
    "musa": "--group-add 44 --group-add 105 --privileged",
    "maca": "--device /dev/mxcd --device /dev/dri --group-add 44 --group-add 105 "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined",
    "ascend": "--device /dev/davinci0 --device /dev/davinci1 --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc --group-add 1000 --volume /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro "
    "--volume /usr/local/dcmi:/usr/local/dcmi:ro",
    "cuda": "--device nvidia.com/gpu=all",
}


@pytest.mark.parametrize("vendor", EXPECTED)
def test_each_vendor_gets_its_devices(vendor: str) -> None:
    assert " ".join(device_arguments(vendor, "podman", FULL)) == EXPECTED[vendor]


@pytest.mark.parametrize(
    ("vendor", "lost"),
    [
        ("rocm", "/dev/kfd"), ("rocm", "/dev/dri/renderD128"), ("xpu", "/dev/dri/renderD128"),
        ("musa", "/dev/dri/renderD128"), ("maca", "/dev/mxcd"), ("ascend", "/dev/davinci_manager"),
        ("ascend", "/dev/devmm_svm"), ("ascend", "/dev/hisi_hdc"),
    ],
)  # fmt: skip
def test_a_missing_device_is_refused_by_name(vendor: str, lost: str) -> None:
    host = ContainerHost(devices=tuple(node for node in NODES if node != lost), files=FULL.files)
    with pytest.raises(ContainerFault, match=re.escape(lost.replace("D128", "D"))) as caught:
        device_arguments(vendor, "podman", host)
    assert caught.value.remedy


def test_ascend_without_its_driver_and_cuda_without_its_toolkit_are_refused() -> None:
    with pytest.raises(ContainerFault, match="/usr/local/Ascend/driver"):
        device_arguments("ascend", "podman", ContainerHost(devices=NODES))
    with pytest.raises(ContainerFault, match=r"nvidia\.com/gpu"):
        device_arguments("cuda", "podman", ContainerHost())
    runtime = ContainerHost(files=("/usr/bin/nvidia-container-runtime",))
    assert device_arguments("cuda", "docker", runtime) == ["--gpus", "all"]


def test_containers_have_no_rights_but_those_that_the_guide_gives_them() -> None:
    plain = " ".join(run_arguments(service(), "podman", "rocm", FULL, ["/a:/a:ro"]))
    assert "--cap-drop all" in plain
    assert "no-new-privileges" in plain
    assert "--volume /a:/a:ro" in plain
    assert "--ulimit memlock=-1:-1" in plain
    assert "--cap-drop" not in run_arguments(service(), "podman", "musa", FULL, [])
    with pytest.raises(ContainerFault, match="/dev/nothing"):
        run_arguments(service(devices=["/dev/nothing"]), "podman", "cpu", FULL, [])


def test_the_server_is_started_by_the_images_interpreter_as_the_offline_proof_starts_it() -> None:
    # An image may have LMCache and no `lmcache` on its PATH: the proof passed, and then the service died.
    container = ContainerCommand("podman", (), "x:1", "/opt/venv/bin/python3", "lmcache", {})
    texts = service_files(service(), "/m", ReleaseLayout("/r"), "r", None, container).texts
    started = shlex.split(texts["bin/lmcache-server"].replace("\\\n", " "), comments=True)
    entry = started.index("--entrypoint")
    assert started[entry + 1 : entry + 6] == ["/opt/venv/bin/python3", "x:1", "-m", "lmcache.cli.main", "server"]


def test_what_an_image_must_hold_is_judged_by_what_was_seen_inside() -> None:
    wanted = step(
        expect=["torch==2.10.0+rocm7.2.4.git3d3aa833"],
        attributes={"torch.version.hip": "7.2.53211*"},
        imports=["lmcache.c_ops"],
    )
    seen: dict[str, Any] = {
        "distributions": {"torch": ["2.10.0+rocm7.2.4.git3d3aa833"]},
        "attributes": {"torch.version.hip": "7.2.53211-abc"},
        "imports": {"lmcache.c_ops": ""},
    }
    assert unmet(wanted, seen) == []
    seen["distributions"]["torch"] = ["2.10.0+rocm7.2.3"]
    seen["attributes"]["torch.version.hip"] = "7.1"
    seen["imports"]["lmcache.c_ops"] = "ImportError: undefined symbol: _ZN2at4"
    assert [line.split(" ")[0] for line in unmet(wanted, seen)] == ["torch", "torch.version.hip", "lmcache.c_ops"]


@pytest.mark.parametrize(
    "fields",
    [
        {"image": None},
        {"push": "registry/x"},
        {"install": [WHEEL], "push": "registry/x:tag"},
        {"image": "-x"},
        {"image": "a b"},
        {"install": [WHEEL.model_copy(update={"overrides": ["torch==1"]})]},
    ],
)
def test_steps_that_can_not_be_meant_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ContainerImageStep(**{"name": "x", "image": "a/b:c", **fields})


def test_the_fact_reads_both_engines() -> None:
    lines = [
        "version\tpodman version 4.3.1",
        'image\tsha256:1\t["docker.io/a/b@' + DIGEST + '"]\t["docker.io/a/b:c"]\t{"k": "v"}',
        "image\t2\t[]\tnull\tnull",
        "image\tbroken",
        "device\t/dev/kfd",
        "group\tvideo\t44",
        "cdi\tnvidia.com/gpu",
    ]
    seen = Containers().process(lines)
    assert seen.version == "4.3.1"
    assert seen.images == (Image("1", (f"docker.io/a/b@{DIGEST}",), ("docker.io/a/b:c",), {"k": "v"}), Image("2"))
    assert (seen.devices, seen.groups, seen.cdi) == (("/dev/kfd",), {"video": 44}, ("nvidia.com/gpu",))
    assert Containers().process(["version\tDocker version 20.10.24+dfsg1, build 297e128"]).version == "20.10.24+dfsg1"
    assert Containers().process(["version\tpodman version 4", "problem\tpermission denied"]).problem


def test_the_facts_command_runs_on_a_machine_without_an_engine() -> None:
    import subprocess

    done = subprocess.run(
        ["sh", "-c", Containers().command("no-such-engine", ("/dev/null", "/dev/no such"))],
        capture_output=True,
        text=True,
        check=True,
    )
    seen = Containers().process(done.stdout.splitlines())
    assert seen.version is None
    assert "/dev/null" in seen.devices


def test_an_image_that_was_refused_stays_refused() -> None:
    wanted = step(install=[WHEEL], attributes={"torch.__version__": "2.11.*"})
    seen: dict[str, Any] = {
        "python": "3.12.3",
        "distributions": {"lmcache": ["0.5.3+rocm7.2"]},
        "attributes": {"torch.__version__": "2.11.0"},
        "imports": {},
    }
    assert image_shortfalls(wanted, seen) == []
    cuda = {**seen, "distributions": {"lmcache": ["0.5.3"]}}
    assert "0.5.3+rocm7.2" in image_shortfalls(wanted, cuda)[0]
    playbook = Playbook(apiVersion="lmcache-fleet/v1", name="p", steps=[wanted.model_dump()])
    image = wanted_image(wanted, DIGEST, None, "x86_64")
    there = Image("1", tags=(image.reference,), labels={"lmcache-fleet.spec": str(image.spec)})
    host = Wanted(
        playbook=playbook,
        layout=Layout("/opt/x"),
        key=HostKey("x86_64", "debian", "12", "2.36"),
        toolkit_env=None,
        sources={},
        driver=None,
        images={"x": image},
        container_host=ContainerHost(images=(there,)),
    )

    def lacking(seen: dict[str, Any], identity: str = "1") -> list[str]:
        records = {"image-x": {"reference": image.reference, "id": identity, "seen": seen}}
        changes = changes_of(wanted, host, HostReleases(), ReleaseState("r", records=records))
        return [str(change) for change in changes]

    assert lacking(seen) == []
    assert lacking(cuda)
    assert lacking({**seen, "attributes": {"torch.__version__": "2.12.0"}})
    assert lacking(seen, "2")
