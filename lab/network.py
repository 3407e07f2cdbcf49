"""The lab's own network: one bridge a lab, one network namespace a host, a way out by address translation."""

from __future__ import annotations

import ipaddress
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.shell import LabError, run
from lab.state import Host, Paths, State

FIRST_SUBNET = ipaddress.IPv4Network("10.213.77.0/24")
SLOTS = 10
# What this machine's kernel must allow, beyond what it does by default: forwarding, and room for many systemds, each of
# which takes some inotify instances of root's (128 in all is the default, enough for eight hosts).
SETTINGS = {
    "ip_forward": (Path("/proc/sys/net/ipv4/ip_forward"), 1),
    "inotify_instances": (Path("/proc/sys/fs/inotify/max_user_instances"), 4096),
}


def netns(state: State, host: Host) -> str:
    """The name of a host's network namespace, which also names the two ends of its cable on this machine."""
    return f"lmf{state.slot or ''}-{host.name}"


def address(state: State, number: int) -> str:
    """The address of hN."""
    return str(ipaddress.IPv4Network(state.subnet)[10 + number])


def links() -> list[dict[str, Any]]:
    """All network links of this machine."""
    return list(json.loads(run(["ip", "-json", "link", "show"]).stdout or "[]"))


def owner(paths: Paths) -> str:
    """The alias that marks a bridge as this lab's, so that even a run that was killed is known by what it left."""
    return f"lmcache-fleet lab {paths.lab}"


def is_ours(paths: Paths, state: State) -> bool:
    """Whether the bridge of the state is this lab's, or nobody's; after a restart another lab may have it."""
    alias = next((link.get("ifalias", "") for link in links() if link["ifname"] == state.bridge), owner(paths))
    return bool(state.bridge) and alias == owner(paths)


def claim(paths: Paths, state: State, *, only_ours: bool = False) -> None:
    """Choose bridge and subnet: what is ours already, else the first slot that collides with nothing."""
    if state.bridge:
        if not only_ours and not is_ours(paths, state):
            raise LabError(f"{state.bridge} is another lab's now (after a restart of the machine?): `down`, then `up`")
        return
    bridges = {link["ifname"]: link.get("ifalias", "") for link in links()}
    taken = [
        ipaddress.ip_network(route["dst"])
        for route in json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout or "[]")
        if route.get("type", "unicast") == "unicast" and "/" in route["dst"]
    ]
    for slot in range(SLOTS):
        bridge = f"lmfleet{slot}"
        number = int(FIRST_SUBNET.network_address) + slot * FIRST_SUBNET.num_addresses
        subnet = ipaddress.IPv4Network((number, FIRST_SUBNET.prefixlen))
        ours = bridges.get(bridge) == owner(paths)
        free = not only_ours and bridge not in bridges and not any(subnet.overlaps(other) for other in taken)
        if ours or free:
            state.slot, state.bridge = slot, bridge
            state.subnet, state.gateway = str(subnet), str(subnet[1])
            return
    if only_ours:
        return
    raise LabError(f"no free subnet for a lab: tried {SLOTS} from {FIRST_SUBNET} on (see `ip route`, `ip link`)")


def mtu() -> int:
    """The way out's own packet size: larger packets from a host would get lost on some networks."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "default"]).stdout or "[]")
    device = routes[0]["dev"] if routes else ""
    return next((int(link["mtu"]) for link in links() if link["ifname"] == device), 1500)


def rules(state: State) -> list[list[str]]:
    """This lab's firewall rules, as iptables arguments without the command."""
    tag = ["-m", "comment", "--comment", state.bridge]
    return [
        ["-t", "nat", "POSTROUTING", "-s", state.subnet, "!", "-d", state.subnet, *tag, "-j", "MASQUERADE"],
        # A machine with docker drops what it forwards unless told otherwise.
        ["-t", "filter", "FORWARD", "-i", state.bridge, *tag, "-j", "ACCEPT"],
        ["-t", "filter", "FORWARD", "-o", state.bridge, *tag, "-j", "ACCEPT"],
    ]


def remove_rules(state: State) -> None:
    """Delete every rule that was made for this lab, those of a fault whose test was killed among them."""
    ours = {state.bridge, f"{state.bridge}-cut"}
    for table in ("nat", "filter"):
        for line in run(["iptables", "--wait", "-t", table, "-S"]).stdout.splitlines():
            words = shlex.split(line)
            if words[0] == "-A" and "--comment" in words and words[words.index("--comment") + 1] in ours:
                run(["iptables", "--wait", "-t", table, "-D", *words[1:]], check=False)


def iptables(action: str, rule: list[str], *, check: bool = True, ns: str = "") -> bool:
    """Apply -C, -A, -I or -D to a rule; True when iptables agreed."""
    table, chain, rest = rule[:2], rule[2], rule[3:]
    prefix = ["ip", "netns", "exec", ns] if ns else []
    return run([*prefix, "iptables", "--wait", *table, action, chain, *rest], check=check).returncode == 0


def up(paths: Paths, state: State) -> None:
    """Make the bridge and the way out, or see that they are there."""
    if not any(link["ifname"] == state.bridge for link in links()):
        remove_rules(state)
        run(["ip", "link", "add", state.bridge, "type", "bridge"])
        run(["ip", "link", "set", state.bridge, "alias", owner(paths)])
    prefix = ipaddress.IPv4Network(state.subnet).prefixlen
    run(["ip", "address", "replace", f"{state.gateway}/{prefix}", "dev", state.bridge])
    run(["ip", "link", "set", state.bridge, "mtu", str(mtu()), "up"])
    for rule in rules(state):
        if not iptables("-C", rule, check=False):
            iptables("-I", rule)
    for name, (setting, least) in SETTINGS.items():
        was = setting.read_text().strip()
        if int(was) < least:
            # Kept beside all labs of this cache, since the last one that goes puts it back.
            (paths.cache / f"{name}_was").write_text(was)
            setting.write_text(str(least))


def down(paths: Paths, state: State) -> None:
    """Remove bridge and rules. The kernel's settings go back to what they were when no other lab needs them."""
    if not is_ours(paths, state):
        return
    remove_rules(state)
    for ns in Path("/run/netns").glob(f"lmf{state.slot or ''}-h*"):
        unplug(state, Host(ns.name.partition("-")[2], ""))
    run(["ip", "link", "delete", state.bridge], check=False)
    others = any(str(link.get("ifalias", "")).startswith("lmcache-fleet lab ") for link in links())
    for name, (setting, _) in SETTINGS.items():
        kept = paths.cache / f"{name}_was"
        if kept.exists() and not others:
            setting.write_text(kept.read_text())
            kept.unlink()


def plug(state: State, host: Host) -> None:
    """Give a host its network namespace with an eth0 in it. A leftover of that name is replaced."""
    unplug(state, host)
    ns = netns(state, host)
    size = str(mtu())
    prefix = ipaddress.IPv4Network(state.subnet).prefixlen
    run(["ip", "netns", "add", ns])
    # The same card in every life: with a new one, this machine would talk to the old one's address for half a minute.
    card = "02:00:" + ":".join(f"{part:02x}" for part in ipaddress.IPv4Address(host.address).packed)
    peer = ["peer", "name", "eth0", "address", card, "mtu", size, "netns", ns]
    run(["ip", "link", "add", ns, "mtu", size, "type", "veth", *peer])
    run(["ip", "link", "set", ns, "master", state.bridge, "up"])
    commands = f"link set lo up\naddress add {host.address}/{prefix} dev eth0\nlink set eth0 up\n"
    run(["ip", "-n", ns, "-batch", "-"], stdin=f"{commands}route add default via {state.gateway}\n")


def traffic(state: State, host: Host) -> int:
    """Bytes that went over a host's cable since it booted, both ways."""
    counters = Path("/sys/class/net", netns(state, host), "statistics")
    return sum(int((counters / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


def delay(state: State, host: Host, seconds: float, loss: float) -> None:
    """Put a slow cable between host and bridge (see `lab.delay`), or with 0 and 0 the plain one again."""
    ns = netns(state, host)
    run(["ip", "link", "delete", f"{ns}a"], check=False)
    if not seconds and not loss:
        run(["ip", "link", "set", ns, "master", state.bridge])
        return
    size = str(mtu())
    run(["ip", "link", "add", f"{ns}a", "mtu", size, "type", "veth", "peer", "name", f"{ns}b", "mtu", size])
    run(["ip", "link", "set", f"{ns}b", "up"])
    argv = [sys.executable, "-m", "lab.delay", ns, f"{ns}b", str(seconds), str(loss)]
    # It lives as long as its links do, so nobody has to remember its pid.
    carrier = subprocess.Popen(
        argv, cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    if carrier.stdout is None or carrier.stdout.readline() != b"ready\n":
        run(["ip", "link", "delete", f"{ns}a"], check=False)
        raise LabError(f"no slow cable for {host.name}: its carrier ended")
    carrier.stdout.close()
    run(["ip", "link", "set", ns, "nomaster"])
    run(["ip", "link", "set", f"{ns}a", "master", state.bridge, "up"])


def unplug(state: State, host: Host) -> None:
    """Remove a host's network namespace; its cable goes with it."""
    ns = netns(state, host)
    if Path("/run/netns", ns).exists():
        run(["ip", "netns", "delete", ns])
    # The kernel takes the cable away a moment after the namespace, and a new one of that name must not fail.
    for link in (ns, f"{ns}a"):
        run(["ip", "link", "delete", link], check=False)
