"""The Ascend facts against stand-in tools and trees, run by a plain POSIX shell as a survey runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import ascend, npu_smi
from lmcache_fleet import survey

SHELL = shutil.which("dash") or "/bin/sh"
Run = Callable[..., Any]

TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.1                   Version: 25.2.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 5     910B3               | OK            | 91.0        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 12          0    / 0          61000/ 65536         |
+===========================+===============+====================================================+
"""
TOOL = f"""\
#!/bin/sh
case "$*" in
  info) cat <<'END'
{TABLE}END
  ;;
  "info -l")
    printf '\\tTotal Count : 2\\n\\n\\tNPU ID : 5\\n\\tChip Count : 1\\n'
    printf '\\n\\tNPU ID : 32768\\n\\tChip Count : 1\\n';;
  "info -m") printf 'NPU ID  Chip ID  Chip Logic ID  Chip Name\\n5 0 0 Ascend 910B3\\n32768 0 1 Ascend 910B3\\n';;
  "info -t topo") printf 'NPU0 NPU1 CPU Affinity\\nNPU0 X HCCS 0-7\\nNPU1 HCCS X 8-15\\n';;
  "info -t board -i "*" -c 0") printf 'NPU ID : %s\\nChip ID : 0\\nChip Name : 910B3\\n' "$5";;
  "info -t board -i "*) printf 'NPU ID : %s\\nSoftware Version : 25.2.1\\n' "$5";;
  "info -t health -i 5") printf 'Health Status : OK\\nError Code : NA\\n';;
  "info -t health -i "*) printf 'Health Status : Alarm\\nError Code : 80E3A203\\n';;
  "info -t usages -i "*) echo 'Error parameter of -i'; exit 1;;
  "info -t proc-mem -i 5")
    printf 'NPU ID : 5\\nProcess id:77 Process name:a-long-name Process memory(MB):9\\nChip ID : 0\\n';;
  "info -t proc-mem -i "*) printf 'NPU ID : 32768\\nNo process in device.\\nChip ID : 0\\n';;
  *) echo 'Error parameter'; exit 1;;
esac
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a fact in a host whose files are below tmp_path, inside a survey with a neighbour on each side."""
    (tmp_path / "bin").mkdir()

    def go(fact: Any, **arguments: Any) -> Any:
        command = str(fact.command(**arguments))
        for name in ("/usr/local/Ascend", "/etc/ascend_install.info", "/etc/hccn.conf", "/etc/security", "/dev/davinci",
                     "/dev/devmm_svm", "/dev/hisi_hdc"):  # fmt: skip
            command = command.replace(name, f"{tmp_path}{name}").replace("\\/", "\\/")
        script = survey.compose(["echo before", command, 'echo "after $PWD $-"'])
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
        done = subprocess.run([SHELL, "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)
        parts = survey.split(done.stdout.splitlines())
        assert parts[0].lines == ("before",)
        assert parts[2].lines[0].startswith(f"after {tmp_path}")
        assert parts[1].exit_code == 0
        assert done.stderr == ""
        return fact.process(list(parts[1].lines))

    return go


def tool(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bin/npu-smi"
    path.write_text(text)
    path.chmod(0o755)


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# npu-smi


def test_a_working_tool(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, TOOL)
    info = run(npu_smi.NpuSmiInfo())
    assert (info.state, info.npu_count, info.chips[0].npu_id) == ("ok", 1, 5)
    assert run(npu_smi.NpuSmiList()).npu_ids == (5, 32768)
    assert [die.logic_id for die in run(npu_smi.NpuSmiMapping()).dies] == [0, 1]
    assert run(npu_smi.NpuSmiTopo()).links["0"]["1"] == "HCCS"
    processes = run(npu_smi.NpuSmiProcMem())
    assert (processes.state, [process.name for process in processes.processes]) == ("ok", ["a-long-name"])


def test_boards_ask_the_chip_only_where_the_card_does_not_name_it(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, TOOL)
    boards = run(npu_smi.NpuSmiBoard())
    assert (boards.state, boards.soc, list(boards.boards)) == ("ok", "Ascend910B3", [5])
    assert list(run(npu_smi.NpuSmiBoard(), all_cards=True).boards) == [5, 32768]
    newer = TOOL.replace("Software Version : 25.2.1", "NPU Name : 9579\\nChip Name : Ascend950PR").replace(
        '"info -t board -i "*" -c 0") printf',
        '"info -t board -i "*" -c 0") echo "Error parameter of -c"; exit 1; printf',
    )
    tool(tmp_path, newer)
    assert run(npu_smi.NpuSmiBoard(), npu=5).soc == "Ascend950PR_9579"


def test_each_card_is_asked_by_its_own_number(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, TOOL)
    health = run(npu_smi.NpuSmiHealth())
    assert health.state == "ok"
    assert {npu: card.health for npu, card in health.cards.items()} == {5: "OK", 32768: "Alarm"}
    assert list(run(npu_smi.NpuSmiHealth(), npu=5).cards) == [5]
    usages = run(npu_smi.NpuSmiUsages())
    assert (usages.state, usages.message) == ("usage-error", "NPU 5: Error parameter of -i")


NPU_FACTS = [
    npu_smi.NpuSmiInfo, npu_smi.NpuSmiList, npu_smi.NpuSmiMapping, npu_smi.NpuSmiTopo, npu_smi.NpuSmiBoard,
    npu_smi.NpuSmiHealth, npu_smi.NpuSmiUsages, npu_smi.NpuSmiMemory, npu_smi.NpuSmiCommon, npu_smi.NpuSmiPower,
    npu_smi.NpuSmiEcc, npu_smi.NpuSmiProcMem,
]  # fmt: skip


@pytest.mark.parametrize("fact", NPU_FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize(
    ("script", "state"),
    [
        (None, "tool-missing"),
        ("echo 'dcmi module initialize failed. ret is -8005'; exit 187", "dcmi-init-failed"),
        ("echo 'dcmi model initialized failed, because the device is used. ret is -8020'; exit 236", "device-in-use"),
        ("exit 0", "empty"),
        ("exit 3", "tool-failed"),
        ("cat; echo nonsense", "unrecognized"),
        (
            "echo 'npu-smi: error while loading shared libraries: libc_sec.so: cannot open' >&2; exit 127",
            "library-missing",
        ),
    ],
)
def test_a_failing_tool_is_never_an_empty_host(
    run: Run, tmp_path: Path, fact: Any, script: str | None, state: str
) -> None:
    if script:
        tool(tmp_path, f"#!/bin/sh\n{script}\n")
    assert run(fact()).state == state


def test_a_table_with_a_failing_exit_status_is_not_ok(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, TOOL + "exit 2\n")
    answer = run(npu_smi.NpuSmiInfo())
    assert (answer.state, answer.chip_count) == ("tool-failed", 1)


def test_the_drivers_libraries_are_found_and_noted(run: Run, tmp_path: Path) -> None:
    lacking = "echo 'npu-smi: error while loading shared libraries: libc_sec.so: cannot open' >&2; exit 127"
    guard = f'case "$LD_LIBRARY_PATH" in */driver/lib64/common:*) ;; *) {lacking};; esac'
    tool(tmp_path, TOOL.replace("#!/bin/sh\n", f"#!/bin/sh\n{guard}\n"))
    answer = run(npu_smi.NpuSmiInfo())
    assert (answer.state, answer.extra["needs_library_path"]) == ("ok", True)


def test_a_hanging_tool(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "#!/bin/sh\nexec sleep 30\n")
    fact = npu_smi.NpuSmiInfo()
    command = fact.command().replace("timeout 20", "timeout 1")

    class Short(npu_smi.NpuSmiInfo):
        def command(self) -> str:
            return command

    assert run(Short()).state == "timed-out"


# Installed software


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two toolkits of the newer layout, one of the older, driver, firmware and NNAL."""
    base = tmp_path / "usr/local/Ascend"
    for version in ("9.0.0", "9.1.0"):
        home = base / f"cann-{version}"
        info = f"package_name=Ascend-cann-toolkit\nversion={version}\narch=aarch64\npath=/x\n"
        write(home / "aarch64-linux/ascend_toolkit_install.info", info)
        write(home / "set_env.sh")
        write(home / "aarch64-linux/data/platform_config/Ascend910B3.ini")
    newest = base / "cann-9.1.0"
    write(newest / "aarch64-linux/ascend_ops_install.info", "package_name=Ascend-cann-910b-ops\nversion=9.1.0\n")
    write(newest / "opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/x.o")
    (base / "cann").symlink_to("cann-9.1.0")
    old = base / "ascend-toolkit/8.2.RC1"
    write(old / "aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.2.RC1\n")
    write(base / "ascend-toolkit/set_env.sh")
    (base / "ascend-toolkit/latest").symlink_to("../cann")
    write(base / "driver/version.info", "Version=25.5.1\ncompatible_version_fw=[7.0.0,8.9.9]\n")
    write(base / "firmware/version.info", "Version=7.8.0.6.201\npackage_version=25.5.1\n")
    write(base / "nnal/atb/9.1.0/version.info", "Ascend-cann-atb : 9.1.0\n")
    write(base / "nnal/atb/9.1.0/atb/cxx_abi_1/lib/libatb.so")
    write(base / "nnal/atb/set_env.sh")
    (base / "nnal/atb/latest").symlink_to("9.1.0")
    return base


def test_driver_and_firmware(run: Run, root: Path, tmp_path: Path) -> None:
    driver = run(ascend.Driver())
    # The machine that runs this has no Ascend module.
    assert (driver.state, driver.version, driver.has_devices) == ("not-loaded", "25.5.1", False)
    assert driver.info.compatible == (("7.0.0", "8.9.9"),)
    write(tmp_path / "dev/davinci_manager")
    assert run(ascend.Driver()).state == "ok"
    firmware = run(ascend.Firmware())
    assert (firmware.state, firmware.version, firmware.package) == ("ok", "7.8.0.6.201", "25.5.1")


def test_the_driver_is_where_the_install_record_says(run: Run, root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "opt/it's here"
    write(elsewhere / "driver/version.info", "Version=24.1.rc3\n")
    write(tmp_path / "etc/ascend_install.info", f"UserName=x\nDriver_Install_Path_Param={elsewhere}\n")
    driver = run(ascend.Driver())
    assert (driver.version, driver.root, driver.install["user"]) == ("24.1.rc3", str(elsewhere), "x")


def test_nothing_is_installed(run: Run) -> None:
    for fact in (ascend.Driver, ascend.Firmware, ascend.CannToolkits, ascend.Nnal, ascend.HccnConf):
        assert run(fact()).state == "not-installed", fact.__name__


def resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ascend, "ROOT", f"{tmp_path}{ascend.ROOT}")


def test_toolkits(run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ascend.CannToolkits().command()
    resolved(monkeypatch, tmp_path)
    monkeypatch.setattr(ascend.CannToolkits, "command", lambda self, home=None: command)
    found = run(ascend.CannToolkits())
    assert (found.state, found.default.version, found.default.path) == ("ok", "9.1.0", str(root / "cann-9.1.0"))
    assert [toolkit.version for toolkit in found.toolkits] == ["8.2.RC1", "9.0.0", "9.1.0"]
    assert found.default.ops == (ascend.OpsPackage("Ascend-cann-910b-ops", "9.1.0", "910b"),)
    assert (found.default.kernels, found.default.platform_inis) == (("ascend910b",), ("Ascend910B3",))
    assert set(found.default.names) == {str(root / "cann"), str(root / "ascend-toolkit/latest")}
    assert found.default.set_env == str(root / "cann-9.1.0/set_env.sh")
    assert found.toolkits[0].set_env == str(root / "ascend-toolkit/8.2.RC1/../set_env.sh")
    assert found.toolkits[1].ops == ()
    (root / "cann").unlink()
    (root / "ascend-toolkit/latest").unlink()
    assert run(ascend.CannToolkits()).state == "ambiguous"


def test_the_toolkit_of_the_service_counts(run: Run, root: Path, tmp_path: Path) -> None:
    assert run(ascend.CannToolkits(), home="/usr/local/Ascend/cann-9.0.0").default.version == "9.0.0"
    private = tmp_path / "home/it's mine"
    write(private / "x86_64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\n")
    found = run(ascend.CannToolkits(), home=str(private))
    assert (found.state, found.default.version) == ("ok", "8.3.RC1")
    assert run(ascend.CannToolkits(), home=str(tmp_path / "gone")).state == "home-missing"


def test_nnal(run: Run, root: Path) -> None:
    found = run(ascend.Nnal())
    assert (found.state, found.version, found.abis) == ("ok", "9.1.0", ("1",))
    assert found.set_env == (str(root / "nnal/atb/set_env.sh"),)
    (root / "nnal/atb/9.1.0/version.info").unlink()
    (root / "nnal/atb/latest").unlink()
    found = run(ascend.Nnal())
    assert (found.state, found.version) == ("ok", "9.1.0")


# The host


def test_devices_and_their_holders(run: Run, tmp_path: Path) -> None:
    for name in ("davinci0", "davinci_manager"):
        write(tmp_path / f"dev/{name}")
    found = run(ascend.AscendDevices())
    # Plain files are no devices, whatever their names.
    assert (found.state, [node.is_device for node in found.nodes]) == ("no-devices", [False, False])
    assert found.nodes[0].mode.isdigit()
    assert found.group_members is None or isinstance(found.group_members, tuple)


def test_holders_are_found_without_fuser(tmp_path: Path) -> None:
    device = tmp_path / "davinci7"
    device.write_text("")
    command = (
        ascend.AscendDevices().command().replace("\\/dev\\/davinci", str(tmp_path / "davinci").replace("/", "\\/"))
    )
    with device.open() as handle, subprocess.Popen(["sleep", "30"], stdin=handle) as holder:
        try:
            done = subprocess.run([SHELL, "-c", command], capture_output=True, text=True, timeout=60)
        finally:
            holder.kill()
    holders = ascend.AscendDevices().process(done.stdout.splitlines()).holders
    assert (str(device), holder.pid, "sleep", os.getuid()) in [
        (item.device, item.pid, item.name, item.uid) for item in holders
    ]


def test_a_container_is_named_by_its_control_group() -> None:
    name = "0123456789abcdef" * 4
    output = [
        "@@section nodes", "/dev/davinci0\t660\tHwHiAiUser\tHwHiAiUser\tcharacter special file", "@@status 0",
        "@@section group", "HwHiAiUser:x:1000:svc,ops", "@@status 0", "@@section holders",
        f"/dev/davinci0\t42\t0\t0::/system.slice/docker-{name}.scope \tpython3", "@@status 0",
    ]  # fmt: skip
    found = ascend.AscendDevices().process(output)
    assert (found.state, found.message) == ("missing-devices", "/dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc")
    assert found.group_members == ("svc", "ops")
    assert (found.holders[0].container, found.holders[0].name) == (name, "python3")


def test_hccn_memlock_and_login(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "etc/hccn.conf", "address_0=192.0.2.1\nnetmask_0=255.255.255.0\n")
    assert run(ascend.HccnConf()).devices["0"]["address"] == "192.0.2.1"
    write(tmp_path / "etc/security/limits.conf", "# * soft memlock 1\n*  hard  memlock unlimited\n")
    limits = run(ascend.Memlock())
    assert (limits.state, limits.configured) == ("ok", ("* hard memlock unlimited",))
    login = run(ascend.LoginShellCost())
    assert login.seconds is not None
    assert login.state in {"ok", "failed"}


ALL = [*NPU_FACTS, ascend.Driver, ascend.Firmware, ascend.CannToolkits, ascend.Nnal, ascend.AscendDevices,
       ascend.HccnConf, ascend.Memlock, ascend.LoginShellCost]  # fmt: skip
LINES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["@@section info", "@@section list", "@@section card 5", "@@section card x", "@@section chip 5",
         "@@section name /x",
         "@@section home /x", "@@section info /x/y", "@@section version", "@@section nodes", "@@section holders",
         "@@section limits", "@@section login", "@@section seconds", "@@section done", "@@status 0", "@@status 1",
         "@@status " + "9" * 30, "@@section group", "a\tb\tc\td\te", "NPU ID : 0", "Version=1", "unlimited 5 bytes"]
    ),
)  # fmt: skip


@pytest.mark.parametrize("fact", ALL, ids=lambda fact: fact.__name__)
def test_no_answer_raises_and_every_answer_has_a_state(fact: Any) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(LINES, max_size=12))
    def check(lines: list[str]) -> None:
        answer = fact().process(lines)
        assert is_dataclass(answer)
        assert "state" in {item.name for item in fields(answer)}
        assert getattr(answer, "state", "")

    check()
    assert fact().process([]).state in {"no-answer"}
    assert fact().default().state == "no-answer"
    assert fact().process([]).to_json()


@pytest.mark.parametrize("fact", ALL, ids=lambda fact: fact.__name__)
def test_commands_are_posix_and_leave_nothing_behind(fact: Any, tmp_path: Path) -> None:
    script = f"set -u; cd /; before=$(set | grep -v ^_); {fact().command()}\necho END $PWD"
    (tmp_path / "check.sh").write_text(fact().command())
    assert subprocess.run([SHELL, "-n", str(tmp_path / "check.sh")], capture_output=True).returncode == 0
    done = subprocess.run([SHELL, "-c", script], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.stdout.splitlines()[-1] == "END /"
