"""Every check of the catalogue fires where it should, and keeps quiet on a good host and where it only nearly holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from lmcache_fleet.accelerators import Accelerators, Process
from lmcache_fleet.parsers.listeners import Listener
from lmcache_fleet.playbook.model import (
    Connector,
    LmcacheConfigStep,
    ModelStep,
    MpServer,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SourceStep,
    SystemPackagesStep,
    VenvStep,
)
from lmcache_fleet.preflight.catalogue import LANGUAGES, catalogue, findings
from lmcache_fleet.preflight.observation import ControlObservation, HolderSeen, NodeSeen, PythonSeen, Space, Subject
from lmcache_fleet.preflight.registry import checks
from lmcache_fleet.resolution import default_index
from tests.unit.preflight.subjects import (
    CANN,
    CHIPS,
    GOOD,
    NODES,
    OLD_CANN,
    UNIT,
    accelerator,
    ascend,
    chips,
    on,
    playbook,
    requiring,
    running,
    smi,
    step,
    without,
)


def settings(**values: Any) -> Playbook:
    book = playbook()
    given = book.of_kind(LmcacheConfigStep)[0].settings
    return step(LmcacheConfigStep, book, settings={**given, **values})


def only(**values: Any) -> Playbook:
    return step(LmcacheConfigStep, settings=values)


def env(**values: str) -> Playbook:
    book = playbook()
    return step(ServiceStep, book, env={**book.of_kind(ServiceStep)[0].env, **values})


def args(*words: str) -> Playbook:
    book = playbook()
    return step(ServiceStep, book, args=[*book.of_kind(ServiceStep)[0].args, *words])


def connector(name: str, module: str | None = None, book: Playbook | None = None, **extra: Any) -> Playbook:
    return step(ServiceStep, book, connector=Connector(name=name, module_path=module, extra=extra))


def packages(name: str, book: Playbook | None = None, **fields: Any) -> Playbook:
    book = book or playbook()
    return book.model_copy(
        update={
            "steps": [
                item.model_copy(update=fields) if isinstance(item, PackagesStep) and item.name == name else item
                for item in book.steps
            ]
        }
    )


def space(name: str, **fields: Any) -> dict[str, Space]:
    return {**GOOD.spaces, name: replace(GOOD.spaces[name], **fields)}


def no_packages(**fields: Any) -> Subject:
    return on(step(SystemPackagesStep, apt=[], dnf=[]), **fields)


SICK = replace(CHIPS[3], health="Alarm")
FULL = replace(CHIPS[0], memory_used_mb=60000)
MP = "lmcache.integration.vllm.lmcache_mp_connector"
ASCEND_V1 = "lmcache_ascend.integration.vllm.lmcache_ascend_connector"
HELD = (HolderSeen("/dev/davinci0", 42, "python3"),)
WAIT = ControlObservation(unreachable=(("http://user:word@index/simple", "refused"),))
P2P = settings(enable_p2p=True)
TAKEN = (Listener("127.0.0.1", 8000, "nginx", 77),)

FIRES: dict[str, Subject] = {
    "host-unread": on(unread=(("Nnal", "exit status 3"),)),
    "sudo-refused": on(unread=(("the host", "sudo refused the password or wants one"),)),
    "not-root": on(uid=1000),
    "not-systemd": on(init="tini"),
    "command-missing": on(missing_commands=("flock",)),
    "architecture-not-wanted": on(requiring(architectures=["aarch64"])),
    "package-manager-missing": on(packages=(), package_manager=None),
    "system-packages-missing": on(packages=("cmake",)),
    "package-lock-held": on(packages=(), package_lock="123 apt-get upgrade"),
    "run-lock-held": on(run_lock="somebody pid 1"),
    "clock-skew": on(skew_s=-31.0),
    "reboot-required": on(reboot_required=True),
    "login-shell-slow": on(login_s=2.5),
    "login-shell-fails": on(login_state="failed", login_noise=("unbound variable",)),
    "login-shell-noisy": on(login_noise=("Welcome",)),
    "switch-interrupted": on(interrupted=True),
    "host-rolled-back": on(rolled_back="abc"),
    "driver-missing": ascend(driver_state="not-installed", driver=None, host={"driver": None}),
    "driver-not-loaded": ascend(driver_state="not-loaded"),
    "driver-unreadable": ascend(driver_state="permission-denied"),
    "driver-version": on(requiring(driver=">=26"), driver=Version("25.5.1")),
    "driver-cannot-register-memory": on(driver=Version("23.0.6")),
    "driver-older-than-cann": on(driver=Version("24.1.0")),
    "driver-needs-capabilities": on(driver=Version("24.1rc3")),
    "firmware-out-of-range": ascend(firmware="6.4.1"),
    "driver-user-missing": ascend(user_exists=False),
    "cann-missing": ascend(toolkits_state="not-installed", toolkits=(), toolkit=None, host={"toolkit": None}),
    "cann-ambiguous": ascend(toolkits_state="ambiguous", toolkits=(OLD_CANN, CANN), toolkit=None),
    "cann-several": ascend(toolkits=(OLD_CANN, CANN)),
    "cann-unreadable": ascend(toolkits_state="no-version"),
    "cann-version": ascend(toolkits=(OLD_CANN, CANN), toolkit=OLD_CANN.path, host={"toolkit": Version("8.5.0")}),
    "cann-prerelease": ascend(toolkits=(replace(CANN, version="9.1.0-beta.1"),)),
    "cann-other-architecture": ascend(toolkits=(replace(CANN, arch="aarch64"),)),
    "toolkit-env-missing": on(env_missing=("/usr/local/Ascend/nnal/atb/set_env.sh",)),
    "toolkit-env-fails": on(env_failed=("/x/set_env.sh (exit status 1)",)),
    "toolkit-env-other-cann": ascend(
        toolkits=(OLD_CANN, CANN), host={"toolkit_env": {"ASCEND_HOME_PATH": OLD_CANN.path}}
    ),
    "ops-missing": ascend(toolkits=(replace(CANN, ops=()),)),
    "ops-of-other-soc": ascend(toolkits=(replace(CANN, ops=("310p",)),)),
    "platform-file-missing": ascend(toolkits=(replace(CANN, inis=("Ascend910b3",)),)),
    "nnal-missing": ascend(nnal_state="not-installed", nnal=None),
    "nnal-other-version": ascend(nnal="9.0.0"),
    "nnal-abi-missing": ascend(abis=("0",)),
    "source-too-old-for-cann": on(step(SourceStep, ref="v0.4.3")),
    "hixl-patch-missing": on(step(SourceStep, patches=[])),
    "hcomm-other-version": on(P2P),
    "atb-plugin-glibc": on(glibc="2.36"),
    "npu-tool-missing": smi("tool-missing"),
    "npu-in-use": smi("device-in-use"),
    "npu-unreachable": smi("dcmi-init-failed"),
    "npu-library-missing": smi("library-missing"),
    "npu-unreadable": smi("unknown-header"),
    "npu-library-path": on(accelerators=replace(chips(), extra={"needs_library_path": True})),
    "chip-unhealthy": on(accelerators=chips(SICK)),
    "chip-not-ok": on(accelerator(health=None), accelerators=chips(SICK)),
    "soc-not-wanted": on(soc="Ascend950DT_9582"),
    "soc-unsupported": on(soc="Ascend910ProB"),
    "soc-experimental": on(soc="Ascend310P3"),
    "soc-experimental-not-allowed": on(accelerator(experimental=["Ascend310P*"]), soc="Ascend310P3"),
    "chips-too-few": on(accelerator(count=9)),
    "chips-differ": on(accelerators=chips(replace(CHIPS[1], name="910B4"))),
    "device-nodes-missing": ascend(devices_state="missing-devices", devices_message="/dev/hisi_hdc"),
    "device-node-wrong": ascend(nodes=(*NODES[1:], NodeSeen("/dev/davinci0", "755", "root", False))),
    "device-count-differs": ascend(nodes=NODES[1:]),
    "device-group-missing": ascend(group_exists=False),
    "service-without-device-group": on(step(ServiceStep, groups=[])),
    "devices-held": ascend(holders=HELD),
    "device-memory-short": on(accelerators=chips(FULL)),
    "device-memory-held-unseen": on(accelerators=chips(FULL)),
    "visible-devices-malformed": on(env(ASCEND_RT_VISIBLE_DEVICES="0,0")),
    "visible-devices-absent": on(env(ASCEND_RT_VISIBLE_DEVICES="7,8")),
    "visible-devices-gap": on(env(ASCEND_RT_VISIBLE_DEVICES="0,1,2,5")),
    "visible-devices-half-set": on(env(ASCEND_VISIBLE_DEVICES="3,4")),
    "ranks-exceed-devices": on(args("--tensor-parallel-size", "4", "--data-parallel-size=3")),
    "hccn-missing": ascend(P2P, hccn=False),
    "glibc-version": on(glibc="2.31"),
    "python-missing": on(pythons=()),
    "python-version": on(pythons=(PythonSeen("/usr/bin/python3", "3.13.1"),)),
    "python-venv-missing": on(step(VenvStep, installer="pip"), pythons=(PythonSeen("/p", "3.12.1", venv=False),)),
    "python-headers-missing": on(pythons=(PythonSeen("/p", "3.12.1", headers=False),)),
    "numa-headers-missing": no_packages(headers=()),
    "compiler-missing": on(commands={"cmake": "3.28.3"}),
    "cmake-missing": no_packages(commands={"g++": ""}),
    "cmake-too-old": on(commands={"g++": "", "cmake": "3.10.2"}),
    "build-path-openeuler": on(os_id="openEuler", os_version="24.03"),
    "build-under-dash": on(step(SourceStep, ref="v0.3.3")),
    "disk-short": on(spaces=space("prefix", free_gb=19.9)),
    "inodes-few": on(spaces=space("prefix", free_inodes=1000)),
    "prefix-read-only": on(spaces=space("prefix", options=("ro", "relatime"))),
    "prefix-noexec": on(spaces=space("prefix", options=("rw", "noexec"))),
    "tmp-short": on(spaces=space("tmp", free_gb=0.5)),
    "shm-short": on(args("-tp", "2"), spaces=space("shm", free_gb=0.06)),
    "memory-short": on(requiring(memory_gb=2000)),
    "host-tier-exceeds-memory": on(
        step(ServiceStep, settings(max_local_cpu_size=150), args=["--tensor-parallel-size", "8"])
    ),
    "host-tier-tight": on(settings(max_local_cpu_size=100), memory_available_gb=110),
    "host-tier-above-pinned-limit": on(settings(max_local_cpu_size=300)),
    "host-tier-near-pinned-limit": on(settings(max_local_cpu_size=220)),
    "p2p-buffer-large": on(settings(max_local_cpu_size=72, enable_p2p=True)),
    "memlock-below-host-tier": on(step(ServiceStep, memlock="1G")),
    "memlock-of-login-low": on(memlock=8 * 1024**2),
    "hugepages-hold-memory": on(hugepages_gb=512),
    "disk-tier-exceeds-disk": on(settings(local_disk="/kv", max_local_disk_size=600)),
    "build-memory-short": on(memory_available_gb=1.5, memory_gb=4),
    "index-unreachable": on(urls={default_index(): "timed out"}),
    "index-unreachable-from-control": on(control=WAIT),
    "pin-unavailable": on(control=ControlObservation(unresolved=(("vllm", "no vllm==9", "choose another"),))),
    "source-unavailable": on(control=ControlObservation(sources=(("LMCache-Ascend", "no such ref", "look"),))),
    "hub-unreachable": on(urls={"https://huggingface.co": "timed out"}),
    "model-directory-missing": on(
        step(ModelStep, directory="/models/x", hub=None, revision=None), directories={"/models/x": False}
    ),
    "lmcache-cuda-wheel": on(packages("lmcache", no_binary=[], wheel_tag=None)),
    "lmcache-built-for-cuda": on(packages("lmcache", env={})),
    "engines-in-one-call": on(packages("vllm-ascend", pins=["vllm==0.23.0", "vllm-ascend==0.23.0"])),
    "triton-not-last": on(packages("triton-ascend", force_reinstall=False)),
    "port-taken": on(listeners=TAKEN),
    "port-twice": on(step(ServiceStep, server=MpServer(port=8000))),
    "controller-already-there": on(P2P, listeners=(Listener("*", 9800, "python3", 5),)),
    "service-exposed": on(step(ServiceStep, host="0.0.0.0")),
    "server-exposed": on(step(ServiceStep, server=MpServer(host="10.0.0.5"))),
    "internal-api-exposed": on(settings(internal_api_server_enabled=True)),
    "foreign-unit": on(units=running(text="[Service]\nExecStart=/bin/true\n")),
    "unit-drop-ins": on(units=running(drop_ins=("/etc/systemd/system/x.d/y.conf",))),
    "hash-seed-unset": on(env(PYTHONHASHSEED="random")),
    "hash-seed-of-running-service": on(units=running(hash_seed=None)),
    "host-environment": on(host_env={"LMCACHE_CHUNK_SIZE": "/etc/environment"}),
    "known-bad-combination": on(settings(chunk_sise=256)),
    "lmcache-variable-unknown": on(env(LMCACHE_CHUNK_SISE="1")),
    "lmcache-variable-misspelt": on(env(LM_CACHE_CHUNK_SIZE="1")),
    "chunk-never-filled": on(settings(chunk_size=4096)),
    "chunk-not-of-blocks": on(settings(chunk_size=200)),
    "no-lasting-tier": on(only(local_cpu=True, max_local_cpu_size=2)),
    "no-tier-at-all": on(only(local_cpu=False)),
    "connector-not-for-accelerator": on(connector("LMCacheConnectorV1")),
    "connector-needs-server": on(connector("LMCacheMPConnector", MP)),
    "connector-not-registered": on(
        packages("vllm-ascend", connector("LMCacheAscendConnector"), pins=["vllm-ascend==0.26.0"])
    ),
    "connector-preemption": on(
        packages("vllm-ascend", connector("LMCacheAscendConnector", ASCEND_V1), pins=["vllm-ascend==0.25.1rc1"])
    ),
    "drain-without-store-async": on(packages("lmcache", pins=["lmcache==0.4.3"])),
}

# Nearly the same, and not wrong; beside the good host, which is quiet for all checks.
NEARLY: list[tuple[str, Subject]] = [
    ("sudo-refused", on(unread=(("the host", "the connection failed"),))),
    ("package-lock-held", on(package_lock="123 apt-get upgrade")),
    ("package-manager-missing", on(package_manager=None)),
    ("clock-skew", on(skew_s=29.0)),
    ("not-systemd", on(without(ServiceStep), init="tini")),
    ("login-shell-slow", on(login_s=1.9)),
    ("driver-cannot-register-memory", on(driver=Version("24.1rc1"))),
    ("driver-older-than-cann", on(driver=Version("24.1.0"), toolkit=Version("8.5.0"))),
    ("firmware-out-of-range", ascend(firmware="8.9.9.3")),
    ("cann-several", ascend(toolkits=(CANN, replace(CANN, path="/other")))),
    ("cann-version", ascend(toolkits=(OLD_CANN, CANN))),
    ("toolkit-env-other-cann", on(toolkit_env={"ASCEND_HOME_PATH": "/usr/local/Ascend/cann"})),
    ("ops-of-other-soc", ascend(toolkits=(replace(CANN, ops=("310p", "910b")),))),
    ("platform-file-missing", ascend(toolkits=(replace(CANN, inis=()),), host={"installed": True})),
    ("nnal-other-version", ascend(nnal="9.1.5")),
    ("hixl-patch-missing", on(step(SourceStep, patches=[]), toolkit=Version("9.0.0"))),
    ("hixl-patch-missing", on(step(SourceStep, patches=[], ref="main"))),
    ("hcomm-other-version", on(step(SourceStep, P2P, submodule_refs={"third_party/hcomm": "v9.1.0"}))),
    ("npu-unreadable", smi("device-in-use")),
    ("chip-not-ok", on(accelerators=chips(SICK))),
    ("chips-too-few", smi("device-in-use")),
    ("soc-not-wanted", on(accelerator(experimental=["Ascend310P*"]), soc="Ascend310P3")),
    (
        "soc-experimental-not-allowed",
        on(accelerator(experimental=["Ascend310P*"], allow_experimental=True), soc="Ascend310P3"),
    ),
    (
        "service-without-device-group",
        ascend(step(ServiceStep, groups=[]), nodes=(NodeSeen("/dev/davinci0", "666", "x"),)),
    ),
    ("devices-held", ascend(holders=HELD, host={"own_pids": frozenset({42})})),
    ("device-memory-short", on(accelerators=chips(FULL), units=running())),
    ("device-memory-short", on(env(ASCEND_RT_VISIBLE_DEVICES="1"), accelerators=chips(FULL))),
    (
        "device-memory-held-unseen",
        on(accelerators=replace(chips(FULL), processes=(Process(0, 0, 9, "python3", 56000),))),
    ),
    ("visible-devices-absent", on(env(ASCEND_RT_VISIBLE_DEVICES="6,7"))),
    ("visible-devices-gap", on(env(ASCEND_RT_VISIBLE_DEVICES="4,5"))),
    ("visible-devices-half-set", on(env(ASCEND_VISIBLE_DEVICES="3", ASCEND_RT_VISIBLE_DEVICES="0"))),
    ("ranks-exceed-devices", on(args("-tp", "8"))),
    ("ranks-exceed-devices", on(args("-tp", "4", "-dp", "16", "--data-parallel-size-local", "2"))),
    (
        "python-headers-missing",
        on(step(SystemPackagesStep, apt=["python3.12-dev"]), pythons=(PythonSeen("/p", "3.12", False),)),
    ),
    ("numa-headers-missing", on(headers=())),
    ("cmake-missing", on(commands={"g++": ""})),
    ("compiler-missing", on(commands={}, installed=True)),
    ("build-under-dash", on(step(SourceStep, ref="v0.3.3"), shell="/usr/bin/bash")),
    ("inodes-few", on(spaces=space("prefix", free_inodes=None))),
    ("host-tier-tight", on(settings(max_local_cpu_size=100), memory_available_gb=110, units=running())),
    ("host-tier-near-pinned-limit", on(settings(max_local_cpu_size=300))),
    ("p2p-buffer-large", on(settings(max_local_cpu_size=16, enable_p2p=True))),
    ("memlock-below-host-tier", on(step(ServiceStep, memlock="2G"))),
    ("index-unreachable", on(urls={default_index(): "timed out"}, installed=True)),
    ("index-unreachable", on(urls={default_index(): None})),
    ("hub-unreachable", on(urls={"https://huggingface.co": "timed out"}, models=("model",))),
    ("lmcache-cuda-wheel", on(packages("lmcache", no_binary=[], wheel_tag=None), arch="aarch64")),
    ("port-taken", on(listeners=TAKEN, own_pids=frozenset({77}))),
    ("controller-already-there", on(listeners=(Listener("*", 9800, "python3", 5),))),
    ("service-exposed", on(step(ServiceStep, host="0.0.0.0", secrets=["VLLM_API_KEY"]))),
    ("server-exposed", on(step(ServiceStep, server=MpServer()))),
    ("internal-api-exposed", on(settings(internal_api_server_enabled=True, internal_api_server_host="127.0.0.1"))),
    ("foreign-unit", on(units=running())),
    ("hash-seed-unset", on(env(PYTHONHASHSEED="7"))),
    ("hash-seed-of-running-service", on(env(PYTHONHASHSEED="7"), units=running(hash_seed="7"))),
    ("lmcache-variable-unknown", on(env(LMCACHE_CHUNK_SIZE="256", LMCACHE_LOG_LEVEL="INFO"))),
    ("connector-needs-server", on(step(ServiceStep, connector("LMCacheMPConnector", MP), server=MpServer()))),
    ("connector-not-registered", on(connector("LMCacheAscendConnector"))),
    ("no-lasting-tier", on(settings(local_disk="/kv"))),
    ("python-version", on(pythons=(PythonSeen("/p", "3.12.1+"),))),
    ("drain-without-store-async", on(packages("lmcache", settings(store_async=True), pins=["lmcache==0.4.3"]))),
    ("build-memory-short", on(step(NativeBuildStep, job_memory_gb=1.0), memory_available_gb=1.5)),
]


def fired(subject: Subject) -> set[str]:
    return {item.check for item in findings(subject)}


def test_the_catalogue_has_every_check_and_both_columns_have_every_id() -> None:
    assert set(catalogue()) == {name for name, _ in checks()} == set(FIRES)
    assert {name for name, _ in NEARLY} <= set(FIRES)
    assert len(catalogue()) >= 45


def test_nothing_is_found_on_a_good_host() -> None:
    assert findings(on()) == []


@pytest.mark.parametrize("name", sorted(FIRES))
def test_fires(name: str) -> None:
    assert name in fired(FIRES[name])


@pytest.mark.parametrize(("name", "subject"), NEARLY, ids=[f"{name}-{index}" for index, (name, _) in enumerate(NEARLY)])
def test_keeps_quiet_where_it_only_nearly_holds(name: str, subject: Subject) -> None:
    assert name not in fired(subject)


@pytest.mark.parametrize("name", sorted(FIRES))
@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_name_only_values_that_the_check_gives(name: str, language: str) -> None:
    for item in findings(FIRES[name]):
        assert "{" not in item.message(language).replace("{}", "")
        assert item.remedy(language)


def test_a_password_in_an_index_url_is_not_shown() -> None:
    found = findings(FIRES["index-unreachable-from-control"])
    assert all("word" not in item.message() for item in found)
    assert any("http://index/simple" in item.message() for item in found)


def test_errors_come_first_and_repeats_once() -> None:
    subject = on(soc="Ascend310P3", glibc="2.36", unread=(("a", "b"), ("a", "b")))
    severities = [item.severity for item in findings(subject)]
    assert severities == sorted(severities, key=("error", "warning", "info").index)
    assert [item.check for item in findings(subject)].count("host-unread") == 1


def test_a_host_that_said_nothing_is_only_unread() -> None:
    silent = Subject(playbook(), type(GOOD)(unread=(("the host", "timed out"),)))
    assert fired(silent) == {"host-unread"}


def test_cpu_playbook_asks_nothing_of_an_accelerator() -> None:
    host = replace(GOOD, ascend=None, accelerators=None, soc=None, driver=None, toolkit=None, toolkit_env=None)
    found = fired(Subject(playbook("cpu"), replace(host, packages=("libnuma1",))))
    assert not found


def test_a_builder_without_cards_is_asked_for_none() -> None:
    bare = {
        "driver_state": "not-installed", "driver": None, "firmware": None, "devices_state": "no-devices", "nodes": (),
        "group_exists": False, "user_exists": False,
    }  # fmt: skip
    host = {"accelerators": Accelerators("ascend", "tool-missing", "no npu-smi"), "soc": None, "driver": None}
    assert fired(ascend(without(ServiceStep, accelerator(optional=True)), host, **bare)) == set()
    assert {"npu-tool-missing", "driver-missing"} <= fired(ascend(without(ServiceStep), host, **bare))


def test_units_of_ours_are_known_by_name() -> None:
    assert UNIT in on(units=running()).host.units
    assert Accelerators("ascend", "ok").chip_count == 0
