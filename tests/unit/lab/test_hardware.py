"""The stand-in hardware without a host: profiles, files, libraries, and what the stand-in npu-smi prints."""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from lab import ascend
from lab.ascend import npu_smi, profile
from lab.ascend.elf import shared_object

RunTool = Callable[..., tuple[int, str, str]]
MakeHost = Callable[[str], tuple[Path, RunTool]]
BASH = ["bash", "--noprofile", "--norc"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeHost:
    """Makes a root of a profile; gives a function that runs the stand-in npu-smi on it."""

    def make(name: str) -> tuple[Path, RunTool]:
        root = tmp_path / name
        (root / "etc").mkdir(parents=True)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nfleet:x:1000:1000::/home/fleet:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nfleet:x:1000:\n")
        ascend.install(root, name)
        devices = root / "dev"
        devices.mkdir()
        (devices / "davinci_manager").touch()
        locks = root / "run"
        locks.mkdir()
        monkeypatch.setattr(npu_smi, "STATE", str(root / "etc/lmcache-fleet-lab/hardware.json"))
        monkeypatch.setattr(npu_smi, "LOCKS", str(locks))
        monkeypatch.setattr(npu_smi, "DEVICES", str(devices))
        library = root / "usr/local/Ascend/driver/lib64/driver/libdrvdsmi_host.so"
        monkeypatch.setattr(npu_smi, "DRIVER_LIBRARY", str(library))

        def run(*words: str) -> tuple[int, str, str]:
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    status = npu_smi.main(list(words))
                except SystemExit as ended:
                    status = int(ended.code or 0)
            return status, out.getvalue(), err.getvalue()

        return root, run

    return make


@pytest.mark.parametrize("name", profile.names())
def test_every_profile_loads_and_every_line_of_its_table_has_one_width(name: str, host: MakeHost) -> None:
    model = profile.load(name)
    _, run = host(name)
    status, out, _ = run("info")
    if model.npu_smi_failure:
        assert status == model.npu_smi_failure.exit_code != 0
        assert "ret is -80" in out
        return
    assert status == 0
    lines = out.splitlines()
    assert len({len(line) for line in lines}) == 1, "a frame with a broken column"
    assert lines[1].split()[1:5] == ["npu-smi", model.tool_version, "Version:", model.tool_version]
    devices = len(model.chips.ids) * model.chips.dies
    assert sum(f"/ {model.chips.memory_mb}" in line for line in lines) == devices
    assert sum("No running processes found in NPU" in line for line in lines) == len(model.chips.ids)


def test_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="910b3x8, 910b3x8-busy, a3x16"):
        profile.load("910c")


@pytest.mark.parametrize(
    ("name", "soc"), [("910b3x8", "Ascend910B3"), ("a3x16", "Ascend910_9382"), ("310p3", "Ascend310P3")]
)
def test_board_query_gives_the_soc_whose_platform_file_is_there(name: str, soc: str, host: MakeHost) -> None:
    root, run = host(name)
    first = profile.load(name).chips.ids[0]
    status, out, _ = run("info", "-t", "board", "-i", str(first), "-c", "0")
    rows = (line.split(":", 1) for line in out.splitlines())
    fields = {name.strip(): value.strip() for name, value in rows}
    chip, npu = fields["Chip Name"], fields.get("NPU Name")
    derived = f"{chip}_{npu}" if npu else chip if chip.startswith("Ascend") else f"Ascend{chip}"
    assert (status, derived) == (0, soc)
    arch = platform.machine()
    file = root / f"usr/local/Ascend/cann/{arch}-linux/data/platform_config/{soc}.ini"
    assert "AIC_version=AIC-" in file.resolve().read_text()


def test_other_queries_and_refusals(host: MakeHost) -> None:
    root, run = host("910b3-alarm")
    assert "Health Status                  : Alarm" in run("info", "-t", "health", "-i", "3")[1]
    assert "HBM Capacity(MB)               : 65536" in run("info", "-t", "usages", "-i", "0")[1]
    assert "Total Count                    : 8" in run("info", "-l")[1]
    assert len(run("info", "-m")[1].splitlines()) == 9
    assert run("info", "-t", "topo")[1].count("HCCS") == 8 * 7 + 2  # the legend names it twice
    for kind in ("memory", "common", "power", "board"):
        assert run("info", "-t", kind, "-i", "7")[0] == 0
    assert run("-v")[1] == "npu-smi version: 25.5.1\n"
    assert run("info", "-t", "board", "-i", "8")[0] == 1
    assert run("info", "--nonsense")[0] == 1
    (root / "dev/davinci_manager").unlink()
    status, out, _ = run("info")
    assert status != 0
    assert out.endswith("dcmi module initialize failed. ret is -8005\n")
    (root / "usr/local/Ascend/driver/lib64/driver/libdrvdsmi_host.so").unlink()
    status, _, err = run("info")
    assert status == 127
    assert "libdrvdsmi_host.so: cannot open shared object file" in err


def test_a_locked_device_has_a_process_row_and_uses_memory(host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    root, run = host("910b3x8")
    if not os.access("/proc/locks", os.R_OK):
        pytest.skip("no /proc/locks")
    lock = root / "run/npu2.lock"
    lock.touch()
    program = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.lockf(fd, fcntl.LOCK_SH, 20000, 0);"
        "print('held', flush=True); sys.stdin.read()"
    )
    python = sys.executable
    with subprocess.Popen(
        [python, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        out = run("info")[1]
        if str(holder.pid) not in out:
            holder.kill()
            pytest.skip("this file system shows other inode numbers in /proc/locks")
        row = next(line for line in out.splitlines() if f" {holder.pid} " in line)
        assert row.split("|")[1].split() == ["2", "0"]
        assert row.split("|")[4].split() == ["20000"]
        assert "23403/ 65536" in out
        holder.kill()
    assert "23403/ 65536" not in run("info")[1]


def test_install_again_changes_nothing_and_takes_a_free_id(host: MakeHost) -> None:
    root, _ = host("910b3x8-busy")

    def state() -> dict[str, bytes]:
        files = {}
        for path in root.rglob("*"):
            if path.is_symlink():
                files[str(path)] = str(path.readlink()).encode()
            elif path.is_file():
                files[str(path)] = path.read_bytes()
        return files

    before = state()
    ascend.install(root, "910b3x8-busy")
    assert state() == before
    assert "HwHiAiUser:x:1001:1001:" in (root / "etc/passwd").read_text()
    assert json.loads((root / "etc/lmcache-fleet-lab/hardware.json").read_text())["profile"] == "910b3x8-busy"
    assert (root / "etc/systemd/system/multi-user.target.wants/lab-npu-holder@0.service").is_symlink()
    ascend.install(root, "910b3x8")
    assert not (root / "etc/systemd/system/multi-user.target.wants/lab-npu-holder@0.service").is_symlink()


def test_environment_scripts_behave_as_the_vendors(host: MakeHost, tmp_path: Path) -> None:
    root, _ = host("910b3x8")
    cann = root / "usr/local/Ascend/cann/set_env.sh"
    atb = root / "usr/local/Ascend/nnal/atb/set_env.sh"
    older = root / "usr/local/Ascend/nnal/atb/latest/atb/set_env.sh"

    def sh(command: str, *shell: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run([*(shell or BASH), "-c", command], env=env, capture_output=True, text=True, check=False)

    assert sh(f". {cann} 2>/dev/null; echo $ASCEND_HOME_PATH", "sh").stdout == "/usr/local/Ascend/cann-9.1.0\n"
    assert "unbound variable" in sh(f"set -u; . {cann}; echo reached").stderr
    assert sh(f"set -euo pipefail; . {cann}; echo reached").stdout == "", "it greps a file that isn't there"
    for script in (atb, older):
        done = sh(f"source {script} --cxx_abi=0; echo $ATB_HOME_PATH; echo $LD_LIBRARY_PATH")
        home, path = done.stdout.splitlines()
        assert home.endswith("/cxx_abi_0")
        ctypes.CDLL(str(Path(path.split(":")[0]) / "libatb.so")).AtbAbi0()
    # with no argument it asks python3 for torch; without torch the answer is 1
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "python3").write_text("#!/bin/sh\nexit 1\n")
    (fake / "python3").chmod(0o755)
    assert sh(f"PATH={fake}:$PATH; source {atb}; echo $ATB_HOME_PATH").stdout.endswith("cxx_abi_1\n")
    (fake / "python3").write_text("#!/bin/sh\necho 0\n")
    assert sh(f"PATH={fake}:$PATH; source {atb}; echo $ATB_HOME_PATH").stdout.endswith("cxx_abi_0\n")


def test_libraries_are_real_and_want_what_they_say(tmp_path: Path) -> None:
    arch = platform.machine()
    path = tmp_path / "liblab.so"
    path.write_bytes(shared_object(arch, "liblab.so", ["first", "second"]))
    library = ctypes.CDLL(str(path))
    assert (library.first(), library.second()) == (0, 0)
    with pytest.raises(AttributeError, match="undefined symbol: third"):
        _ = library.third
    path = tmp_path / "libneeds.so"
    path.write_bytes(shared_object(arch, "libneeds.so", [], ["libcudart.so.12"]))
    with pytest.raises(OSError, match=r"libcudart.so.12: cannot open shared object file"):
        ctypes.CDLL(str(path))


def test_two_toolkits_lie_side_by_side(host: MakeHost) -> None:
    root, _ = host("910b3-twocann")
    ascend_root = root / "usr/local/Ascend"
    arch = f"{platform.machine()}-linux"
    versions = {}
    for tree in ascend_root.glob("cann-*"):
        info = (tree / arch / "ascend_toolkit_install.info").read_text()
        versions[tree.name] = dict(line.split("=", 1) for line in info.splitlines())["version"]
    assert versions == {"cann-8.5.0": "8.5.0", "cann-9.1.0": "9.1.0"}
    assert (ascend_root / "ascend-toolkit/latest").resolve().name == "cann-8.5.0"
    # only from 9.1 on does the header need the directory above
    assert (ascend_root / "cann-9.1.0" / arch / "pkg_inc/runtime/rt_external_device.h").exists()
    assert (ascend_root / "cann-8.5.0" / arch / "include/experiment/runtime/rt_external_device.h").exists()
