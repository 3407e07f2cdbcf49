"""The peers: how each is called on lab hosts, with what inventory and variables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import ROOT

HERE = ROOT / "benchmarks" / "peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to reach the end state.

    Args:
        name: shown in the tables.
        run: command that brings the hosts there.
        dry: command that only says what it would do.
        env: variables of both.
        change: further arguments that change one line of LMCache's configuration.
    """

    name: str
    run: tuple[str, ...]
    dry: tuple[str, ...]
    env: Mapping[str, str]
    change: tuple[str, ...]


def playbook_variables(lab_variables: Mapping[str, Any]) -> dict[str, Any]:
    """The ascend playbook's variables, with the lab's laid over: every peer gets the same values."""
    document = yaml.safe_load((ROOT / "playbooks" / "ascend.yaml").read_text(encoding="utf-8"))
    variables = {**document["vars"], **lab_variables}
    # Ansible keeps the name `port` to itself.
    variables["serve_port"] = variables.pop("port")
    return variables


def peers(hosts: Sequence[tuple[str, Mapping[str, Any]]], environment: Path, work: Path) -> list[Peer]:
    """All peers and ourselves.

    Args:
        hosts: the lab's hosts, as its inventory gives them.
        environment: virtual environment that holds ansible-core, mitogen and pyinfra.
        work: directory for the inventories that are made here.
    """
    variables = playbook_variables(hosts[0][1]["vars"])
    names = ",".join(name for name, _ in hosts)
    limit = [part for name, _ in hosts for part in ("--limit", name)]
    pyinfra = str(Path(sys.executable).parent / "pyinfra")
    change = json.dumps({"chunk_size": 512})
    ours = (pyinfra, "inventories/lab.py", "deploys/ascend.py", *limit)
    stock_inventory = work / "stock_inventory.py"
    stock_inventory.write_text(f"hosts = {_stock(hosts, variables)!r}\n", encoding="utf-8")
    stock_changed = work / "stock_inventory_changed.py"
    stock_changed.write_text(f"hosts = {_stock(hosts, {**variables, 'chunk_size': 512})!r}\n", encoding="utf-8")
    stock = (str(environment / "bin" / "pyinfra"), "--chdir", str(HERE / "stock_pyinfra"))
    ansible_inventory = work / "ansible_inventory.json"
    ansible_inventory.write_text(json.dumps(_ansible(hosts, variables)), encoding="utf-8")
    playbook = (str(environment / "bin" / "ansible-playbook"), "-i", str(ansible_inventory), "-l", names)
    site = str(HERE / "ansible" / "site.yml")
    ansible_env = {
        "ANSIBLE_CONFIG": str(HERE / "ansible" / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(work / "ansible"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(work / "cp"),
        "ANSIBLE_NOCOLOR": "1",
    }
    (plugins,) = environment.glob("lib/python3.*/site-packages/ansible_mitogen/plugins/strategy")
    mitogen_env = {
        **ansible_env, "ANSIBLE_STRATEGY_PLUGINS": str(plugins), "ANSIBLE_STRATEGY": "mitogen_linear",
    }  # fmt: skip
    return [
        Peer("lmcache-fleet", (*ours, "-y"), (*ours, "--dry"), {}, ("--data", f"vars={change}")),
        Peer(
            "stock pyinfra",
            (*stock, str(stock_inventory), "deploy.py", "-y"),
            (*stock, str(stock_inventory), "deploy.py", "--dry"),
            {},
            (str(stock_changed),),
        ),
        *(
            Peer(name, (*playbook, site), (*playbook, site, "--check", "--diff"), env, ("-e", change))
            for name, env in (("ansible", ansible_env), ("ansible + mitogen", mitogen_env))
        ),
    ]


def changed(peer: Peer) -> tuple[str, ...]:
    """The command of a run in which one line of the configuration is another."""
    if peer.name == "stock pyinfra":
        return tuple(peer.change[0] if part.endswith("stock_inventory.py") else part for part in peer.run)
    return (*peer.run, *peer.change)


def _stock(hosts: Sequence[tuple[str, Mapping[str, Any]]], variables: Mapping[str, Any]) -> list[Any]:
    return [
        (name, {**{key: value for key, value in data.items() if key != "vars"}, "peer": dict(variables)})
        for name, data in hosts
    ]


def _ansible(hosts: Sequence[tuple[str, Mapping[str, Any]]], variables: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, data in hosts:
        found[name] = {
            "ansible_host": data["ssh_hostname"],
            "ansible_user": data["ssh_user"],
            "ansible_ssh_private_key_file": data["ssh_key"],
            "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={data['ssh_known_hosts_file']}",
        }
    return {"all": {"hosts": found, "vars": dict(variables)}}


def environment_variables(peer: Peer) -> dict[str, str]:
    """What a peer's process is given beside what is there."""
    return {**peer.env, "PATH": f"{Path(peer.run[0]).parent}:{os.environ['PATH']}"}
