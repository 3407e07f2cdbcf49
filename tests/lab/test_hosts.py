"""The lab's own promises: hosts boot, break, come back and go, and nothing else on the machine is touched."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab import base, faults, services
from lab.__main__ import main
from lab.hosts import Lab
from lab.shell import LabError, is_same, started_at
from lab.state import Host, Paths, State, load, save
from lmcache_fleet.cli_lab import lab as hand_over
from tests.lab.conftest import REPO, RunningLab, own_lab

# --- without a host -------------------------------------------------------------------------------------------------


def test_apt_sources_are_read_in_both_forms_and_third_parties_stay_out(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# a comment\ndeb [arch=amd64 signed-by=/k.gpg] http://mirror/debian stable main contrib # why\n"
        "deb-src http://mirror/debian stable main\ndeb file:/media stable main\ndeb http://other nodistro main\n"
    )
    (tmp_path / "sources.list.d/a.sources").write_text(
        "Types: deb deb-src\nURIs: http://mirror/debian\nSuites: stable-updates\n stable-backports\n"
        "Components: main\nSigned-By:\n -----BEGIN PGP\n\nTypes: deb\nURIs: http://off\nSuites: stable\n"
        "Components: main\nEnabled: no\n"
    )
    (tmp_path / "sources.list.d/b.sources.disabled").write_text("Types: deb\nURIs: http://x\nSuites: stable\n")
    assert base.apt_sources("stable", tmp_path) == [
        base.Source("http://mirror/debian", "stable", ("main", "contrib"), "/k.gpg"),
        base.Source("http://mirror/debian", "stable-updates", ("main",)),
        base.Source("http://mirror/debian", "stable-backports", ("main",)),
    ]
    with pytest.raises(LabError, match="no apt source for other"):
        base.apt_sources("other", tmp_path)


def test_state_survives_a_round_trip_and_a_stranger_in_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "x")
    save(paths, State(bridge="b", hosts=[Host("h1", "192.0.2.1", disk_gb=2)]))
    raw = json.loads(paths.state.read_text())
    raw["later"] = raw["hosts"][0]["later"] = 1
    paths.state.write_text(json.dumps(raw))
    assert load(paths).find("h1") == Host("h1", "192.0.2.1", disk_gb=2)
    with pytest.raises(LabError, match="there are: h1"):
        load(paths).find("h2")
    paths.state.write_text("{")
    with pytest.raises(LabError, match="not a lab's state"):
        load(paths)


def test_a_pid_is_only_ours_while_it_is_the_same_process() -> None:
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        born = started_at(sleeper.pid)
        assert is_same(sleeper.pid, born)
        assert not is_same(sleeper.pid, born - 1)
        sleeper.kill()
        time.sleep(0.05)
        assert not is_same(sleeper.pid, born), "a zombie is not running"


def test_without_a_lab_the_inventory_says_what_to_do(tmp_path: Path) -> None:
    env = {**os.environ, "LMCACHE_FLEET_LAB": str(tmp_path), "LMCACHE_FLEET_LAB_NAME": ""}
    argv = [str(Path(sys.executable).parent / "pyinfra"), "inventories/lab.py", "exec", "--", "true"]
    answer = subprocess.run(argv, cwd=REPO, env=env, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "the lab is not up: `lmcache-fleet lab up" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_the_machine_lacks_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base.requirements() == ([], "") or os.geteuid() != 0
    monkeypatch.setitem(base.PROGRAMS, "no-such-program", "no-such-package")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    answer = CliRunner().invoke(main, ["up"])
    assert answer.exit_code == 2
    assert "apt-get install -y --no-install-recommends no-such-package" in answer.output.replace("\n", " ")


def test_the_product_hands_over_to_the_lab_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**os.environ, "LMCACHE_FLEET_LAB": str(tmp_path), "PYTHONPATH": str(REPO)}
    argv = [sys.executable, "-c", "from lmcache_fleet.cli_lab import lab; lab()", "status", "--json"]
    answer = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert json.loads(answer.stdout)["hosts"] == []
    monkeypatch.setattr("lmcache_fleet.cli_lab.repository", lambda: None)
    assert "inside a clone" in CliRunner().invoke(hand_over, ["status"]).output


# --- on hosts -------------------------------------------------------------------------------------------------------


def test_hosts_are_whole_machines_of_their_own(lab: RunningLab) -> None:
    ids, keys = set(), set()
    for name in lab.names:
        # Its services are still starting when sshd already answers.
        assert lab.out(name, "systemctl is-system-running --wait") == "running"
        assert lab.out(name, "hostname") == name
        assert lab.out(name, "sudo -n id -u") == "0"
        ids.add(lab.out(name, "cat /etc/machine-id"))
        keys.add(lab.out(name, "cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub"))
    assert len(ids) == len(keys) == len(lab.names)
    assert lab.out("h1", "getent hosts h2").split()[0] == lab.host("h2").address
    lab.ssh("h1", "timeout 5 bash -c 'exec 3<>/dev/tcp/h2/22 && head -c 4 <&3' | grep SSH-")


def test_a_service_of_one_host_is_not_the_other_hosts(lab: RunningLab) -> None:
    # A process of somebody else in a host's cgroups has no number there: the kernel shows 0.
    strangers = "find /sys/fs/cgroup -name cgroup.procs -exec cat {} + | grep -cx 0 || true"
    assert {lab.out(name, strangers) for name in lab.names} == {"0"}
    before = lab.out("h2", "systemctl show -p MainPID ssh console-getty systemd-logind")
    lab.ssh("h1", "sudo systemctl restart ssh systemd-logind console-getty")
    assert lab.out("h2", "systemctl show -p MainPID ssh console-getty systemd-logind") == before


def test_operator_needs_the_right_password(lab: RunningLab) -> None:
    password = lab.lab.reload().operator_password
    assert lab.ssh("h1", "sudo -n id", user="operator", check=False).returncode != 0
    assert lab.ssh("h1", "echo wrong | sudo -S -p '' id", user="operator", check=False).returncode != 0
    assert lab.out("h1", f"echo {password} | sudo -S -p '' id -u", user="operator") == "0"


def test_up_again_changes_nothing(lab: RunningLab) -> None:
    before = {name: lab.host(name) for name in lab.names}
    lab.cli("up", "--hosts", "4", "--profile", before["h1"].profile)
    assert {name: lab.host(name) for name in lab.names} == before
    answer = lab.cli("up", "--host", "h1=cpu", check=False)
    assert answer.returncode == 1
    assert "reimage h1 --profile cpu" in answer.stderr
    answer = lab.cli("up", "--host", "h9=no-such", check=False)
    assert answer.returncode == 1
    assert "no hardware profile 'no-such'; there are: cpu, none" in answer.stderr
    assert "h9" not in lab.names


def test_a_hardened_unit_starts(lab: RunningLab) -> None:
    wanted = [
        *("NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "DynamicUser=no"),
        *("LimitMEMLOCK=infinity", "LimitNOFILE=1048576", "OOMScoreAdjust=-500", "MemoryMax=1G", "User=fleet"),
        *("StateDirectory=probe", "ReadWritePaths=/srv", "CapabilityBoundingSet=", "PrivateDevices=no"),
        *("ProtectKernelTunables=yes", "ProtectControlGroups=yes", "RestrictNamespaces=yes"),
        "SystemCallFilter=@system-service",
    ]
    options = " ".join(f"-p {option}" for option in wanted)
    probe = "touch /var/lib/probe/x && ! touch /etc/x 2>/dev/null && echo fine"
    assert lab.out("h1", f"sudo systemd-run --quiet --wait --pipe {options} -- sh -c '{probe}'") == "fine"
    lab.ssh("h1", "sudo systemd-run --quiet --scope -p MemoryMax=1G -- true")


def test_pyinfra_reaches_all_hosts_and_refuses_a_changed_key(lab: RunningLab) -> None:
    before = lab.host("h2")
    machine, key = lab.out("h2", "cat /etc/machine-id"), lab.out("h2", "cat /etc/ssh/ssh_host_ed25519_key.pub")
    lab.ssh("h2", "sudo touch /etc/was-here")
    lab.reimage("h2", adopt=False)
    assert lab.host("h2").pid != before.pid
    assert lab.out("h2", "cat /etc/machine-id") != machine
    assert lab.out("h2", "cat /etc/ssh/ssh_host_ed25519_key.pub") != key
    lab.ssh("h2", "test ! -e /etc/was-here")
    refused = lab.pyinfra("exec", "--", "id -u", check=False)
    assert refused.returncode == 1
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    lab.reimage("h2", adopt=True)
    assert lab.pyinfra("exec", "--", "id -u").stderr.count("] 0\n") == 4


def test_power_cut_kills_at_once_and_keeps_the_disk(lab: RunningLab) -> None:
    lab.ssh("h3", "echo kept > kept; sync; trap '' TERM; (sleep 600 &) >/dev/null 2>&1")
    boot = lab.out("h3", "cat /proc/sys/kernel/random/boot_id")
    pid = lab.host("h3").pid
    begin = time.monotonic()
    lab.lab.power_cut(["h3"])
    assert time.monotonic() - begin < 5
    assert not lab.host("h3").running
    assert not Path(f"/proc/{pid}").exists() or not started_at(pid)
    assert lab.cli("status", check=False).returncode == 3
    with pytest.raises(OSError, match=r".*"), socket.create_connection((lab.host("h3").address, 22), timeout=0.3):
        pass
    lab.lab.power_on(["h3"])
    assert lab.out("h3", "cat kept") == "kept"
    assert lab.out("h3", "cat /proc/sys/kernel/random/boot_id") != boot
    assert lab.cli("status").returncode == 0


def test_a_host_reboots_and_powers_off_by_itself(lab: RunningLab) -> None:
    boot, pid = lab.out("h4", "cat /proc/sys/kernel/random/boot_id"), lab.host("h4").pid
    lab.ssh("h4", "sudo systemctl reboot", check=False)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        answer = lab.ssh("h4", "cat /proc/sys/kernel/random/boot_id", check=False)
        if answer.returncode == 0 and answer.stdout.strip() != boot:
            break
        time.sleep(0.2)
    else:
        pytest.fail("h4 did not come back")
    assert lab.host("h4").pid == pid, "the supervisor stays"
    lab.ssh("h4", "sudo systemctl poweroff", check=False)
    while lab.host("h4").running and time.monotonic() < until + 20:
        time.sleep(0.1)
    assert not lab.host("h4").running
    lab.cli("up", "--hosts", "4", "--profile", lab.host("h4").profile)
    assert lab.host("h4").running


@pytest.mark.parametrize("after", [0.5, 0.9])
def test_a_killed_command_is_made_good_by_the_next(lab: RunningLab, after: float) -> None:
    argv = [sys.executable, "-m", "lab", "reimage", "h4", "--adopt"]
    with subprocess.Popen(argv, cwd=REPO, env=lab.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        time.sleep(after)
        run.send_signal(signal.SIGKILL)
    lab.cli("up", "--hosts", "4", "--profile", lab.host("h1").profile)
    assert lab.out("h4", "hostname") == "h4"
    roots = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{lab.lab.root('h4')} " in line]
    assert len(roots) == 1
    key = lab.out("h4", "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub")
    assert f"{lab.host('h4').address},h4 {key}\n" in lab.lab.paths.known_hosts.read_text()


def test_what_a_host_downloaded_is_there_after_a_reimage(lab: RunningLab) -> None:
    lab.ssh("h2", "sudo apt-get -qq install -y libnuma-dev >/dev/null")
    lab.reimage("h2")
    lab.ssh("h2", "sudo apt-get -qq install -y --no-download libnuma-dev >/dev/null && test -e /usr/include/numa.h")


# --- faults ---------------------------------------------------------------------------------------------------------


def test_the_internet_can_be_cut_and_tries_are_counted(lab: RunningLab) -> None:
    outside = "timeout 2 bash -c 'exec 3<>/dev/tcp/192.0.2.77/80'"
    with faults.without_internet(lab.lab, "h1", refuse=True):
        tries = faults.outside_tries(lab.lab, "h1")
        assert tries is not None
        assert tries.packets == 0
        lab.ssh("h1", "timeout 5 bash -c 'exec 3<>/dev/tcp/h2/22'")
        assert lab.ssh("h1", outside, check=False).returncode == 1, "refused, not timed out"
        seen = faults.outside_tries(lab.lab, "h1")
        assert seen is not None
        assert seen.packets >= 1
    assert faults.outside_tries(lab.lab, "h1") is None


def test_ssh_can_break_midway_while_the_work_goes_on(lab: RunningLab) -> None:
    argv = [*lab.lab.ssh_argv("h1"), "sleep 1; echo done > went-on; sleep 1; echo end"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        time.sleep(0.5)
        assert faults.drop_ssh(lab.lab, "h1") >= 1
        assert run.wait(5) == 255
    time.sleep(1)
    assert lab.out("h1", "cat went-on") == "done"
    with faults.ssh_blocked(lab.lab, "h1"):
        assert lab.ssh("h1", "true", check=False).returncode == 255
    faults.stop_sshd(lab.lab, "h1")
    refused = lab.ssh("h1", "true", check=False)
    faults.start_sshd(lab.lab, "h1")
    assert "Connection refused" in refused.stderr
    assert lab.ssh("h1", "true").returncode == 0


def test_latency_can_be_added(lab: RunningLab) -> None:
    def connect() -> float:
        begin = time.monotonic()
        socket.create_connection((lab.host("h1").address, 22), timeout=5).close()
        return time.monotonic() - begin

    connect()
    faults.set_latency(lab.lab, "h1", 60)
    try:
        assert 0.06 <= connect() < 0.5
        # Large segments and their checksums must survive the slow cable.
        lab.ssh("h1", "head -c 1M /dev/urandom > big; sha256sum < big > sum")
        big = subprocess.run([*lab.lab.ssh_argv("h1"), "cat big"], capture_output=True, check=True, timeout=60).stdout
        assert hashlib.sha256(big).hexdigest() == lab.out("h1", "cut -c1-64 sum")
    finally:
        faults.set_latency(lab.lab, "h1", 0)
    assert connect() < 0.06


def test_a_host_with_a_disk_of_its_own_fills_up_and_forgets_what_was_not_synced(lab: RunningLab) -> None:
    with pytest.raises(LabError, match="no disk of its own"):
        faults.fill_disk(lab.lab, "h1")
    # In a lab of its own: a host that stays behind would be one of the next tests' fleet.
    with own_lab("disk", {"h1": "none"}, disk_gb=1) as small:
        faults.fill_disk(small.lab, "h1")
        full = small.ssh("h1", "head -c 1M /dev/zero > more", check=False)
        assert "No space left on device" in full.stderr
        faults.free_disk(small.lab, "h1")
        small.ssh("h1", "echo old > file; sync; echo safe > synced; sync synced; echo lost > unsynced")
        small.lab.power_cut(["h1"])
        small.lab.power_on(["h1"])
        assert small.out("h1", "cat file synced") == "old\nsafe"
        assert small.out("h1", "cat unsynced 2>/dev/null || true") == ""


def test_down_finds_what_it_made_without_its_state(lab: RunningLab) -> None:
    env = {**lab.env, "LMCACHE_FLEET_LAB_NAME": f"{lab.lab.paths.name}-2"}
    paths = Paths(lab.lab.paths.cache, env["LMCACHE_FLEET_LAB_NAME"])
    argv = [sys.executable, "-m", "lab"]
    subprocess.run([*argv, "up", "--hosts", "1"], cwd=REPO, env=env, check=True, capture_output=True)
    state = load(paths)
    paths.state.unlink()
    subprocess.run([*argv, "down"], cwd=REPO, env=env, check=True, capture_output=True)
    assert not [line for line in processes() if f"--directory={paths.lab}/" in line]
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert state.bridge not in links
    assert not list(Path("/run/netns").glob(f"lmf{state.slot}-*"))


def processes() -> list[str]:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_down_leaves_nothing_and_spares_a_stranger_with_a_recorded_pid(lab: RunningLab, tmp_path: Path) -> None:
    env = {**lab.env, "LMCACHE_FLEET_LAB_NAME": f"{lab.lab.paths.name}-2"}
    argv = [sys.executable, "-m", "lab"]
    subprocess.run([*argv, "up", "--hosts", "1"], cwd=REPO, env=env, check=True, capture_output=True)
    paths = Paths(lab.lab.paths.cache, env["LMCACHE_FLEET_LAB_NAME"])
    state = load(paths)
    assert state.bridge != lab.lab.reload().bridge
    with subprocess.Popen(["sleep", "60"]) as stranger:
        # As after a restart of the machine: the recorded pid belongs to somebody else now.
        host = state.hosts[0]
        host.pid, host.started = stranger.pid, started_at(stranger.pid) - 1
        save(paths, state)
        subprocess.run([*argv, "down"], cwd=REPO, env=env, check=True, capture_output=True)
        assert stranger.poll() is None
        stranger.kill()
    assert not paths.state.exists()
    disk = f"--directory={paths.lab}/"
    assert not [line for line in processes() if disk in line]
    rest = Path("/proc/self/mounts").read_text() + "\n".join(map(str, Path("/run/netns").iterdir()))
    assert str(paths.lab) not in rest
    assert f"lmf{state.slot}-" not in rest
    assert state.bridge not in subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert state.bridge not in subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    assert lab.host("h1").running


def test_what_a_killed_run_left_is_no_fault_of_the_next_and_no_harm_to_another_lab(lab: RunningLab) -> None:
    with own_lab("left", {"h1": "none"}) as left:
        state = left.lab.reload()
        # As a test that is killed leaves them.
        services.control(left.lab.paths.lab, down=True)
        faults.cut_internet(left.lab, "h1")
        # A lab from before a restart of the machine has the names that this one has now.
        old = Paths(left.lab.paths.cache, f"{lab.lab.paths.name}-old")
        save(
            old,
            State(state.slot, state.bridge, state.subnet, state.gateway, hosts=[Host("h1", state.hosts[0].address)]),
        )
        Lab(old).down()
        assert left.out("h1", "echo still here") == "still here"
        left.lab.down()
        assert state.bridge not in subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
        left.lab.up({"h1": "none"})
        index = left.lab.state.services["index_url"]
        left.ssh("h1", f"python3 -c 'import urllib.request as r; r.urlopen(\"{index}/\", timeout=9)'")
