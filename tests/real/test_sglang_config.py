"""What SGLang is started with, as the real SGLang's own parser and the real LMCache's own loader read it.

SGLang itself needs a card; these are the parts that don't. LMCACHE_FLEET_REAL_PYTHON names the Python of an environment
that holds LMCache and vLLM, which has most of what SGLang's parser imports.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
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

SGLANG = "0.5.23"
# What its parser imports beside torch and what vLLM needs too.
ALSO = ["traitlets", "IPython", "orjson", "pybase64", "setproctitle"]
PARSE = """
import json, sys
from sglang.srt.server_args import prepare_server_args
found = prepare_server_args(sys.argv[1:])
names = ["model_path", "served_model_name", "host", "port", "enable_lmcache", "lmcache_config_file", "enable_metrics"]
print(json.dumps({name: getattr(found, name) for name in [*names, "enable_cache_report", "context_length"]}))
"""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="LMCACHE_FLEET_REAL_PYTHON must name the python of a venv with lmcache"),
]


def texts(**fields: object) -> dict[str, str]:
    """What a release holds for SGLang."""
    service = ServiceStep.model_validate({"engine": "sglang", "model": "m", **fields})
    return dict(service_files(service, "/models/m", Layout("/opt/x").release("r"), "r", None).texts)


def read(path: Path) -> list[object]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
    done = subprocess.run([PYTHON, "-c", READ, str(path)], capture_output=True, text=True, check=True, env=env)
    found: list[object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_lmcache_reads_host_and_port_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text(texts(server={"host": "10.0.0.5", "port": 5599})[SGLANG_CONFIG], encoding="utf-8")
    assert read(path) == ["10.0.0.5", 5599]


def test_the_connector_is_where_the_stand_in_has_it() -> None:
    name = "lmcache.integration.sglang.unified_lmcache_mp_connector"
    ask = f"import importlib.util as u; print(u.find_spec({name!r}) is not None)"
    done = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"


def test_sglang_takes_the_command_line(tmp_path: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    place = ["--target", str(tmp_path / "sglang"), "--python", PYTHON]
    subprocess.run(
        [uv, "pip", "install", "-q", "--no-deps", *place, *ALSO, f"sglang=={SGLANG}"], check=True, timeout=200
    )
    script = texts(served_name="q", port=30000, server={}, args=["--context-length", 4096])["bin/sglang"]
    words = shlex.split(script.split("exec ", 1)[1].replace("\\\n", ""))
    assert words[1:3] == ["-m", "sglang.launch_server"]
    done = subprocess.run(
        [PYTHON, "-c", PARSE, *words[3:]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "sglang")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {
        "model_path": "/models/m",
        "served_model_name": "q",
        "host": "127.0.0.1",
        "port": 30000,
        "enable_lmcache": True,
        "lmcache_config_file": f"/opt/x/releases/r/{SGLANG_CONFIG}",
        "enable_metrics": True,
        "enable_cache_report": True,
        "context_length": 4096,
    }
