"""The peers: how each is called on lab hosts, with what inventory and variables."""

from __future__ import annotations

import json
import os
import re
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
        change: command of a run in which one line of LMCache's configuration is another.
        pinned: commands that want one more package, then another version of it.
    """

    name: str
    run: tuple[str, ...]
    dry: tuple[str, ...]
    env: Mapping[str, str]
    change: tuple[str, ...]
    pinned: tuple[tuple[str, ...], tuple[str, ...]]


NAMES = ("lmcache-fleet", "stock pyinfra", "ansible", "ansible + mitogen")
#: A package that nothing else needs, in two versions that the lab's index has.
PINS = ("lab-extra==1.0", "lab-extra==1.1")


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
    pinned_playbook = work / "pinned.yaml"
    pinned_playbook.write_text(_with_one_more_package(), encoding="utf-8")
    applied = (pyinfra, "inventories/lab.py", "deploys/apply.py", *limit, "--data", f"playbook={pinned_playbook}", "-y")
    stock_inventories = {}
    more: dict[str, dict[str, Any]] = {"": {}, "changed": {"chunk_size": 512}, **{pin: {"extra": pin} for pin in PINS}}
    for name, extra in more.items():
        path = work / f"stock_inventory_{re.sub('[^a-z0-9]', '_', name)}.py"
        path.write_text(f"hosts = {_stock(hosts, {**variables, **extra})!r}\n", encoding="utf-8")
        stock_inventories[name] = str(path)
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

    def stock_run(name: str) -> tuple[str, ...]:
        return (*stock, stock_inventories[name], "deploy.py", "-y")

    def pinned(command: tuple[str, ...], option: str, prefix: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
        first, second = ((*command, option, prefix + json.dumps({"extra": pin})) for pin in PINS)
        return first, second

    return [
        Peer(
            NAMES[0],
            run=(*ours, "-y"),
            dry=(*ours, "--dry"),
            env={},
            change=(*ours, "-y", "--data", f"vars={change}"),
            pinned=pinned(applied, "--data", "vars="),
        ),
        Peer(
            NAMES[1],
            run=stock_run(""),
            dry=(*stock, stock_inventories[""], "deploy.py", "--dry"),
            env={},
            change=stock_run("changed"),
            pinned=(stock_run(PINS[0]), stock_run(PINS[1])),
        ),
        *(
            Peer(
                name,
                run=command,
                dry=(*command, "--check", "--diff"),
                env=env,
                change=(*command, "-e", change),
                pinned=pinned(command, "-e"),
            )
            for name, env, command in (
                (NAMES[2], ansible_env, (*playbook, site)),
                (NAMES[3], mitogen_env, (*playbook, site, "-e", json.dumps({"with_mitogen": True}))),
            )
        ),
    ]


def _with_one_more_package() -> str:
    """The ascend playbook with a further step, right after the one for triton-ascend."""
    document = yaml.safe_load((ROOT / "playbooks" / "ascend.yaml").read_text(encoding="utf-8"))
    steps = document["steps"]
    (after,) = [number for number, step in enumerate(steps) if step.get("packages", {}).get("name") == "triton-ascend"]
    index = {name: f"{{{{ {name} }}}}" for name in ("index_url", "trusted_hosts")}
    steps.insert(after + 1, {"packages": {"name": "extra", "pins": ["{{ extra }}"], **index}})
    document["vars"]["extra"] = PINS[0]
    return yaml.safe_dump(document, sort_keys=False)


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
