"""The lab's command line: ``python -m lab up --hosts 4`` boots hosts, ``down`` removes them."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table

from lab import base, faults
from lab.hosts import Lab
from lab.shell import LabError
from lab.state import Paths

P = ParamSpec("P")
R = TypeVar("R")


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for results."""
    click.echo(text, err=True)


def told(function: Callable[P, R]) -> Callable[P, R]:
    """Show what a person has to know as one message, and end with status 1."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except LabError as error:
            raise click.ClickException(str(error)) from error

    return inner


def open_lab() -> Lab:
    """The lab that the environment names."""
    return Lab(Paths.here(), say)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Booted systemd + sshd hosts on this machine.

    Environment: LMCACHE_FLEET_LAB is the cache directory (default /var/cache/lmcache-fleet-lab); LMCACHE_FLEET_LAB_NAME
    names a second lab beside the first, with its own hosts, network and state.
    """


@main.command()
@click.option("--hosts", "count", type=click.IntRange(0, 200), default=None, help="Boot h1 to hN (default: 2).")
@click.option("--profile", default="none", show_default=True, help="Hardware of h1 to hN (lab/hardware/NAME.yaml).")
@click.option("--host", "extra", multiple=True, metavar="NAME=PROFILE", help="One more host, or another profile.")
@click.option("--disk-gb", type=click.IntRange(1), default=None, help="Give new hosts a small disk of their own.")
@click.option("--install-missing", is_flag=True, help="Install the Debian packages that the lab needs.")
@click.option("--limit", default=60.0, show_default=True, help="Seconds to wait for a host's sshd.")
@told
def up(
    count: int | None, profile: str, extra: tuple[str, ...], disk_gb: int | None, install_missing: bool, limit: float
) -> None:
    """Boot hosts; those that are up already stay as they are."""
    if os.geteuid() != 0:
        raise LabError("the lab boots hosts and makes networks: it needs root")
    missing, command = base.requirements()
    if missing and install_missing:
        base.install_missing(command)
    elif missing:
        say(f"the lab needs {', '.join(missing)}:\n  {command}\n(or: up --install-missing)")
        sys.exit(2)
    default = 0 if extra else 2
    profiles = {f"h{number}": profile for number in range(1, (default if count is None else count) + 1)}
    for entry in extra:
        name, sep, value = entry.partition("=")
        if not sep:
            raise click.UsageError(f"--host wants NAME=PROFILE, like h5=310p3, not {entry!r}")
        profiles[name] = value
    lab = open_lab()
    lab.up(profiles, disk_gb=disk_gb or 0, limit=limit)
    say(f"up: {' '.join(host.name for host in lab.state.hosts)}; ssh: python -m lab exec h1 -- COMMAND")


@main.command()
@click.option("--purge", is_flag=True, help="Remove the base system and the downloads too.")
@told
def down(purge: bool) -> None:
    """Remove all hosts, their disks and their network."""
    open_lab().down(purge=purge)


@main.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--profile", default=None, help="Other hardware from now on.")
@click.option("--adopt", is_flag=True, help="Put the new host key into the fleet's known_hosts (else: the old stays).")
@told
def reimage(names: tuple[str, ...], profile: str | None, adopt: bool) -> None:
    """Boot hosts from a blank disk: new machine id, new host keys."""
    open_lab().reimage(names, profile=profile, adopt=adopt)


@main.command("power-cut")
@click.argument("names", nargs=-1, required=True)
@told
def power_cut(names: tuple[str, ...]) -> None:
    """Take the current away from hosts; their disks stay."""
    open_lab().power_cut(names)


@main.command("power-on")
@click.argument("names", nargs=-1, required=True)
@told
def power_on(names: tuple[str, ...]) -> None:
    """Boot hosts that are off."""
    open_lab().power_on(names)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The state as JSON.")
@told
def status(as_json: bool) -> None:
    """Show the hosts. The exit status is 0 when all are up, 3 when some are off or there are none."""
    lab = open_lab()
    hosts = lab.state.hosts
    if as_json:
        entries = [asdict(host) | {"running": host.running} for host in hosts]
        click.echo(json.dumps(asdict(lab.state) | {"hosts": entries}, indent=2))
    else:
        table = Table("host", "address", "profile", "power", "pid", "disk")
        for host in hosts:
            disk = f"{host.disk_gb} GB" if host.disk_gb else "shared"
            table.add_row(
                host.name, host.address, host.profile, "on" if host.running else "off", str(host.pid or ""), disk
            )
        if hosts:
            Console().print(table)
            click.echo("".join(f"{key}: {value}\n" for key, value in lab.state.services.items()), nl=False)
        else:
            click.echo("no hosts; `python -m lab up --hosts 4` boots some")
    sys.exit(0 if hosts and all(host.running for host in hosts) else 3)


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.option("--user", default="fleet", show_default=True, help="fleet (sudo without a password), operator, root.")
@click.option("--inside", is_flag=True, help="As root and past sshd: works when the host's SSH doesn't.")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@told
def execute(user: str, inside: bool, name: str, command: tuple[str, ...]) -> None:
    """Run a command on a host (without one: a shell), over SSH."""
    lab = open_lab()
    if inside:
        argv = [*lab.inside_argv(name), "--", *(command or ("/bin/bash", "-l"))]
    else:
        # One word is a shell command, as with ssh itself; several are the words of a program's call.
        words = [command[0] if len(command) == 1 else shlex.join(command)] if command else []
        argv = [*lab.ssh_argv(name, user), *words]
    sys.exit(subprocess.run(argv, check=False).returncode)


@main.group()
def fault() -> None:
    """Break something, and mend it."""


@fault.command("internet")
@click.argument("name")
@click.argument("how", type=click.Choice(["cut", "refuse", "restore", "count"]))
@told
def fault_internet(name: str, how: str) -> None:
    """Cut a host off from everything but the lab, give it back, or count what was tried meanwhile."""
    lab = open_lab()
    if how in {"cut", "refuse"}:
        faults.cut_internet(lab, name, refuse=how == "refuse")
    tries = faults.outside_tries(lab, name)
    click.echo(f"{tries.packets} packets to the outside" if tries else "not cut")
    if how == "restore":
        faults.restore_internet(lab, name)


@fault.command("latency")
@click.argument("name")
@click.argument("milliseconds", type=click.FloatRange(0))
@told
def fault_latency(name: str, milliseconds: float) -> None:
    """Add to a host's round trip time; 0 takes it away."""
    faults.set_latency(open_lab(), name, milliseconds)


@fault.command("sshd")
@click.argument("name")
@click.argument("how", type=click.Choice(["stop", "start", "drop"]))
@told
def fault_sshd(name: str, how: str) -> None:
    """Stop or start a host's sshd, or reset the connections it has."""
    lab = open_lab()
    {"stop": faults.stop_sshd, "start": faults.start_sshd, "drop": faults.drop_ssh}[how](lab, name)


@fault.command("disk")
@click.argument("name")
@click.argument("how", type=click.Choice(["fill", "free"]))
@click.option("--leave-mb", default=0, show_default=True)
@told
def fault_disk(name: str, how: str, leave_mb: int) -> None:
    """Fill the disk of a host that has its own (``up --disk-gb``), or free it."""
    lab = open_lab()
    if how == "fill":
        faults.fill_disk(lab, name, leave_mb=leave_mb)
    else:
        faults.free_disk(lab, name)


if __name__ == "__main__":
    # `lmcache-fleet lab` runs us from elsewhere: what is printed must name the program that was called.
    main(prog_name=os.environ.get("LMCACHE_FLEET_LAB_PROG") or f"{Path(sys.executable).name} -m lab")
