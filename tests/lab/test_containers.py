"""The image playbooks on one host: real engines, a real registry, real pip; stand-in cards, vLLM and wheels.

In this order, each on the last. About seven minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import images
from tests.lab.conftest import RunningLab
from tests.lab.fleet import PREFIX
from tests.lab.images_site import HOST, Images, images_site
from tests.lab.systems_site import refused_without

ROCM = "vllm/vllm-openai-rocm:v0.25.0"


@pytest.fixture(scope="module")
def site(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The host, with cards of a sort and nothing of ours on it."""
    if images.missing():
        pytest.skip(f"the registry needs {', '.join(images.missing())}: apt-get install {' '.join(images.NEEDED)}")
    reuse = os.environ.get("LMCACHE_FLEET_TEST_REUSE")
    with images_site(lab, Path(reuse) if reuse else tmp_path_factory.mktemp("images")) as site:
        site.push(ROCM, "mi300x8")
        yield site


def again(site: Images, folder: Path, playbook: str, **variables: Any) -> None:
    """A further run changes nothing, and asks the host once."""
    fleet, counts = site.fleet(playbook), folder / "counts.json"
    before = (fleet.listing(HOST), fleet.main_pid(HOST))
    result = site.run(playbook, env={"COUNTS": str(counts)}, **variables)
    assert result.code == 0, result.err
    assert result.changed == set(), result.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert (fleet.listing(HOST), fleet.main_pid(HOST)) == before


def served(site: Images, playbook: str, image: str, version: str, /, **variables: Any) -> None:
    """A playbook converges: its wheel is in the image, and both proofs hold."""
    result = site.run(playbook, **variables)
    assert result.code == 0, result.err
    assert site.record(image)["seen"]["distributions"]["lmcache"] == [version]
    fleet = site.fleet(playbook)
    for stage in ("offline", "online"):
        assert fleet.evidence(HOST, fleet.serving(HOST), stage)["ok"]


def refused(site: Images, playbook: str, *said: str, **variables: Any) -> None:
    """A playbook is refused, and what served goes on."""
    fleet = site.fleet(playbook)
    pid = fleet.main_pid(HOST)
    result = site.run(playbook, **variables)
    assert result.code != 0
    for text in said:
        assert text in result.err + result.table
    assert fleet.main_pid(HOST) == pid
    assert fleet.healthy(HOST)


def test_a_wheel_is_put_on_the_image_and_the_service_runs_in_it(site: Images) -> None:
    result = site.run("rocm-image", image=site.image(ROCM))
    assert result.code == 0, result.err + result.out
    fleet, record = site.fleet("rocm-image"), site.record("vllm-rocm")
    assert record["seen"]["distributions"]["lmcache"] == ["0.5.3+rocm7.2"]
    pinned = json.loads((fleet.artifacts / "images.json").read_text())
    assert list(pinned) == [site.image(ROCM)]
    script = " ".join(shlex.split(site.root(f"cat {PREFIX}/current/bin/vllm").replace("\\\n", " "), comments=True))
    for words in ("--device /dev/kfd", "--device /dev/dri", "seccomp=unconfined", "--cap-drop all", "--pull never"):
        assert words in script
    for stage in ("offline", "online"):
        assert fleet.evidence(HOST, fleet.serving(HOST), stage)["ok"]
    inside = site.root(
        "podman exec lmcache-fleet-vllm python3 -c 'import os; print(os.getuid(), sorted(os.listdir(\"/dev\")))'"
    )
    assert "'dri'" in inside
    assert "'kfd'" in inside
    assert inside.split()[0] == site.root("id -u lmcache")


def test_a_second_run_changes_nothing_and_asks_the_host_once(site: Images, tmp_path: Path) -> None:
    result = site.run("rocm-image", "--dry", image=site.image(ROCM))
    assert result.code == 0, result.err
    assert result.planned == set()
    again(site, tmp_path, "rocm-image", image=site.image(ROCM))


def test_drift_of_command_environment_and_image_is_seen_and_mended(site: Images) -> None:
    fleet = site.fleet("rocm-image")
    serving = fleet.serving(HOST)
    tag = site.record("vllm-rocm")["reference"]
    release = f"{PREFIX}/releases/{serving}"
    site.root(
        f"sed -i 's/--max-model-len/--max-num-seqs/' {release}/bin/vllm; echo VLLM_X=1 >> {release}/env/service.env"
    )
    # Another image under the name of ours: whatever it holds, it is not what the name says.
    base = site.root("podman images --quiet --filter reference=*/vllm/vllm-openai-rocm | head -1")
    site.root(f"podman untag {tag} && podman tag {base} {tag}")
    result = site.run("rocm-image", "--dry", "--diff", image=site.image(ROCM))
    assert result.code == 0, result.err
    shown = "\n".join(result.diff[HOST])
    assert "image vllm-rocm" in shown
    result = site.run("rocm-image", "--diff", image=site.image(ROCM))
    assert result.code == 0, result.err
    assert fleet.serving(HOST) != serving
    assert "VLLM_X" not in site.root(f"cat {PREFIX}/current/env/service.env")
    assert site.record("vllm-rocm")["seen"]["distributions"]["lmcache"] == ["0.5.3+rocm7.2"]
    inside = site.root("podman exec lmcache-fleet-vllm python3 -c 'import os; print(dict(os.environ))'")
    assert fleet.serving(HOST) in inside
    result = site.run("rocm-image", image=site.image(ROCM))
    assert result.changed == set(), result.err


def test_what_does_not_fit_is_refused_by_name_and_the_service_goes_on(site: Images) -> None:
    fleet = site.fleet("rocm-image")
    pid = fleet.main_pid(HOST)
    name = site.image(ROCM).rsplit(":", 1)[0]
    # A digest that the registry hasn't, torch of another version, and a page without the wheel: the index has only the
    # CUDA wheel of that version, which the exact pin doesn't take.
    for variables, words in (
        ({"image": f"{name}@sha256:{'b' * 64}"}, "can't be pulled"),
        ({"torch": "2.12.*"}, "torch.__version__ is 2.11.0+rocm7.2, expected 2.12.*"),
        ({"releases_url": f"{site.systems.places['releases_url']}/nowhere"}, "lmcache==0.5.3+rocm7.2"),
    ):
        result = site.run("rocm-image", **{"image": site.image(ROCM), **variables})
        assert result.code != 0
        assert words in result.err
    # Refused once is refused again: the image is there by now, and still isn't what it must be.
    result = site.run("rocm-image", image=site.image(ROCM), torch="2.12.*")
    assert result.code != 0
    assert "torch.__version__ is 2.11.0+rocm7.2, expected 2.12.*" in result.err
    with site.without("/dev/kfd"):
        result = site.run("rocm-image", image=site.image(ROCM))
    assert result.code != 0
    assert "the host has no /dev/kfd" in result.table
    assert "modprobe amdgpu" in result.table
    assert fleet.main_pid(HOST) == pid
    assert fleet.healthy(HOST)


def test_docker_serves_as_podman_does(site: Images, tmp_path: Path) -> None:
    variables = {"image": site.image(ROCM), "engine": "docker", "engine_packages": ["docker.io"]}
    served(site, "rocm-image", "vllm-rocm", "0.5.3+rocm7.2", **variables)
    inside = site.root(
        "docker exec lmcache-fleet-vllm python3 -c 'import os; print(os.getuid(), sorted(os.listdir(\"/dev\")))'"
    )
    assert "'dri'" in inside
    assert "'kfd'" in inside
    assert inside.split()[0] == site.root("id -u lmcache")
    again(site, tmp_path, "rocm-image", **variables)
    refused(site, "rocm-image", "torch.__version__ is 2.11.0+rocm7.2, expected 2.12.*", **variables, torch="2.12.*")
    refused(
        site, "rocm-image", "can't be pulled", **{**variables, "image": f"{site.image('none/none')}@sha256:{'b' * 64}"}
    )
    # Another image under the name of ours is seen, as with podman.
    record = site.record("vllm-rocm")
    site.root(f"docker tag {site.pushed[ROCM][0]} {record['reference']}")
    told = site.run("rocm-image", "--dry", "--diff", **variables)
    assert "image vllm-rocm" in "\n".join(told.diff[HOST])
    site.root(f"docker tag {record['id']} {record['reference']}")


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


def test_an_image_is_made_from_a_source_tree_once(site: Images) -> None:
    tree = site.work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "docker").mkdir(parents=True)
    (tree / "docker/Dockerfile").write_text(DOCKERFILE)
    shutil.copytree(site.work / "wheels/releases-v0.5.3-rocm", tree / "wheels")
    git = ["git", "-C", str(tree), "-c", "user.name=lab", "-c", "user.email=lab@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "x"], ["tag", "v0.5.6"]):
        subprocess.run([*git, *words], check=True)
    arguments = {"BASE": site.image(ROCM), "VLLM_VERSION": "nightly"}
    variables = {"lmcache_repo": str(tree), "vendor": "rocm", "build_args": arguments}
    result = site.run("built-image", **variables)
    assert result.code == 0, result.err
    assert "image-release" not in result.err
    record = site.record("built")
    label = '{{index .Config.Labels "lmcache-fleet.spec"}} {{.Config.Env}}'
    seen = site.root(f"podman image inspect --format '{label}' {record['id']}")
    assert seen.split()[0] == record["reference"].rsplit(":", 1)[1]
    assert "BUILT_FOR=nightly" in seen
    # Another argument of the service: another release, the same image.
    result = site.run("built-image", **variables, max_model_len=2048)
    assert result.code == 0, result.err
    assert "STEP" not in result.err
    assert site.record("built")["id"] == record["id"]


# --- the images of other vendors --------------------------------------------------------------------------------------

READY = "rocm/vllm-dev:nightly"


def ready(site: Images, **variables: Any) -> dict[str, Any]:
    """Variables of the playbook of ready images."""
    return {"channel": "rocm", "image": site.image(READY), **variables}


def test_a_ready_image_serves_and_moves_only_when_its_tag_is_followed(site: Images, tmp_path: Path) -> None:
    fleet = site.fleet("lmcache-image")
    first = site.push(READY, "mi300x8", "0.5.3+rocm7.2")
    result = site.run("lmcache-image", **ready(site))
    assert result.code == 0, result.err
    release = fleet.serving(HOST)
    assert site.record("ready")["reference"].endswith(f"@{first}")
    for stage in ("offline", "online"):
        assert fleet.evidence(HOST, release, stage)["ok"]
    assert fleet.evidence(HOST, release, "offline")["versions"]["lmcache"] == "0.5.3+rocm7.2"
    second = site.push(READY, "mi300x8", "0.5.4+rocm7.2")
    assert second != first
    again(site, tmp_path, "lmcache-image", **ready(site))
    result = site.run("lmcache-image", **ready(site, follow=True))
    assert result.code == 0, result.err
    assert site.record("ready")["reference"].endswith(f"@{second}")
    assert site.record("ready")["seen"]["distributions"]["lmcache"] == ["0.5.4+rocm7.2"]
    assert fleet.evidence(HOST, fleet.serving(HOST), "online")["ok"]
    assert fleet.serving(HOST) != release
    again(site, tmp_path, "lmcache-image", **ready(site, follow=True))


def test_a_ready_image_that_can_not_serve_is_refused_and_what_served_goes_on(site: Images) -> None:
    fleet = site.fleet("lmcache-image")
    pid = fleet.main_pid(HOST)
    # An image without LMCache, cards of another vendor, and none.
    result = site.run("lmcache-image", **ready(site, image=site.image(ROCM)))
    assert result.code != 0
    assert "'lmcache.cli.main' (ModuleNotFoundError" in result.err
    result = site.run("lmcache-image", **ready(site, channel="xpu"))
    assert result.code != 0
    assert result.table.split(" | ")[:2] == [HOST, "requirements"], result.err
    with site.without("/dev/dri"):
        result = site.run("lmcache-image", **ready(site, follow=True))
    assert result.code != 0
    assert "the host has no /dev/dri/renderD" in result.table
    assert fleet.main_pid(HOST) == pid
    assert fleet.healthy(HOST)


XPU = "vllm/vllm-openai-xpu:v0.26.0"


def test_intels_image_serves_on_its_cards_alone(site: Images, tmp_path: Path) -> None:
    variables = {"image": site.image(XPU)}
    site.push(XPU, "max1550x4")
    refused(site, "xpu-image", "tool-missing", **variables)
    site.cards("max1550x4")
    served(site, "xpu-image", "vllm-xpu", "0.5.3+xpu", **variables)
    again(site, tmp_path, "xpu-image", **variables)
    refused(site, "xpu-image", "torch.__version__ is 2.12.0+xpu, expected 2.13.*", **variables, torch="2.13.*")
    with site.without("/dev/dri"):
        refused(site, "xpu-image", "the host has no /dev/dri/renderD", "i915 or xe", **variables)


MUSA = "ai-kv/kuae-lmcache-vllm-ci:any"


def test_moore_threads_image_serves_and_images_go_with_their_last_release(site: Images, tmp_path: Path) -> None:
    # The two ready images' releases go next, one after the other. Of one image somebody has a container, and the other
    # one he gave a name.
    first, second = site.pushed[READY]
    site.root(f"podman create --name his {first} x && podman tag {second} localhost/his:1")
    variables = {"image": f"{site.image(MUSA)}@{site.push(MUSA, 's5000x8')}"}
    site.cards("s5000x8")
    served(site, "musa-image", "vllm-musa", "0.5.5+musa", **variables)
    assert first not in site.named()
    assert site.there(first)
    site.root("podman rm his")
    told = "\n".join(site.run("musa-image", "--dry", "--diff", **variables).diff[HOST])
    assert f"- image {first}: frees up to " in told
    result = site.run("musa-image", **variables)
    assert result.changed == {(HOST, "99 retention")}, result.err
    assert not site.there(first)
    again(site, tmp_path, "musa-image", **variables)
    nowhere = "musa_aiter_next doesn't load: ModuleNotFoundError"
    refused(site, "musa-image", nowhere, **variables, imports=["torch_musa", "musa_aiter_next"])
    with site.without("/dev/dri"):
        refused(site, "musa-image", "the host has no /dev/dri/renderD", "mthreads-gmi", **variables)


AMD = "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0"
AMDS_BUILD = "0.5.4+rocm7.2.4.torch2.10.git3d3aa833.cxx11abi1"


def test_amds_image_holds_the_wheel_of_its_very_abi(site: Images, tmp_path: Path) -> None:
    digest = site.push(AMD, "mi300x-torch210")
    minor = images.python_minor(site.systems.lab.lab.paths.root(HOST))
    variables = {"image": f"{site.image(AMD)}@{digest}", "python": f"{minor}.*"}
    site.cards("mi300x-torch210")
    # The wheel goes on vLLM's image as well, and would not load there; nor does it under another Python.
    other = {**variables, "image": site.image(ROCM)}
    wrong = (
        "torch is 2.11.0+rocm7.2, expected ==2.10.0+rocm7.2.4.git3d3aa833",
        "torch.version.hip is 7.2.26015-fc0010cf6a",
    )
    refused(site, "rocm-amd-image", *wrong, "build from source", **other)
    fleet, before = site.fleet("rocm-amd-image"), site.fleet("rocm-amd-image").serving(HOST)
    pid = fleet.main_pid(HOST)
    result = site.run("rocm-amd-image", **variables)
    assert result.code == 0, result.err
    # Nothing is served from this image: what serves stays, and so does the link that it would start again from.
    assert (fleet.main_pid(HOST), fleet.serving(HOST)) == (pid, before)
    assert f"current stays at {before}" in result.err
    seen = site.record("amd-pytorch", site.newest("rocm-amd-image"))["seen"]
    assert seen["distributions"]["lmcache"] == [AMDS_BUILD]
    assert seen["attributes"]["torch.version.hip"] == "7.2.53211-671d39a55e"
    assert seen["attributes"]["torch._C._GLIBCXX_USE_CXX11_ABI"] == "True"
    with site.without("/dev/kfd"):
        # Nothing of this image runs on the cards yet: it can be put on a host before its driver is.
        again(site, tmp_path, "rocm-amd-image", **variables)
    refused(site, "rocm-amd-image", "expected 3.9.*", **{**variables, "python": "3.9.*"})


def test_amds_wheel_and_torch_of_another_abi_are_refused_where_all_else_fits(site: Images) -> None:
    minor = images.python_minor(site.systems.lab.lab.paths.root(HOST))
    site.cards("mi300x-torch210")
    name = f"{AMD}-oldabi"
    image = f"{site.image(name)}@{site.push(name, 'mi300x-torch210-oldabi')}"
    result = site.run("rocm-amd-image", image=image, python=f"{minor}.*")
    assert result.code != 0
    wrong = result.err.partition("doesn't hold what it must: ")[2].partition("\n")[0]
    assert wrong.startswith("torch._C._GLIBCXX_USE_CXX11_ABI is False, expected True"), result.err
    assert "torch is 2.10" not in result.err
    # A page whose only wheel of that version says another ABI: the whole tuple is pinned, and no other is taken.
    right = f"{site.image(AMD)}@{site.pushed[AMD][0].partition('@')[2]}"
    page = f"{site.systems.places['releases_url']}/old-abi"
    refused(
        site, "rocm-amd-image", f"lmcache=={AMDS_BUILD}", f"{AMDS_BUILD[:-1]}0",
        image=right, python=f"{minor}.*", releases_url=page,
    )  # fmt: skip
    # What the refused runs brought goes with the next one that works.
    assert not site.brought() <= site.named()
    result = site.run("rocm-amd-image", image=right, python=f"{minor}.*")
    assert result.code == 0, result.err
    assert site.brought() <= site.named()
    assert not site.there(image)


def test_no_image_stays_that_only_pruned_releases_named(site: Images) -> None:
    first, second = site.pushed[READY]
    # What somebody gave a name stays with him, and is no longer ours to take.
    assert site.there(second)
    assert second not in site.brought()
    assert site.brought() <= site.named()
    for reference in site.brought():
        assert site.there(reference)
    assert not site.there(first)
    assert not site.root("podman images --quiet --filter reference=localhost/lmcache-fleet/vllm-rocm")
    assert not site.root("docker images --all --quiet")


# --- flags left out ---------------------------------------------------------------------------------------------------

FLAGS = [
    ("rocm-amd-image", "mi300x-torch210", "          no_deps: true\n", "", "vendor-torch-replaced"),
    ("rocm-image", "mi300x8", "{{ lmcache }}+rocm7.2", "{{ lmcache }}", "rocm-without-local-version"),
    ("xpu-image", "max1550x4", "          no_index: true\n", "", "index-wheel-on-vendor-torch"),
    ("musa-image", "s5000x8", "          no_deps: true\n", "", "vendor-torch-replaced"),
]


@pytest.mark.parametrize(("playbook", "cards", "text", "instead", "rule"), FLAGS, ids=[row[0] for row in FLAGS])
def test_a_flag_left_out_is_named(
    site: Images, tmp_path: Path, playbook: str, cards: str, text: str, instead: str, rule: str
) -> None:
    site.cards(cards)
    refused_without(site.systems, HOST, tmp_path, playbook, text, instead, rule)
