"""Faults for tests: network, disk and sshd of one host. Each can be taken back, and none outlives ``lab down``.

A wrong clock is not among them: Linux has one real-time clock for all containers of a machine, so setting it in one
host would set it for the machine (hosts therefore lack CAP_SYS_TIME, and ``date --set`` fails in them).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import network
from lab.hosts import Lab
from lab.shell import LabError, run
from lab.state import Host

FILLER = "var/tmp/.filler"


@dataclass(frozen=True)
class Tries:
    """What a host sent towards the outside while that was cut."""

    packets: int
    bytes: int


def _host(lab: Lab, name: str) -> Host:
    """The host as it is now: another process may have booted it since."""
    return lab.reload().find(name)


def _gap_rule(lab: Lab, host: Host) -> list[str]:
    comment = ["-m", "comment", "--comment", f"{lab.state.bridge}-cut"]
    begun = ["-m", "conntrack", "--ctstate", "NEW"]
    return ["-t", "filter", "INPUT", "-s", host.address, "-d", lab.state.gateway, *begun, *comment, "-j", "DROP"]


def _cut_rule(lab: Lab, host: Host, verdict: str) -> list[str]:
    outside = ["-s", host.address, "!", "-d", lab.state.subnet]
    return ["-t", "filter", "FORWARD", *outside, "-m", "comment", "--comment", f"{lab.state.bridge}-cut", "-j", verdict]


def cut_internet(lab: Lab, name: str, *, refuse: bool = False) -> None:
    """Cut a host off from all but the lab (its fellows, the index, the git server). Packets vanish, or are refused."""
    host = _host(lab, name)
    restore_internet(lab, name)
    network.iptables("-I", _cut_rule(lab, host, "REJECT" if refuse else "DROP"))


def restore_internet(lab: Lab, name: str) -> None:
    """Give a host the outside back."""
    host = _host(lab, name)
    for verdict in ("DROP", "REJECT"):
        while network.iptables("-D", _cut_rule(lab, host, verdict), check=False):
            pass


def outside_tries(lab: Lab, name: str) -> Tries | None:
    """What a host tried to send outside since the cut: 0 packets means that nothing was tried. None: not cut.

    In an air gap, connections that it began to the lab's own services count too.
    """
    host = _host(lab, name)
    found = []
    for chain in ("FORWARD", "INPUT"):
        for line in run(["iptables", "--wait", "-nvxL", chain]).stdout.splitlines():
            words = line.split()
            if f"{lab.state.bridge}-cut" in words and host.address in words:
                found.append((int(words[0]), int(words[1])))
    return Tries(sum(packets for packets, _ in found), sum(size for _, size in found)) if found else None


@contextmanager
def air_gapped(lab: Lab, name: str) -> Iterator[None]:
    """Cut a host off from the outside and from the lab's services for a while; SSH to it stays."""
    host = _host(lab, name)
    with without_internet(lab, name):
        network.iptables("-I", _gap_rule(lab, host))
        try:
            yield
        finally:
            while network.iptables("-D", _gap_rule(lab, host), check=False):
                pass


@contextmanager
def without_internet(lab: Lab, name: str, *, refuse: bool = False) -> Iterator[None]:
    """Cut a host off for a while."""
    cut_internet(lab, name, refuse=refuse)
    try:
        yield
    finally:
        restore_internet(lab, name)


def set_latency(lab: Lab, name: str, milliseconds: float, *, loss_percent: float = 0) -> None:
    """Add to a host's round trip time, and lose a share of what it sends; 0 and 0 take both away.

    A slow cable stays until the host loses power or ``lab down``.
    """
    network.delay(lab.state, _host(lab, name), milliseconds / 2000, loss_percent / 100)


def _ssh_rule(verdict: list[str]) -> list[str]:
    comment = ["-m", "comment", "--comment", "lab-fault"]
    return ["-t", "filter", "INPUT", "-p", "tcp", "--dport", "22", *comment, "-j", *verdict]


SILENT = ["DROP"]
RESET = ["REJECT", "--reject-with", "tcp-reset"]


@contextmanager
def ssh_blocked(lab: Lab, name: str, *, silent: bool = False) -> Iterator[None]:
    """Break a host's SSH connections, old and new, for a while: by a reset, or by silence.

    What runs on the host is not told, as with a real broken line.
    """
    ns = network.netns(lab.state, _host(lab, name))
    rule = _ssh_rule(SILENT if silent else RESET)
    network.iptables("-I", rule, ns=ns)
    try:
        yield
    finally:
        while network.iptables("-D", rule, check=False, ns=ns):
            pass


def drop_ssh(lab: Lab, name: str) -> int:
    """End the SSH sessions a host has, now; sshd stays and takes new ones. Returns how many there were."""
    _host(lab, name)
    # A session is two processes: a privileged one below the listening sshd, and below it the one with the connection.
    script = """for session in $(pgrep -P "$(systemctl show --value -p MainPID ssh.service)"); do
        echo "$session"; kill -9 "$session" $(pgrep -P "$session" sshd)
    done 2>/dev/null"""
    return len(lab.inside(name, "sh", "-c", script, check=False).stdout.split())


def stop_sshd(lab: Lab, name: str) -> None:
    """Stop a host's sshd: new connections are refused."""
    _host(lab, name)
    lab.inside(name, "systemctl", "stop", "ssh.service")


def start_sshd(lab: Lab, name: str) -> None:
    """Start a host's sshd again."""
    _host(lab, name)
    lab.inside(name, "systemctl", "start", "ssh.service")


def fill_disk(lab: Lab, name: str, *, leave_mb: int = 0) -> None:
    """Fill a host's disk but for so much. Only for a host with a disk of its own: others share this machine's."""
    host = _host(lab, name)
    if not host.disk_gb:
        raise LabError(f"{name} has no disk of its own to fill; bring it up with --disk-gb")
    script = 'size=$(($(df --output=avail -B1M / | tail -1) - $2)); [ "$size" -le 0 ] || fallocate -l ${size}M "$1"'
    lab.inside(name, "sh", "-ec", script, "sh", f"/{FILLER}", str(leave_mb))
    if leave_mb == 0:
        # The last blocks, which a whole number of megabytes leaves.
        lab.inside(name, "sh", "-c", f"cat /dev/zero >> /{FILLER} 2>/dev/null", check=False)


def free_disk(lab: Lab, name: str) -> None:
    """Take the filler away."""
    _host(lab, name)
    lab.inside(name, "rm", "-f", str(Path("/") / FILLER))
