"""Each compatibility rule of the systems: our playbook with one thing changed is refused by that rule alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmcache_fleet.accelerators import Accelerators, Chip
from lmcache_fleet.compatibility import findings, notes, rules
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import Playbook
from lmcache_fleet.requirements import Observed
from tests.unit.engine.test_compatibility import WRONG

ROOT = Path(__file__).resolve().parents[3]
Edit = Callable[[dict[str, Any]], Any]


def step(data: dict[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
    """A step's fields, by kind and name."""
    for item in data["steps"]:
        ((found, fields),) = item.items()
        if found == kind and name in {None, fields.get("name"), fields.get("stage")}:
            fields_: dict[str, Any] = fields
            return fields_
    raise AssertionError(f"no {kind} {name}")


def lmcache(data: dict[str, Any]) -> dict[str, Any]:
    """The packages step that installs lmcache."""
    return step(data, "packages", "lmcache")


def drop(key: str, name: str = "lmcache", kind: str = "packages") -> Edit:
    """Leaves a flag out."""
    return lambda data: step(data, kind, name).pop(key)


def put(key: str, value: Any, name: str | None = "lmcache", kind: str = "packages") -> Edit:
    """Sets a flag."""
    return lambda data: step(data, kind, name).__setitem__(key, value)


def var(name: str, value: Any) -> Edit:
    """Sets a variable."""
    return lambda data: data["vars"].__setitem__(name, value)


def without_step(kind: str, name: str | None = None) -> Edit:
    """Takes a step away."""

    def edit(data: dict[str, Any]) -> None:
        gone = step(data, kind, name)
        data["steps"] = [item for item in data["steps"] if next(iter(item.values())) is not gone]

    return edit


def add(kind: str, **fields: Any) -> Edit:
    """Puts a step at the end."""
    return lambda data: data["steps"].append({kind: fields})


def env(name: str, value: str | None) -> Edit:
    """Sets or leaves out a variable of the native build."""

    def edit(data: dict[str, Any]) -> None:
        variables = step(data, "native_build")["env"]
        if value is None:
            del variables[name]
        else:
            variables[name] = value

    return edit


# rule → playbook, what is changed in it
REFUSED: dict[str, tuple[str, Edit]] = {
    "module-path-needs-vllm": ("cuda", var("vllm", "0.19.1")),
    "kv-events-need-vllm": (
        "cuda",
        lambda data: (
            var("vllm", "0.12.0")(data),
            step(data, "service")["connector"].pop("module_path"),
            step(data, "service")["args"].extend(["--kv-events-config", "{}"]),
        ),
    ),
    "sglang-args-exclude-lmcache": (
        "lmcache-image",
        lambda data: (var("channel", "sglang")(data), var("args", ["--disable-radix-cache"])(data)),
    ),
    "unproved-engine": ("cuda", without_step("verify", "offline")),
    "kimi-k3-needs-lmcache": (
        "cuda",
        lambda data: (var("lmcache", "0.5.2")(data), var("model", "moonshotai/Kimi-K3-Instruct")(data)),
    ),
    "python-of-lmcache": ("cuda", lambda data: (var("python", "3.9")(data), data["requires"].pop("python"))),
    "cu129-without-torch-index": ("cuda-12.9", drop("extra_index_urls")),
    # On a mirror of the pages, too.
    "cu130-nightly-without-torch-index": (
        "cuda-nightly",
        lambda data: (var("releases_url", "http://mirror/pages")(data), drop("extra_index_urls")(data)),
    ),
    "torch-index-without-best-match": ("cuda-12.9", drop("index_strategy")),
    "nightly-without-page": ("cuda-nightly", drop("find_links")),
    "rocm-nightly-from-index": ("rocm-nightly", drop("no_index")),
    "rocm-without-local-version": ("rocm", put("pins", ["lmcache=={{ lmcache }}"])),
    "index-wheel-on-vendor-torch": ("xpu", drop("no_index")),
    "maca-has-no-wheel": ("maca", add("packages", name="lmcache", pins=["lmcache==0.5.6"], no_deps=True)),
    "vendor-torch-replaced": ("musa", drop("no_deps")),
    "vendor-wheel-without-runtime": ("rocm-amd", lambda data: data["requires"].pop("runtime")),
    "isolated-source-build": ("cuda", put("no_binary", ["lmcache"])),
    "cuda12-source-takes-cuda13-requirements": ("cuda-12.9-source", env("LMCACHE_CUDA_MAJOR", None)),
    "rocm-source-environment": ("rocm-source", env("CXX", None)),
    "xpu-source-environment": ("xpu-source", env("BUILD_WITH_SYCL", "0")),
    "maca-source-environment": ("maca", env("BUILD_WITH_MACA", None)),
    "maca-version-without-build": ("maca", put("version", "{{ lmcache }}", None, "native_build")),
    "maca-mp-without-mcpy": ("maca", without_step("packages", "mcpy")),
    "maca-device-is-cuda": (
        "maca", lambda data: step(data, "verify", "offline")["options"]["expect"].__setitem__("device", "maca")
    ),
    "probe-of-another-backend": ("xpu", put("imports", ["lmcache.cuda_ops"])),
    "cli-beside-lmcache": ("cuda", add("packages", name="cli", pins=["lmcache-cli==0.5.6.dev0"])),
}  # fmt: skip


def on_image(edit: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Edit:
    """Changes the image step, and the one pip call on top of it."""
    return lambda data: edit(step(data, "container_image"), step(data, "container_image")["install"][0])


# The same of wheels that are put on an image: playbook, what is changed in it, rule.
ON_IMAGES: list[tuple[str, Edit, str]] = [
    ("rocm-image", on_image(lambda _, call: call.pop("no_deps")), "vendor-torch-replaced"),
    (
        "rocm-image",
        on_image(lambda _, call: call.__setitem__("pins", ["lmcache=={{ lmcache }}"])),
        "rocm-without-local-version",
    ),
    ("rocm-image", on_image(lambda image, _: image.pop("attributes")), "vendor-wheel-without-runtime"),
    ("rocm-amd-image", on_image(lambda _, call: call.pop("no_deps")), "vendor-torch-replaced"),
    ("xpu-image", on_image(lambda _, call: call.pop("no_index")), "index-wheel-on-vendor-torch"),
    ("musa-image", on_image(lambda _, call: call.pop("no_index")), "index-wheel-on-vendor-torch"),
    ("musa-image", on_image(lambda image, _: image.pop("imports")), "vendor-wheel-without-runtime"),
]


def host(vendor: str, cuda: str | None = None, **extra: Any) -> Observed:
    chip = Chip(0, None, "a card", None, None, "VRAM", None, None, extra=extra)
    return Observed(accelerators=Accelerators(vendor, "ok", chips=(chip,), extra={"cuda_version": cuda}))


H100 = host("cuda", "13.1", compute_capability="9.0")
# rule → playbook, a host that it refuses, one that it doesn't
REFUSED_HOSTS: dict[str, tuple[str, Observed, Observed]] = {
    "cuda-compute-capability": ("cuda", host("cuda", "13.0", compute_capability="6.1"), H100),
    "cuda-driver-too-old": (
        "cuda-12.9", host("cuda", "12.0", compute_capability="9.0"), host("cuda", "12.9", compute_capability="9.0")
    ),
    "cuda13-wheel-on-cuda12-driver": ("cuda", host("cuda", "12.9", compute_capability="9.0"), H100),
    "rocm-architecture": ("rocm-image", host("rocm", gfx="gfx90a"), host("rocm", gfx="gfx950")),
}  # fmt: skip

# rule → playbook, variables with which it is worth knowing, others with which it is not
NOTED: dict[str, tuple[str, Edit, Edit]] = {
    "bundled-connector": ("cuda", lambda data: step(data, "service")["connector"].pop("module_path"), lambda _: None),
    "hybrid-by-recipe": ("cuda", var("model", "moonshotai/Kimi-Linear-48B"), var("model", "Qwen/Qwen3-8B")),
    "old-matrix": ("cuda", var("lmcache", "0.4.3"), var("lmcache", "0.5.0")),
}
ELSEWHERE = {rule for _, _, rule in WRONG}


def edited(tmp_path: Path, name: str, edit: Edit) -> Playbook:
    data = copy.deepcopy(yaml.safe_load((ROOT / f"playbooks/{name}.yaml").read_text(encoding="utf-8")))
    edit(data)
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return check_document(read_playbook(path))


@pytest.mark.parametrize("rule", REFUSED)
def test_a_playbook_with_one_thing_changed_is_refused_by_that_rule_alone(rule: str, tmp_path: Path) -> None:
    name, edit = REFUSED[rule]
    assert findings(check_document(read_playbook(ROOT / f"playbooks/{name}.yaml"))) == []
    assert [finding.rule for finding in findings(edited(tmp_path, name, edit))] == [rule]


@pytest.mark.parametrize(("name", "edit", "rule"), ON_IMAGES, ids=[f"{name}-{rule}" for name, _, rule in ON_IMAGES])
def test_a_call_on_an_image_is_judged_as_a_packages_step_is(name: str, edit: Edit, rule: str, tmp_path: Path) -> None:
    assert findings(check_document(read_playbook(ROOT / f"playbooks/{name}.yaml"))) == []
    assert [finding.rule for finding in findings(edited(tmp_path, name, edit))] == [rule]


@pytest.mark.parametrize("rule", REFUSED_HOSTS)
def test_a_host_that_does_not_fit_is_refused_by_that_rule(rule: str) -> None:
    name, misfit, fits = REFUSED_HOSTS[rule]
    playbook = check_document(read_playbook(ROOT / f"playbooks/{name}.yaml"))
    assert rule in [finding.rule for finding in findings(playbook, misfit)]
    assert findings(playbook, fits) == []
    assert findings(playbook) == []


@pytest.mark.parametrize("rule", NOTED)
def test_what_is_worth_knowing_refuses_nothing(rule: str, tmp_path: Path) -> None:
    name, fires, silent = NOTED[rule]
    playbook = edited(tmp_path, name, fires)
    assert rule in [note.rule for note in notes(playbook)]
    assert findings(playbook) == []
    (tmp_path / "twin").mkdir()
    assert rule not in [note.rule for note in notes(edited(tmp_path / "twin", name, silent))]


def test_every_rule_is_whole_and_has_its_test() -> None:
    for rule in rules():
        assert rule.message
        assert rule.remedy
        assert rule.source
    names = [rule.id for rule in rules()]
    assert len(set(names)) == len(names)
    assert set(names) - ELSEWHERE == {*REFUSED, *REFUSED_HOSTS, *NOTED} - ELSEWHERE
