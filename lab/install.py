"""What an installer writes into a blank disk, and the parts of the lab that other modules bring."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path

from lab import base
from lab.shell import LabError, run
from lab.state import Host, Paths, State
from lab.vendors import vendor_of

NO_HARDWARE = {"none", "cpu"}


def blank(paths: Paths, state: State, host: Host) -> None:
    """Write into a blank disk what an installer would: name, addresses, who may log in, hardware."""
    root = paths.root(host.name)
    base.write(root, "etc/hostname", f"{host.name}\n")
    base.copy_network_files(root)
    base.write(root, "etc/environment", base.site_environment(state.subnet))
    public = paths.ssh_key.with_suffix(".pub").read_text()
    for line in (root / "etc/passwd").read_text().splitlines():
        name, _, *ids, _, home, _ = line.split(":")
        if name not in {"root", "fleet", "operator"}:
            continue
        uid, gid, home = int(ids[0]), int(ids[1]), home.lstrip("/")
        base.write(root, f"{home}/.ssh/authorized_keys", public, 0o600)
        (root / home / ".ssh").chmod(0o700)
        for path in (root / home / ".ssh", root / home / ".ssh/authorized_keys"):
            os.chown(path, uid, gid)
    run(["chroot", root, "/usr/sbin/chpasswd"], stdin=f"operator:{state.operator_password}\n")
    if host.profile not in NO_HARDWARE:
        call("lab.ascend" if vendor_of(host.profile) == "ascend" else "lab.vendors", "install", root, host.profile)
    # Written last: a disk without it was not finished, and is wiped.
    (paths.host(host.name) / "prepared").touch()


def hosts_file(paths: Paths, state: State, host: Host) -> None:
    """Tell a host the names of all."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{other.address} {other.name}" for other in state.hosts]
    base.write(paths.root(host.name), "etc/hosts", "\n".join(lines) + "\n")


def call(module: str, function: str, *args: object) -> dict[str, object] | None:
    """Call a part of the lab that another module brings (stand-in services and hardware)."""
    try:
        part = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise LabError(f"this lab has no {module} ({error})") from error
    try:
        result: dict[str, object] | None = getattr(part, function)(*args)
    except (ValueError, OSError) as error:
        raise LabError(f"{module}.{function}: {error}") from error
    return result


def check_profiles(profiles: Iterable[str]) -> None:
    """Refuse unknown hardware before a host is made."""
    hardware = Path(__file__).parent / "hardware"
    for profile in profiles:
        if profile not in NO_HARDWARE and not (hardware / f"{profile}.yaml").is_file():
            known = ", ".join(sorted(NO_HARDWARE) + sorted(path.stem for path in hardware.glob("*.yaml")))
            raise LabError(f"no hardware profile {profile!r}; there are: {known}")
