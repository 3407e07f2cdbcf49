"""Version files, install records, listings and versions of Ascend hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from lmcache_fleet.parsers.ascend_env import (
    PARSERS,
    ascend_version,
    parse_collect_env,
    parse_hccn_conf,
    parse_install_info,
    parse_listing,
    parse_lspci,
    parse_nnal,
    parse_version_cfg,
    parse_version_file,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("9.1.0", "9.1.0"),
        ("24.1.0.3", "24.1.0.3"),
        ("24.1.rc3", "24.1rc3"),
        ("25.0.rc1.1", "25.0rc1.post1"),
        ("8.3.RC1", "8.3rc1"),
        ("8.3.RC1.alpha003", "8.3rc1.dev3"),
        ("8.5.0.alpha001", "8.5.0a1"),
        ("9.0.0-beta.1", "9.0.0b1"),
        ("8.0.T63", "8.0.dev63"),
        ("9.1.0.B150", "9.1.0+b150"),
        ("25.6.rc1.b169", "25.6rc1+b169"),
        ("24.1.", "24.1"),
    ],
)
def test_versions(text: str, version: str) -> None:
    assert ascend_version(text) == Version(version)


@pytest.mark.parametrize("text", [None, "", "xxx.xxx.xxx", "V100R001C19SPC001B137", "8.3.RC", "1" * 400, "8.3 RC1 x"])
def test_no_versions(text: str | None) -> None:
    assert ascend_version(text) is None


def test_versions_sort_as_they_were_released() -> None:
    order = ["8.0.T63", "8.0.RC1.alpha001", "8.0.RC1.alpha003", "8.0.RC1.beta1", "8.0.RC1", "8.0.RC1.1", "8.0.RC2",
             "8.0.0.alpha001", "8.0.0.beta1", "8.0.0", "8.0.1", "8.2.RC1", "9.1.0"]  # fmt: skip
    versions = [ascend_version(text) for text in order]
    final = versions.pop(order.index("8.0.0.alpha001")), versions.pop(order.index("8.0.0.beta1") - 1)
    assert None not in versions
    assert versions == sorted(version for version in versions if version)
    assert final[0] and final[1] and final[0] < final[1] < Version("8.0.0")


NUMBER = st.integers(0, 99)


@settings(max_examples=60, deadline=None)
@given(st.tuples(NUMBER, NUMBER), st.integers(1, 9), st.integers(1, 9), st.integers(1, 999))
def test_every_kind_of_candidate_is_in_order(base: tuple[int, int], rc: int, patch: int, alpha: int) -> None:
    head = f"{base[0]}.{base[1]}"
    texts = [
        f"{head}.RC{rc}.alpha{alpha:03}",
        f"{head}.rc{rc}",
        f"{head}.RC{rc}.{patch}",
        f"{head}.rc{rc + 1}",
        f"{head}.0",
    ]
    versions = [ascend_version(text) for text in texts]
    assert all(versions)
    assert versions == sorted(version for version in versions if version)


def test_driver_and_firmware() -> None:
    driver = parse_version_file(
        "Version=24.1.rc3\r\nInnerversion=V1\ncompatible_version_fw=[7.0.0,7.6.99]\npackage_version=24.1.rc3\n"
    )
    assert (driver.state, driver.version, driver.package) == ("ok", "24.1.rc3", "24.1.rc3")
    assert driver.compatible == (("7.0.0", "7.6.99"),)
    firmware = parse_version_file("Version=7.5.0.1.129\ncompatible_version_drv=[23.0.0,23.0.0.],[24.1,24.1.]\n")
    assert firmware.compatible[1] == ("24.1", "24.1.")
    assert parse_version_file("").state == "empty"
    assert parse_version_file("cat: x: Permission denied").state == "permission-denied"
    assert parse_version_file("Version=\nfoo=1\n").state == "no-version"


def test_toolkit() -> None:
    info = parse_install_info(
        "# made by hand\npackage_name=Ascend-cann-toolkit\nversion=9.1.0\narch=aarch64\npath=/x\n"
    )
    assert (info.state, info.cann, info.arch, info.package, info.path) == (
        "ok", "9.1.0", "aarch64", "Ascend-cann-toolkit", "/x"
    )  # fmt: skip


def test_version_cfg_takes_the_last_and_names_the_odd_one() -> None:
    answer = parse_version_cfg(
        "# version: 1.0\nruntime_running_version=[7.5:8.1.RC1]\ntoolkit_running_version=[7.1:8.0.0][7.5:8.1.RC1]\n"
        "hccl_running_version=[7.1:8.0.0]\n"
    )
    assert (answer["cann"], answer["kernels"], answer["mixed"]) == ("8.1.RC1", False, ["hccl"])


def test_nnal_without_its_first_line() -> None:
    assert parse_nnal("Ascend-cann-atb Version : 8.2.RC1.B055\n")["atb"] == "8.2.RC1"
    assert parse_nnal("nothing here")["state"] == "no-version"


def test_hccn() -> None:
    conf = parse_hccn_conf("address_0=192.0.2.1\nnetmask_0=255.255.255.0\n#address_2=1\naddress_11=192.0.2.9\n")
    assert conf["devices"] == {
        "0": {"address": "192.0.2.1", "netmask": "255.255.255.0"},
        "11": {"address": "192.0.2.9"},
    }
    assert parse_hccn_conf("")["state"] == "empty"


@pytest.mark.parametrize(
    "line",
    [
        "c1:00.0 Processing accelerators: Huawei Technologies Co., Ltd. Device d802 (rev 20)",
        "0000:c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802] (rev 20)",
        "c1:00.0 1200: 19e5:d802 (rev 20)",
    ],
)
def test_lspci_in_its_three_forms(line: str) -> None:
    text = f"00:00.0 Host bridge: Huawei Technologies Co., Ltd. HiSilicon PCIe Root Port\n{line}\n"
    answer = parse_lspci(text)
    assert (answer["state"], answer["npus"], answer["devices"][0]["chip"]) == ("ok", 1, "910B")
    assert parse_lspci(text.splitlines()[0])["state"] == "no-devices"


def test_listing() -> None:
    answer = parse_listing(
        "total 8\nlrwxrwxrwx 1 root root 9 Jan 1 00:00 opp -> ../8.2.RC1/opp\n"
        "-r--r--r-- 1 root root 9 Jan 1 00:00 version.cfg\n"
    )
    assert (answer["links"], answer["entries"], answer["versions"]) == (
        {"opp": "../8.2.RC1/opp"}, ["version.cfg"], ["8.2.RC1"]
    )  # fmt: skip


def test_collect_env_prefers_pip_and_reads_what_is_pasted_in() -> None:
    answer = parse_collect_env(
        "PyTorch version: 2.9.0+cpu\nvLLM Version: 0.23.0\nvLLM Ascend Version: 0.23.0\n"
        "[conda] torch-npu      2.7.1      pypi_0    pypi\n[pip3] torch-npu==2.9.0\n"
        "CANN:\npackage_name=Ascend-cann-toolkit\nversion=9.1.0\n"
    )
    assert (answer["torch"], answer["torch_npu"], answer["vllm"], answer["cann"]) == (
        "2.9.0+cpu",
        "2.9.0",
        "0.23.0",
        "9.1.0",
    )
    assert parse_collect_env("hello")["state"] == "no-libraries"


SHARDS = st.sampled_from(
    ["Version=", "version", "=", "[", "]", ",", ":", "\n", "8.0.RC1", "toolkit_running_version=", "address_0=", "_",
     "l" + "rwx" * 3, " -> ", "..", "c1:00.0 ", "1200: 19e5:d802", "[pip3] ", "a==b", "Ascend-mindie : ", " ", "#", "²"]
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(SHARDS, max_size=40).map("".join)))
def test_no_text_raises(text: str) -> None:
    ascend_version(text)
    for parse in PARSERS.values():
        answer: dict[str, Any] = parse(text)
        json.dumps(answer)
        assert answer["state"]
