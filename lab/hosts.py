"""Hosts: making, booting, breaking and removing them. Every step may be repeated after a run that was killed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import base, cgroup, disk, install, network
from lab.shell import LabError, children, kill_and_wait, run, started_at
from lab.state import Host, Paths, State, load, locked, save

BOOT_LIMIT = 60.0
NAME = re.compile(r"h([1-9][0-9]?|1[0-9][0-9]|2[0-3][0-9])")
# systemd in a host must have a cgroup to itself, or all hosts would share (and reap) one set of services. nspawn ends
# with 133 when its host rebooted and wants to be started again.
SUPERVISOR = """
groups=$1; shift
while :; do
  sh -uc 'for group in $1; do echo $$ > "$group/cgroup.procs"; done; shift; exec "$@"' lab-enter "$groups" "$@"
  status=$?
  [ $status = 133 ] || exit $status
done
"""


class Lab:
    """One lab. Methods that change it take its lock; a second command waits for the first."""

    def __init__(self, paths: Paths | None = None, say: base.Say = print) -> None:
        """Read the state of the lab at ``paths`` (default: the one the environment names)."""
        self.paths = paths or Paths.here()
        self.say = say
        self.state: State = load(self.paths)

    def reload(self) -> State:
        """Read the state again: another process may have changed it."""
        self.state = load(self.paths)
        return self.state

    # --- whole lab ---------------------------------------------------------------------------------------------

    def up(self, profiles: Mapping[str, str], *, disk_gb: int = 0, limit: float = BOOT_LIMIT) -> None:
        """See that these hosts run, with these profiles. Hosts that are up already stay as they are."""
        for name in profiles:
            if not NAME.fullmatch(name):
                raise LabError(f"a host is called h1 to h239, not {name!r}")
        install.check_profiles(profiles.values())
        with self._changing():
            root = base.ensure(self.paths, self.say)
            self._secrets()
            self._network()
            new = self._wanted(profiles, disk_gb, root.name)
            self._start_services()
            self._save()
            for host in self.state.hosts:
                if host.running:
                    install.hosts_file(self.paths, self.state, host)
            self._each(self._boot, new)
            self._await_ssh([host for host in self.state.hosts if host.running], limit)
            base.prune(self.paths, self._bases_in_use() | {root.name})

    def down(self, *, purge: bool = False) -> None:
        """Remove the hosts and everything made for them; with ``purge`` the base and the downloads too."""
        with self._changing():
            network.claim(self.paths, self.state, only_ours=True)
            if self.state.services:
                install.call("lab.services", "stop", self.paths.lab)
                self.state.services = {}
            self._each(self._power_cut, self.state.hosts)
            shutil.rmtree(self.paths.lab / "hosts", ignore_errors=True)
            with locked(self.paths.cache / "network.lock"):
                network.down(self.paths, self.state)
            self.paths.known_hosts.unlink(missing_ok=True)
            self.state = State()
            self.paths.state.unlink(missing_ok=True)
        if purge:
            self._purge()

    def _purge(self) -> None:
        others = list((self.paths.cache / "labs").glob("*/state.json"))
        if self.paths.name:
            shutil.rmtree(self.paths.lab)
        elif others:
            raise LabError(f"another lab still uses the base: {', '.join(p.parent.name for p in others)}")
        else:
            shutil.rmtree(self.paths.cache)

    # --- one host ----------------------------------------------------------------------------------------------

    def reimage(self, names: Iterable[str], *, profile: str | None = None, adopt: bool = False) -> None:
        """Boot hosts from a blank disk. Their host keys change; the fleet's known_hosts learns that on ``adopt``."""
        install.check_profiles([profile or "none"])
        with self._changing():
            root = base.ensure(self.paths, self.say)
            hosts = [self.state.find(name) for name in names]
            self._each(self._power_cut, hosts)
            if adopt:
                # Before the disk goes: after a kill in between, the next `up` learns whichever key the host then has.
                self._forget_keys(hosts)
            for host in hosts:
                self._wipe(host)
                host.base, host.profile = root.name, profile if profile is not None else host.profile
            self._network()
            self._each(self._boot, hosts)
            self._await_ssh(hosts, BOOT_LIMIT)

    def power_cut(self, names: Iterable[str]) -> None:
        """Take the current away: every process of the host dies at once, its disk stays.

        A host with a disk of its own (``disk_gb``) also loses what it had not synced, as a real one does.
        """
        with self._changing():
            hosts = [self.state.find(name) for name in names]
            self._each(self._power_cut, hosts)

    def power_on(self, names: Iterable[str]) -> None:
        """Boot hosts that are off, from the disk they have."""
        with self._changing():
            hosts = [host for host in map(self.state.find, names) if not host.running]
            self._network()
            self._each(self._boot, hosts)
            self._await_ssh(hosts, BOOT_LIMIT)

    # --- talking to a host -------------------------------------------------------------------------------------

    def ssh_argv(self, name: str, user: str = "fleet") -> list[str]:
        """The ssh command to a host. It knows the host's key from the host's own disk, so a reimage is no surprise."""
        host = self.state.find(name)
        return [*self._ssh_options(host, user), host.address]

    def ssh(
        self, name: str, command: str, *, user: str = "fleet", check: bool = True, limit: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a host over SSH."""
        argv = [*self.ssh_argv(name, user), command]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit)
        if check and result.returncode:
            words = result.stdout + result.stderr
            raise LabError(f"{name}: `{command}` ended with status {result.returncode}:\n{words}")
        return result

    def inside_argv(self, name: str) -> list[str]:
        """The prefix that runs a program as root inside a host without its network or sshd: for faults."""
        host = self.state.find(name)
        init = self.init_pid(host)
        if not init:
            raise LabError(f"{name} is off")
        # Entered by root and working directory, not by --all: a host has no user namespace of its own.
        # (In short: mount, uts, ipc, net, pid and cgroup namespace, root, working directory.)
        return ["nsenter", f"--target={init}", "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]

    def inside(self, name: str, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program as root inside a host, past SSH."""
        env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
        return run([*self.inside_argv(name), "--", *argv], check=check, env=env)

    def root(self, name: str) -> Path:
        """A host's files, as seen from here while its disk is mounted."""
        return self.paths.root(name)

    def init_pid(self, host: Host) -> int:
        """The pid, on this machine, of a running host's process 1."""
        nspawn = next(iter(children(host.pid)), 0) if host.running else 0
        return next(iter(children(nspawn)), 0) if nspawn else 0

    # --- parts -------------------------------------------------------------------------------------------------

    def _changing(self) -> _Changing:
        return _Changing(self)

    def _save(self) -> None:
        save(self.paths, self.state)

    def _each(self, work: Callable[[Host], None], hosts: Iterable[Host]) -> None:
        """Do something for several hosts at once; the first error is raised when all are through."""
        todo = list(hosts)
        with ThreadPoolExecutor(max_workers=max(1, min(8, len(todo)))) as pool:
            futures = [pool.submit(work, host) for host in todo]
        self._save()
        for future in futures:
            future.result()

    def _network(self) -> None:
        with locked(self.paths.cache / "network.lock"):
            network.claim(self.paths, self.state)
            # Written down before anything is made, so that `down` knows what to remove after a kill.
            self._save()
            network.up(self.paths, self.state)

    def _secrets(self) -> None:
        self.paths.mkdirs()
        key = self.paths.ssh_key
        if not key.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lmcache-fleet-lab", "-f", key])
        self.state.ssh_key, self.state.known_hosts = str(key), str(self.paths.known_hosts)
        self.state.operator_password = self.state.operator_password or secrets.token_urlsafe(12)
        self.paths.known_hosts.touch()

    def _wanted(self, profiles: Mapping[str, str], disk_gb: int, base_name: str) -> list[Host]:
        """Add missing hosts to the state, and name those that must be booted."""
        for name, profile in profiles.items():
            known = next((host for host in self.state.hosts if host.name == name), None)
            if known is None:
                host = Host(name, "", profile=profile, disk_gb=disk_gb, base=base_name)
                host.address = network.address(self.state, host.number)
                self.state.hosts.append(host)
            elif known.profile != profile:
                raise LabError(f"{name} has profile {known.profile}; `reimage {name} --profile {profile}` changes it")
        self.state.hosts.sort(key=lambda host: host.number)
        return [host for host in self.state.hosts if host.name in profiles and not host.running]

    def _bases_in_use(self) -> set[str]:
        used = {host.base for host in self.state.hosts}
        for other in [self.paths.cache / "state.json", *(self.paths.cache / "labs").glob("*/state.json")]:
            name = "" if other.parent == self.paths.cache else other.parent.name
            used |= {host.base for host in load(Paths(self.paths.cache, name)).hosts}
        return used

    def _start_services(self) -> None:
        if (Path(__file__).parent / "services.py").exists():
            self.say("package index and git server")
            self.state.services = dict(install.call("lab.services", "start", self.paths.lab, self.state.gateway) or {})

    def _clear_leftovers(self) -> None:
        """Take back what a killed run left: processes that were not written down, disks of no host."""
        running = self._find_processes()
        disks = {path.name for path in (self.paths.lab / "hosts").glob("*") if NAME.fullmatch(path.name)}
        known = {host.name: host for host in self.state.hosts}
        for name in {*running, *disks, *known}:
            host = known.get(name)
            for pid in running.get(name, []):
                if host and not host.running and os.getsid(pid) == pid:
                    host.pid, host.started = pid, started_at(pid)
                elif not host or (not host.running and started_at(pid)):
                    self._kill_tree(pid)
            if not host:
                stray = Host(name, "")
                disk.unmount(self.paths, stray)
                if network.is_ours(self.paths, self.state):
                    network.unplug(self.state, stray)
                shutil.rmtree(self.paths.host(name), ignore_errors=True)

    def _find_processes(self) -> dict[str, list[int]]:
        """The processes that run this lab's disks, by host: the supervisor (it leads its session) comes first."""
        disk = re.compile(re.escape(f"--directory={self.paths.lab}/hosts/") + r"(h\d+)/root")
        found: dict[str, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    leads = os.getsid(int(entry.name)) == int(entry.name)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                for match in filter(None, map(disk.fullmatch, argv)):
                    found.setdefault(match[1], []).insert(0 if leads else 1, int(entry.name))
        return found

    # --- disk --------------------------------------------------------------------------------------------------

    def _wipe(self, host: Host) -> None:
        disk.unmount(self.paths, host)
        base.harvest_archives(self.paths.pool, self.paths.host(host.name) / "archives")
        shutil.rmtree(self.paths.host(host.name), ignore_errors=True)

    # --- power -------------------------------------------------------------------------------------------------

    def _boot(self, host: Host) -> None:
        if not (self.paths.host(host.name) / "prepared").exists():
            self._wipe(host)
        disk.mount(self.paths, host)
        if not (self.paths.host(host.name) / "prepared").exists():
            install.blank(self.paths, self.state, host)
        install.hosts_file(self.paths, self.state, host)
        archives = self.paths.host(host.name) / "archives"
        base.seed_archives(self.paths.pool, archives)
        network.plug(self.state, host)
        ns = network.netns(self.state, host)
        groups = " ".join(map(str, cgroup.groups(ns)))
        nspawn = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"]
        nspawn += [f"--directory={self.paths.root(host.name)}", f"--machine={ns}", f"--hostname={host.name}"]
        nspawn += [f"--network-namespace-path=/run/netns/{ns}", "--console=read-only", "--link-journal=no"]
        nspawn += ["--resolv-conf=off", "--timezone=off", f"--bind={archives}:/var/cache/apt/archives"]
        # What a bare host may do and a container by default may not: pin memory, set NUMA policy, use keyrings.
        nspawn += ["--capability=CAP_NET_ADMIN,CAP_IPC_LOCK,CAP_SYS_NICE"]
        nspawn += ["--system-call-filter=@keyring @resources bpf"]
        env = {"PATH": os.environ["PATH"], "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_TMPFS_TMP": "0"}
        with (self.paths.host(host.name) / "console.log").open("ab") as console:
            process = subprocess.Popen(
                ["sh", "-uc", SUPERVISOR, "lab-host", groups, *nspawn],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True, env=env, cwd="/",
            )  # fmt: skip
        host.pid, host.started = process.pid, started_at(process.pid)
        self._save_quietly()

    def _save_quietly(self) -> None:
        """Write down a new pid at once; hosts boot in parallel, and the one that saves last has them all."""
        with locked(self.paths.lab / "save.lock"):
            self._save()

    def _power_cut(self, host: Host) -> None:
        if host.running and host.disk_gb:
            disk.stop(self.paths, host)
        if host.running:
            self._kill_tree(host.pid)
        host.pid = host.started = 0
        disk.unmount(self.paths, host)
        base.harvest_archives(self.paths.pool, self.paths.host(host.name) / "archives")
        # After a restart of the machine, another lab may have the names that this one had.
        if not network.is_ours(self.paths, self.state):
            return
        network.unplug(self.state, host)
        for group in cgroup.groups(network.netns(self.state, host), make=False):
            cgroup.remove(group)

    def _kill_tree(self, pid: int) -> None:
        """Kill a host: its supervisor, its process 1 (the kernel then kills all of that namespace), its nspawn."""
        family = [pid]
        for parent in family:
            # Two levels: supervisor, nspawn, the host's process 1.
            if len(family) < 3:
                family += children(parent)
        marks = [(member, started_at(member)) for member in family]
        for member, started in [marks[0], *reversed(marks[1:])]:
            if not kill_and_wait(member, started, signal.SIGKILL, 10):
                raise LabError(f"process {member} does not end")

    # --- ssh ---------------------------------------------------------------------------------------------------

    def _ssh_options(self, host: Host, user: str) -> list[str]:
        known = self.paths.host(host.name) / "known_hosts"
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}"]
        options += ["GlobalKnownHostsFile=/dev/null", "ConnectTimeout=5", "LogLevel=ERROR"]
        argv = ["ssh", "-F", "/dev/null", "-i", str(self.paths.ssh_key), "-l", user]
        for option in options:
            argv += ["-o", option]
        return argv

    def _await_ssh(self, hosts: list[Host], limit: float) -> None:
        """Wait until every host lets us log in; its keys are read from its disk, never trusted from the network."""
        begin = time.monotonic()

        def wait(host: Host) -> str:
            while True:
                if not host.running:
                    return "its system ended"
                keys = self._read_keys(host)
                if keys:
                    (self.paths.host(host.name) / "known_hosts").write_text(keys)
                    argv = [*self._ssh_options(host, "fleet"), host.address, "true"]
                    answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
                    if answer.returncode == 0:
                        took = time.monotonic() - begin
                        self.say(f"  {host.name} {host.address} ({host.profile}) is up, {took:.1f} s")
                        return ""
                    reason = answer.stderr.strip()
                else:
                    reason = "no host keys yet"
                if time.monotonic() - begin > limit:
                    return f"no login over SSH within {limit:.0f} s: {reason}"
                time.sleep(0.15)

        with ThreadPoolExecutor(max_workers=max(1, min(16, len(hosts)))) as pool:
            problems = dict(zip([host.name for host in hosts], pool.map(wait, hosts), strict=True))
        for host in hosts:
            if not problems[host.name]:
                self._learn_key(host)
        bad = [f"{name}: {why} ({self.paths.host(name)}/console.log)" for name, why in problems.items() if why]
        if bad:
            raise LabError("\n".join(bad))

    def _read_keys(self, host: Host) -> str:
        root = self.paths.root(host.name)
        keys = sorted((root / "etc/ssh").glob("ssh_host_*_key.pub"))
        # Made one after the other at first boot; the unit is through when the last kind is there and not empty.
        texts = [path.read_text().split() for path in keys]
        if len(texts) < 3 or any(len(words) < 2 for words in texts):
            return ""
        return "".join(f"{host.address},{host.name} {words[0]} {words[1]}\n" for words in texts)

    def _learn_key(self, host: Host) -> None:
        """Add a host that the fleet's known_hosts doesn't have. One that it has is left, right or wrong."""
        text = self.paths.known_hosts.read_text() if self.paths.known_hosts.exists() else ""
        if not any(line.startswith(f"{host.address},") for line in text.splitlines()):
            self._replace_known_hosts(text + self._read_keys(host))

    def _forget_keys(self, hosts: list[Host]) -> None:
        starts = tuple(f"{host.address}," for host in hosts)
        if self.paths.known_hosts.exists():
            lines = self.paths.known_hosts.read_text().splitlines(keepends=True)
            self._replace_known_hosts("".join(line for line in lines if not line.startswith(starts)))

    def _replace_known_hosts(self, text: str) -> None:
        new = self.paths.known_hosts.with_suffix(".new")
        new.write_text(text)
        new.replace(self.paths.known_hosts)


class _Changing:
    """The lab's lock, held while it is changed; the state is read again first and written at the end."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def __enter__(self) -> None:
        if os.geteuid() != 0:
            raise LabError("the lab boots hosts and makes networks: it needs root")
        self.lab.paths.lab.mkdir(parents=True, exist_ok=True)
        self.lock = locked(self.lab.paths.lab / "lock", "another lab command is at work; waiting for it")
        self.lock.__enter__()
        self.lab.reload()
        try:
            self.lab._clear_leftovers()
        except BaseException:
            self.lock.__exit__(None, None, None)
            raise

    def __exit__(self, *error: object) -> None:
        try:
            if self.lab.paths.state.exists():
                self.lab._save()
        finally:
            self.lock.__exit__(None, None, None)
