"""docs/performance.md from the results: every figure there comes from here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT

RESULTS = ROOT / "benchmarks" / "results.json"

_OURS = "lmcache-fleet"
_HEAD = """# Performance

Written by `{command}` on {date}: {cpus} cores, {arch}, Python {python}; medians of {runs} runs. All hosts are lab hosts
(docs/lab.md) on the same machine, which also runs the control process: on machines of their own, what the hosts do side
by side costs less for everybody. Read the ratios, not the seconds.

The peers (`benchmarks/peers/`) bring blank hosts to the end state of `deploys/ascend.py` as far as they have the means:
Ansible with pipelining, ControlPersist and forks for all hosts, the same with mitogen's strategy, and pyinfra's own
operations. None of them proves the KV offload, keeps the old release serving, or shares a native build among hosts.
"""


_COMMANDS = """## The commands

`scripts/bench` runs all of it, `scripts/bench --quick` a short form without this page; `benchmarks/peers.py` has every
peer's command and inventory. In the tables, without paths and `--limit`:

```text
lmcache-fleet      pyinfra inventories/lab.py deploys/ascend.py -y
  dry run          … --dry
  one line         … -y --data vars='{"chunk_size": 512}'
  one package      pyinfra inventories/lab.py deploys/apply.py -y --data playbook=pinned.yaml --data vars='{"extra": …}'
stock pyinfra      pyinfra --chdir benchmarks/peers/stock_pyinfra INVENTORY deploy.py -y
ansible            ansible-playbook -i INVENTORY benchmarks/peers/ansible/site.yml
  dry run          … --check --diff
ansible + mitogen  ANSIBLE_STRATEGY=mitogen_linear ansible-playbook -i INVENTORY benchmarks/peers/ansible/site.yml
many hosts         pyinfra benchmarks/many_hosts.py deploys/ascend.py -y
                   lmcache-fleet plan benchmarks/many_hosts.py deploys/ascend.py --json
```
"""


_SPEED = ("<!-- speed: written by scripts/bench -->\n", "<!-- /speed -->")
_README = {
    "README.md": (
        "{hosts} lab hosts and the control process on one machine of {cpus} cores ({arch}), {date}, by `{command}`; "
        "the others' figures are multiples of ours:",
        "| | ours | pyinfra's own operations | Ansible, pipelining | Ansible, mitogen |",
        {
            "converged": "nothing to do",
            "dry_run": "dry run, nothing to do",
            "first_converge": "blank hosts, until verified",
        },
    ),
    "README.zh.md": (
        "{hosts} 台实验主机与控制进程在同一台 {cpus} 核机器上（{arch}），{date}，由 `{command}` 测得；"
        "其他各列是我们用时的倍数：",
        "| | 本项目 | pyinfra 自带操作 | Ansible（pipelining） | Ansible（mitogen） |",
        {"converged": "无事可做", "dry_run": "试运行，无事可做", "first_converge": "空白主机，直到验证完成"},
    ),
}


def write_pages(results: dict[str, Any], root: Path = ROOT) -> list[Path]:
    """Put the figures into docs/performance.md and both READMEs.

    Args:
        results: as `scripts/bench` wrote them.
        root: of the checkout.
    """
    texts = {"docs/performance.md": page(results)}
    for name in _README:
        before, start, rest = (root / name).read_text(encoding="utf-8").partition(_SPEED[0])
        texts[name] = before + start + speed_table(results, name) + _SPEED[1] + rest.partition(_SPEED[1])[2]
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    return [root / name for name in texts]


def speed_table(results: dict[str, Any], readme: str) -> str:
    """The short table of a README.

    Args:
        results: as `scripts/bench` wrote them.
        readme: its name, which decides the language.
    """
    head, columns, labels = _README[readme]
    machine = results["machine"]
    lines = [
        head.format(hosts=results["hosts"], date=results["date"], command=results["command"], **machine),
        "",
        columns,
        "|---" * 5 + "|",
    ]
    for what, label in labels.items():
        others = " | ".join(f"{ratio:.1f}×" for ratio in ratios(results, what).values())
        lines.append(f"| {label} | {results['peers'][_OURS][what]['wall_s']:.1f} s | {others} |")
    return "\n".join(lines) + "\n"


def page(results: dict[str, Any]) -> str:
    """The page.

    Args:
        results: as `scripts/bench` wrote them.
    """
    machine = results["machine"]
    head = _HEAD.format(
        command=results["command"], date=results["date"], cpus=machine["cpus"], arch=machine["arch"],
        python=machine["python"], runs=results["runs"],
    )  # fmt: skip
    again = [f"Measured anew: {name} ({when})." for name, when in results.get("again", {}).items()]
    parts = [
        head + "\n" + "\n".join(again) + "\n" if again else head,
        _goals(results),
        _peers(results),
        _where(results),
        _floor(results),
        _scale(results),
        _COMMANDS,
    ]
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Goal:
    """A number to hold.

    Args:
        what: what is compared.
        measured: the figure.
        unit: after the figures.
        least: the measured figure must be at least this; None for goals with an upper end.
        most: the measured figure must be at most this; None likewise.
    """

    what: str
    measured: float
    unit: str = "×"
    least: float | None = None
    most: float | None = None

    @property
    def reached(self) -> bool:
        """Whether it holds."""
        return (self.least is None or self.measured >= self.least) and (self.most is None or self.measured <= self.most)


def goals(results: dict[str, Any]) -> list[Goal]:
    """What was to be reached, and what was.

    Args:
        results: as `scripts/bench` wrote them.
    """
    converged, hosts = ratios(results, "converged"), results["hosts"]
    ran = results["peers"][_OURS]["converged"]["wall_s"]
    ssh = results["ssh_true"][str(hosts)]["ssh_true"]["wall_s"]
    floor = ssh + results["pyinfra_start"]["wall_s"]
    cold = results["peers"]["ansible"]["first_converge"]["wall_s"]
    warm = results["warm"]["first_converge_warm_store"]["wall_s"]
    same = f"nothing to do on {hosts} hosts, faster than"
    found = [
        Goal(f"{same} Ansible with pipelining", converged["ansible"], least=15),
        Goal(f"{same} Ansible with mitogen", converged["ansible + mitogen"], least=10),
        Goal(f"{same} stock pyinfra", converged["stock pyinfra"], least=5),
        Goal("nothing to do, as a multiple of `ssh HOST true` and pyinfra's start", ran / floor, most=3),
        Goal("blank hosts with a warm artifact store, faster than Ansible with pip", cold / warm, least=3),
    ]
    planned = [row for row in results["scale"] if row["command"] == "lmcache-fleet plan" and row["delay_s"] == 0]
    for row in planned:
        if row["hosts"] == 500:
            each = cpu_each(row, planned[0])
            found.append(Goal("500 hosts planned, CPU of the control machine a host", each, unit=" ms", most=20))
    return found


def cpu_each(row: dict[str, Any], least: dict[str, Any]) -> float:
    """Milliseconds of CPU that each further host costs.

    Args:
        row: a measurement on many hosts.
        least: the same on fewer.
    """
    further = row["hosts"] - least["hosts"]
    return float(1000 * (row["cpu_s"] - least["cpu_s"]) / further)


def _goals(results: dict[str, Any]) -> str:
    lines = ["## Goals\n", "| what | goal | measured | |", "|---|---|---|---|"]
    for goal in goals(results):
        bound = f"≥ {goal.least:g}" if goal.least is not None else f"≤ {goal.most:g}"
        verdict = "reached" if goal.reached else "**missed**"
        lines.append(f"| {goal.what} | {bound}{goal.unit} | {goal.measured:.1f}{goal.unit} | {verdict} |")
    return "\n".join(lines) + "\n"


def ratios(results: dict[str, Any], what: str) -> dict[str, float]:
    """How many times as long as ours each peer takes.

    Args:
        results: as `scripts/bench` wrote them.
        what: name of the measurement.
    """
    ours = results["peers"][_OURS][what]["wall_s"]
    return {name: found[what]["wall_s"] / ours for name, found in results["peers"].items() if name != _OURS}


def _peers(results: dict[str, Any]) -> str:
    names = list(results["peers"])
    labels = {
        "converged": "nothing to do",
        "dry_run": "dry run, nothing to do",
        "one_line_changed": "one line of the configuration changed",
        "one_pin_changed": "another version of one package",
        "first_converge": "blank hosts",
    }
    lines = [
        f"## {results['hosts']} hosts\n",
        "| wall seconds | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for what, label in labels.items():
        cells = []
        for name in names:
            wall = results["peers"][name][what]["wall_s"]
            times = "" if name == _OURS else f" ({ratios(results, what)[name]:.1f}×)"
            cells.append(f"{wall:.1f}{times}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    warm = results["warm"]
    blanks = [" – "] * (len(names) - 1)
    for key, label in (
        ("first_converge_warm_store", "blank hosts, artifact store warm"),
        ("reimage_to_verified", "one host reimaged, until verified"),
    ):
        lines.append(f"| {label} | " + " | ".join([f"{warm[key]['wall_s']:.1f}", *blanks]) + " |")
    counts = {"commands_per_host": "commands a host, nothing to do", "kib_per_host": "KiB a host, likewise"}
    for key, label in counts.items():
        cells = [f"{results['peers'][name]['traffic'][key]:g}" for name in names]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    note = (
        "\nA changed line of configuration is a whole new release for us: built beside the serving one, proved "
        "off-line, switched to, proved on-line. The peers write the file and restart.\n"
    )
    return "\n".join(lines) + "\n" + note + "\n" + _bars(results)


def _where(results: dict[str, Any]) -> str:
    """Where the time of blank hosts goes; steps below half a second together."""
    cost = results["warm"]["first_converge_warm_store"]
    if "steps" not in cost:
        return ""
    long = [(name, seconds) for name, seconds in cost["steps"] if seconds >= 0.5]
    rest = cost["wall_s"] - sum(seconds for _, seconds in long)
    lines = [
        f"## Where the time of {results['hosts']} blank hosts goes\n",
        "With a warm artifact store. pyinfra begins a step on a host when all have ended the one before.\n",
        "| step | seconds | share |",
        "|---|---|---|",
    ]
    for name, seconds in [*long, ("start, connections, survey and all shorter steps", rest)]:
        lines.append(f"| {name} | {seconds:.1f} | {100 * seconds / cost['wall_s']:.0f} % |")
    proofs = sum(seconds for name, seconds in long if "verify offline" in name or name.endswith(" service"))
    note = (
        f"\nOf it {proofs:.0f} s are the proof off-line and the switch with its restart and proof on-line: the peers "
        "start the service and ask it nothing. The rest is what apt and the index take, as for them.\n"
    )
    return "\n".join(lines) + "\n" + note


def _bars(results: dict[str, Any]) -> str:
    names = list(results["peers"])
    values = ", ".join(f"{results['peers'][name]['converged']['wall_s']:.1f}" for name in names)
    axis = ", ".join(f'"{name}"' for name in names)
    return (
        "```mermaid\nxychart-beta\n"
        f'    title "Nothing to do on {results["hosts"]} hosts"\n    x-axis [{axis}]\n'
        f'    y-axis "seconds"\n    bar [{values}]\n```\n'
    )


def _floor(results: dict[str, Any]) -> str:
    start = results["pyinfra_start"]["wall_s"]
    lines = [
        "## Beside the floor\n",
        f"pyinfra's own start takes {start:.2f} s; nothing that runs in it is faster.\n",
        "| hosts | converged run | `ssh HOST true` to all | floor (both) | times the floor |",
        "|---|---|---|---|---|",
    ]
    for count, found in results["ssh_true"].items():
        ran, ssh = found["converged"]["wall_s"], found["ssh_true"]["wall_s"]
        lines.append(f"| {count} | {ran:.2f} | {ssh:.2f} | {ssh + start:.2f} | {ran / (ssh + start):.1f} |")
    return "\n".join(lines) + "\n"


def _scale(results: dict[str, Any]) -> str:
    lines = [
        "## Many hosts\n",
        "pyinfra's `@fake` connector answers with what one converged lab host answered. CPU a host is what each "
        "further host costs: the smallest fleet's is taken off.\n",
        "| command | hosts | delay a command | wall | CPU | CPU a host | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    least = {row["command"]: row for row in reversed(results["scale"]) if row["delay_s"] == 0}
    for row in results["scale"]:
        base = least[row["command"]]
        each = f"{cpu_each(row, base):.1f} ms" if row["hosts"] > base["hosts"] else "–"
        lines.append(
            f"| `{row['command']}` | {row['hosts']} | {1000 * row['delay_s']:.0f} ms | {row['wall_s']:.1f} s | "
            f"{row['cpu_s']:.1f} s | {each} | {row['peak_mib']:.0f} MiB |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_pages(json.loads(RESULTS.read_text(encoding="utf-8")))
