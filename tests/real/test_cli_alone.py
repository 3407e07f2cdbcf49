"""lmcache-cli from the real package index, by the playbook `cli` on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MINOR = f"3.{sys.version_info[1]}"


# Counts what is asked of this machine, whoever asks it.
COUNTED = """
import atexit, os, sys
from pyinfra.connectors.local import LocalConnector
seen, inner = [], LocalConnector.run_shell_command
def run_shell_command(self, *args, **kwargs):
    seen.append(1)
    return inner(self, *args, **kwargs)
LocalConnector.run_shell_command = run_shell_command
atexit.register(lambda: open(os.environ["COUNTS"], "w").write(str(len(seen))))
from pyinfra_cli.main import main
sys.argv[0] = "pyinfra"
main()
"""


def converge(
    prefix: Path, *options: str, counts: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", COUNTED] if counts else [str(Path(sys.executable).with_name("pyinfra"))]
    command = [*program, "inventories/local.py", "deploys/apply.py"]
    given = {"python": MINOR, "interpreter": sys.executable, **variables}
    return subprocess.run(
        [*command, "--data", "playbook=playbooks/cli.yaml", "--data", f"vars={json.dumps(given)}", *options],
        cwd=ROOT, env={**os.environ, "LMCACHE_FLEET_PREFIX": str(prefix), "COUNTS": str(counts)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "prefix"
    done = converge(folder, "-y")
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_there_and_answers_without_torch(prefix: Path) -> None:
    bin_folder = prefix / "current/venv/bin"
    done = subprocess.run([bin_folder / "lmcache", "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "usage" in done.stdout.lower()
    listed = subprocess.run(
        [bin_folder / "python", "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    names = {item["name"].lower().replace("_", "-") for item in json.loads(listed.stdout)}
    assert "lmcache-cli" in names
    assert not names & {"lmcache", "torch", "vllm"}


def test_again_nothing_changes_by_one_command(prefix: Path, tmp_path: Path) -> None:
    done = converge(prefix, "--dry", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert not [item["names"] for item in plan if item["hosts_with_change"] or item["hosts_with_conditional_change"]]
    again = converge(prefix, "-y", "--json", counts=tmp_path / "counts")
    assert again.returncode == 0, again.stderr
    operations = json.loads(again.stdout)["results"]["operations"]
    assert not [item["names"] for item in operations if item["success"]]
    assert (tmp_path / "counts").read_text() == "1"


def test_beside_lmcache_it_is_refused_and_nothing_is_made(prefix: Path, tmp_path: Path) -> None:
    text = (ROOT / "playbooks/cli.yaml").read_text(encoding="utf-8")
    both = text.replace(
        'pins: ["lmcache-cli=={{ lmcache_cli }}"]', 'pins: ["lmcache-cli=={{ lmcache_cli }}", lmcache==0.5.6]'
    )
    assert both != text
    # Beside the other playbooks, whose variables the inventory may have too.
    shutil.copytree(ROOT / "playbooks", tmp_path / "playbooks")
    path = tmp_path / "playbooks" / "both.yaml"
    path.write_text(both, encoding="utf-8")
    program = str(Path(sys.executable).with_name("lmcache-fleet"))
    checked = subprocess.run([program, "check", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert "cli-beside-lmcache" in checked.stderr
    command = [str(Path(sys.executable).with_name("pyinfra")), "inventories/local.py", "deploys/apply.py"]
    data = [
        "--data",
        f"playbook={path}",
        "--data",
        f"vars={json.dumps({'python': MINOR, 'interpreter': sys.executable})}",
    ]
    run = subprocess.run(
        [*command, *data, "-y"], cwd=ROOT, env={**os.environ, "LMCACHE_FLEET_PREFIX": str(tmp_path / "none")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode != 0
    assert "cli-beside-lmcache" in run.stderr
    assert not (tmp_path / "none/releases").exists()
