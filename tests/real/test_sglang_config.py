"""The file by which SGLang is told of its LMCache server, as the real LMCache's own loader reads it.

SGLang itself needs a card; this is the part of it that doesn't. LMCACHE_FLEET_REAL_PYTHON names the Python of an
environment that holds LMCache.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import ServiceStep
from lmcache_fleet.units import SGLANG_CONFIG, service_files

PYTHON = os.environ.get("LMCACHE_FLEET_REAL_PYTHON", "")
# What LMCache's connector for SGLang does with the file first of all.
READ = """
import json, sys
from lmcache.v1.config import load_engine_config_with_overrides
config = load_engine_config_with_overrides(config_file_path=sys.argv[1])
print(json.dumps([config.mp_host, int(config.mp_port)]))
"""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="LMCACHE_FLEET_REAL_PYTHON must name the python of a venv with lmcache"),
]


def read(path: Path) -> list[object]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
    done = subprocess.run([PYTHON, "-c", READ, str(path)], capture_output=True, text=True, check=True, env=env)
    found: list[object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_lmcache_reads_host_and_port_of_the_server(tmp_path: Path) -> None:
    service = ServiceStep.model_validate(
        {"engine": "sglang", "model": "m", "server": {"host": "10.0.0.5", "port": 5599}}
    )
    texts = service_files(service, "/models/m", Layout("/opt/x").release("r"), "r", None).texts
    path = tmp_path / "lmcache.yaml"
    path.write_text(texts[SGLANG_CONFIG], encoding="utf-8")
    assert read(path) == ["10.0.0.5", 5599]


def test_the_connector_is_where_the_stand_in_has_it() -> None:
    name = "lmcache.integration.sglang.unified_lmcache_mp_connector"
    ask = f"import importlib.util as u; print(u.find_spec({name!r}) is not None)"
    done = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"
