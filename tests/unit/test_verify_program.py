"""The verification program end to end, against stand-ins that fail on purpose."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.evidence import PROGRAM_FILES, Evidence

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "templates/programs/verify.py"
FAKES = Path(__file__).parent / "verify_fakes"
STACK = [sys.executable, str(FAKES / "stack.py")]
QUICK = {"total_s": 40, "start_s": 10, "request_s": 5, "stop_s": 1, "settle_s": 0.3}


def base(mode: str, fault: str, **more: Any) -> dict[str, Any]:
    env = {"FAKE_FAULT": fault, "PYTHONHASHSEED": "0"}
    common: dict[str, Any] = {
        "mode": mode,
        "model": "m",
        "chunk_size": 8,
        "connector": {"kv_connector": "FakeConnector", "kv_role": "kv_both"},
        "env": env,
        "prompt": {"tokens": 35, "max_tokens": 6},
        "limits": dict(QUICK),
    }
    return {**common, **more}


def mp(fault: str = "", **more: Any) -> dict[str, Any]:
    parts = {"engine": {"command": [*STACK, "engine"]}, "server": {"command": [*STACK, "server"]}}
    return base("mp", fault, **{**parts, **more})


def sglang(fault: str = "", **more: Any) -> dict[str, Any]:
    parts = {"engine": {"kind": "sglang", "command": [*STACK, "sglang"]}, "server": {"command": [*STACK, "server"]}}
    return {key: value for key, value in base("mp", fault, **{**parts, **more}).items() if key != "connector"}


def server(fault: str = "", **more: Any) -> dict[str, Any]:
    parts = {"server": {"command": [*STACK, "server"]}, "client": {"command": [*STACK, "client"]}}
    config = base("server", fault, **{**parts, **more})
    return {key: value for key, value in config.items() if key not in {"model", "connector"}}


def inprocess(tmp_path: Path, fault: str = "", **more: Any) -> dict[str, Any]:
    (tmp_path / "store").mkdir()
    config = base("inprocess", fault, **more)
    config["connector"]["kv_connector_module_path"] = "vendor_plugin"
    config["connector"]["kv_connector"] = "VendorConnector"
    config["engine"] = {"plugin_imports": ["vendor_plugin"]}
    config["env"].update({"PYTHONPATH": str(FAKES), "FAKE_STORE": str(tmp_path / "store"), "LMCACHE_CHUNK_SIZE": "8"})
    config.setdefault(
        "expect",
        {"device": "npu:0", "log": ["Platform plugin ascend is activated", "Using NPU for LMCache engine"]},
    )
    return config


def verify(tmp_path: Path, config: dict[str, Any], program: Path = PROGRAM) -> tuple[int, Evidence, str]:
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    out = tmp_path / "evidence.json"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    command = [sys.executable, str(program), "--config", str(tmp_path / "cfg.json"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert out.exists(), done.stderr
    evidence = Evidence.from_json(json.loads(out.read_text()))
    assert (done.returncode == 0) == evidence.ok(), done.stderr
    return done.returncode, evidence, done.stderr


def ids(evidence: Evidence, severity: str = "error") -> list[str]:
    return [f.id for f in evidence.findings if f.severity == severity]


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """No process that carries this test's directory or the stand-in in its command line survives a test."""
    yield
    left = [pid for pid in processes_of(str(FAKES / "stack.py")) + processes_of(str(tmp_path)) if pid != os.getpid()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def processes_of(word: str) -> list[int]:
    """Processes of this test process's tree or orphans of it, by a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in command and "pytest" not in command:
                found.append(int(entry.name))
    return found


def test_mp_proves_store_hit_and_retrieve_after_a_restart(tmp_path: Path) -> None:
    code, evidence, said = verify(tmp_path, mp())
    assert code == 0, said
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 35, "stored": 32, "hit_after_reset": 32, "retrieved_after_restart": 32}
    assert evidence.outputs_equal() is True
    assert evidence.connector["class"] == "FakeConnector"
    assert evidence.device == "cpu"
    assert evidence.hash_seeds["engine/python"] == "0"
    assert len(set(evidence.pids)) == 2
    assert {name: e.asked for name, e in evidence.exits.items()} == {"server": True, "engine": True, "engine2": True}
    assert any("Retrieved 32 tokens" in line for line in evidence.proof)
    assert "\x1b" not in json.dumps(evidence.as_json())
    assert "PROVEN" in said


def test_sglang_is_proved_by_its_own_counters_and_its_own_request_to_empty_its_cache(tmp_path: Path) -> None:
    code, evidence, said = verify(tmp_path, sglang())
    assert code == 0, said
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 35, "stored": 32, "hit_after_reset": 32, "retrieved_after_restart": 32}
    hit, reference = evidence.request("hit"), evidence.request("reference")
    assert hit is not None
    assert reference is not None
    assert (hit.external_hits, hit.local_hits) == (32, 0)
    assert (reference.external_hits, reference.local_hits) == (0, 32)
    assert evidence.connector["class"] == "UnifiedLMCacheMPConnector"
    assert len(set(evidence.pids)) == 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("no-external", {"nothing-stored", "no-hit", "no-hit-after-restart"}),
        ("corrupt", {"outputs-differ"}),
        ("no-kernel", {"engine-died", "start-abandoned"}),
    ],
)
def test_sglang_that_does_not_offload_is_not_proved(tmp_path: Path, fault: str, expected: set[str]) -> None:
    code, evidence, said = verify(tmp_path, sglang(fault))
    assert code == 1, said
    assert expected <= set(ids(evidence)), said


def test_the_files_named_for_a_target_are_all_it_needs(tmp_path: Path) -> None:
    for name, source in PROGRAM_FILES.items():
        target = tmp_path / "verify" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / source).read_bytes())
    config = mp(expect={"restart": "not-applicable"})
    code, evidence, said = verify(tmp_path, config, tmp_path / "verify/verify.py")
    assert code == 0, said
    assert evidence.request("restart") is None


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("degraded", {"degraded-mode", "nothing-stored", "no-hit"}),
        ("no-external", {"nothing-stored", "hit-from-engine-prefix-cache", "reset-failed"}),
        ("no-reset", {"hit-from-engine-prefix-cache", "reset-failed"}),
        ("corrupt", {"outputs-differ"}),
        ("dies", {"engine-died"}),
        ("oom", {"out-of-memory", "request-failed"}),
        ("mismatch", {"transfer-mode-mismatch", "start-abandoned"}),
        ("server-dies", {"server-died", "port-in-use"}),
        ("hashseed", {"hashseed-missing"}),
    ],
)
def test_mp_failures_are_named(tmp_path: Path, fault: str, expected: set[str]) -> None:
    code, evidence, said = verify(tmp_path, mp(fault, expect={"restart": "not-applicable"}))
    assert code == 1
    assert expected <= set(ids(evidence)), said
    assert all(f.cause and f.remedy for f in evidence.findings)


def test_degraded_mode_is_the_cause_that_is_given(tmp_path: Path) -> None:
    _, evidence, _ = verify(tmp_path, mp("degraded", expect={"restart": "not-applicable"}))
    nothing = next(f for f in evidence.findings if f.id == "nothing-stored")
    assert "degraded mode" in nothing.cause
    assert evidence.outputs_equal() is True


def test_a_prompt_below_a_chunk_proves_nothing(tmp_path: Path) -> None:
    config = mp(prompt={"tokens": 7, "max_tokens": 6}, expect={"restart": "not-applicable"})
    code, evidence, _ = verify(tmp_path, config)
    assert code == 1
    assert "prompt-below-chunk" in ids(evidence)


def test_a_hang_in_start_is_bounded(tmp_path: Path) -> None:
    start = time.monotonic()
    code, evidence, _ = verify(tmp_path, mp("hang", limits={**QUICK, "start_s": 1.5}))
    assert code == 1
    assert ids(evidence)[0] == "start-timeout"
    assert time.monotonic() - start < 15


def test_the_whole_is_bounded(tmp_path: Path) -> None:
    code, evidence, _ = verify(tmp_path, mp("slow", limits={**QUICK, "total_s": 2.5, "request_s": 60}))
    assert code == 1
    assert "time-limit" in ids(evidence)


def test_a_child_that_does_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    code, evidence, said = verify(tmp_path, mp("stubborn", expect={"restart": "not-applicable"}))
    assert code == 0, said
    assert "had-to-be-killed" in ids(evidence, "warning")
    assert not processes_of("signal.SIGTERM, signal.SIG_IGN")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_and_still_writes(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "cfg.json").write_text(json.dumps(mp("hang")))
    out = tmp_path / "evidence.json"
    command = [sys.executable, str(PROGRAM), "--config", str(tmp_path / "cfg.json"), "--out", str(out)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 20
    while len(processes_of(str(FAKES / "stack.py"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 1
    assert "interrupted" in ids(Evidence.from_json(json.loads(out.read_text())))


def test_old_evidence_does_not_survive_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "cfg.json").write_text(json.dumps(mp("hang")))
    out = tmp_path / "evidence.json"
    out.write_text("old")
    command = [sys.executable, str(PROGRAM), "--config", str(tmp_path / "cfg.json"), "--out", str(out)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 20
    while len(processes_of(str(FAKES / "stack.py"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=20)
    assert not out.exists()
    while processes_of(str(FAKES / "stack.py")) and time.monotonic() < deadline:  # they get SIGTERM from the kernel
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mode": "mpp"}, "mode"),
        ({"chunksize": 8}, "did you mean chunk_size?"),
        ({"prompt": {"tokens": "many"}}, "prompt.tokens"),
        ({"connector": {}}, "connector.kv_connector"),
        ({"limits": {"total_s": 0}}, "limits"),
        ({"prompt": {"token_ids": [5, 5]}}, "prompt.token_ids"),
    ],
)
def test_bad_configuration_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    (tmp_path / "cfg.json").write_text(json.dumps({**mp(), **change}))
    command = [sys.executable, str(PROGRAM), "--config", str(tmp_path / "cfg.json"), "--out", str(tmp_path / "e.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_inprocess_proves_store_hit_and_retrieve_by_a_new_process(tmp_path: Path) -> None:
    code, evidence, said = verify(tmp_path, inprocess(tmp_path))
    assert code == 0, said
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 35, "stored": 32, "hit_after_reset": 32, "retrieved_after_restart": 32}
    assert evidence.device == "npu:0"
    assert evidence.connector == {"class": "VendorConnector", "module": "vendor_plugin", "source": "log"}
    assert all(evidence.log_text_seen.values())
    assert evidence.exits["engine"].code == 0 and not evidence.exits["engine"].asked


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("degraded", {"unsupported-platform", "degraded-mode", "nothing-stored", "no-hit", "log-text-missing"}),
        ("corrupt", {"outputs-differ"}),
        ("crash", {"engine-died", "out-of-memory"}),
        ("no-plugin", {"log-text-missing"}),
    ],
)
def test_inprocess_failures_are_named(tmp_path: Path, fault: str, expected: set[str]) -> None:
    code, evidence, said = verify(tmp_path, inprocess(tmp_path, fault))
    assert code == 1
    assert expected <= set(ids(evidence)), said


def test_inprocess_without_a_hash_seed_fails_and_says_so(tmp_path: Path) -> None:
    config = inprocess(tmp_path)
    del config["env"]["PYTHONHASHSEED"]
    code, evidence, _ = verify(tmp_path, config)
    assert code == 1
    assert {"hashseed-missing", "no-hit-after-restart"} <= set(ids(evidence))
    missed = next(f for f in evidence.findings if f.id == "no-hit-after-restart")
    assert "PYTHONHASHSEED" in missed.cause


# --- service ----------------------------------------------------------------------------------------------------------

SERVICE = """
import json, os, subprocess, sys, time, urllib.request
stack, home, port, zmq = sys.argv[2:6]
pidfile, log = os.path.join(home, "pid"), os.path.join(home, "log")
def stop():
    try:
        os.kill(int(open(pidfile).read()), 15)
    except (OSError, ValueError):
        pass
if sys.argv[1] in ("stop", "restart"):
    stop()
if sys.argv[1] in ("start", "restart"):
    transfer = {"kv_connector": "FakeConnector", "kv_connector_extra_config": {"lmcache.mp.port": int(zmq)}}
    command = [sys.executable, stack, "engine", "--port", port, "--kv-transfer-config", json.dumps(transfer)]
    time.sleep(0.3)
    process = subprocess.Popen(command, stdout=open(log, "a"), stderr=subprocess.STDOUT, start_new_session=True)
    open(pidfile, "w").write(str(process.pid))
"""


class Service:
    """The stand-in as a service that something else runs."""

    def __init__(self, home: Path, fault: str, seed: str | None = "0") -> None:
        self.home = home
        self.env = {**os.environ, "FAKE_FAULT": fault}
        self.env.pop("PYTHONHASHSEED", None)
        if seed is not None:
            self.env["PYTHONHASHSEED"] = seed
        self.port, self.zmq, self.http = free_ports(3)
        (home / "service.py").write_text(SERVICE)
        command = [*STACK, "server", "--port", str(self.zmq), "--http-port", str(self.http)]
        with (home / "log").open("a") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.env)
        self.run("start")

    def command(self, verb: str) -> list[str]:
        words = [
            str(self.home / "service.py"),
            verb,
            str(FAKES / "stack.py"),
            str(self.home),
            str(self.port),
            str(self.zmq),
        ]
        return [
            "/usr/bin/env",
            *[f"{k}={v}" for k, v in self.env.items() if k.startswith(("FAKE", "PYTHONHASHSEED"))],
            sys.executable,
            *words,
        ]

    def run(self, verb: str) -> None:
        subprocess.run(self.command(verb), check=True, env=self.env, timeout=20)

    def wait(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with socket_to(self.port), socket_to(self.http):
                    return
            except OSError:
                time.sleep(0.05)

    def config(self, **service: Any) -> dict[str, Any]:
        known = {
            "url": f"http://127.0.0.1:{self.port}/v1",
            "lmcache_metrics_urls": [f"http://127.0.0.1:{self.http}/metrics"],
            "log_command": ["cat", str(self.home / "log")],
            "pid_command": ["cat", str(self.home / "pid")],
        }
        return base("service", "", service={**known, **service}, expect={"restart": "not-applicable"})

    def close(self) -> None:
        self.run("stop")
        self.server.kill()
        self.server.wait()
        deadline = time.monotonic() + 5
        while processes_of(str(FAKES / "stack.py")) and time.monotonic() < deadline:
            time.sleep(0.05)


def socket_to(port: int) -> Any:
    return socket.create_connection(("127.0.0.1", port), timeout=1)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def on_service(tmp_path: Path, fault: str, seed: str | None = "0", **service: Any) -> tuple[int, Evidence, str]:
    running = Service(tmp_path, fault, seed)
    try:
        running.wait()
        config = running.config(**service)
        if service.pop("with_restart", False):
            config["service"].pop("with_restart")
            config["service"]["restart_command"] = running.command("restart")
            config["expect"] = {"restart": "required"}
        return verify(tmp_path, config)
    finally:
        running.close()


def test_service_with_reset_and_restart(tmp_path: Path) -> None:
    code, evidence, said = on_service(tmp_path, "", with_restart=True)
    assert code == 0, said
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 35, "stored": 32, "hit_after_reset": 32, "retrieved_after_restart": 32}
    assert len(set(evidence.pids)) == 2
    assert evidence.connector["class"] == "FakeConnector"


def test_service_without_development_mode_is_proven_by_its_restart(tmp_path: Path) -> None:
    code, evidence, said = on_service(tmp_path, "no-reset", with_restart=True)
    assert code == 0, said
    assert evidence.request("hit") is None


def test_service_hit_from_its_own_prefix_cache_does_not_count(tmp_path: Path) -> None:
    code, evidence, _ = on_service(tmp_path, "no-reset")
    assert code == 1
    assert ids(evidence) == ["hit-from-engine-prefix-cache"]


def test_service_without_a_hash_seed(tmp_path: Path) -> None:
    code, evidence, _ = on_service(tmp_path, "", seed=None)
    assert code == 1
    assert ids(evidence) == ["hashseed-missing"]


def test_service_whose_restart_hook_restarts_something_else(tmp_path: Path) -> None:
    code, evidence, _ = on_service(tmp_path, "", restart_command=["true"])
    assert code == 1
    assert "restart-did-nothing" in ids(evidence)


def test_service_that_is_not_there(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    code, evidence, _ = verify(tmp_path, base("service", "", service={"url": f"http://127.0.0.1:{port}"}))
    assert code == 1
    assert "request-failed" in ids(evidence)


# --- an LMCache server alone ------------------------------------------------------------------------------------------


def test_a_server_alone_is_proven_by_lmcaches_own_client_and_a_second_one(tmp_path: Path) -> None:
    code, evidence, said = verify(tmp_path, server())
    assert code == 0, said
    tokens = evidence.as_json()["tokens"]
    assert tokens == {"prompt": 35, "stored": 32, "hit_after_reset": 32, "retrieved_after_restart": 32}
    assert evidence.outputs_equal() is True
    assert {name: exit_.asked for name, exit_ in evidence.exits.items()} == {
        "server": True,
        "client": False,
        "client2": False,
    }
    assert evidence.hash_seeds == {"server/python": "0"}
    assert "LMCache's own client" in said
    assert not evidence.findings


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("keeps-nothing", {"nothing-stored", "no-hit", "no-hit-after-restart"}),
        ("corrupt", {"outputs-differ"}),
        ("forgets", {"no-hit-after-restart"}),
        ("server-dies", {"server-died", "port-in-use"}),
        ("client-dies", {"client-failed", "bad-exit"}),
        ("client-hangs", {"client-failed"}),
    ],
)
def test_a_server_alone_that_does_not_keep_kv_is_named(tmp_path: Path, fault: str, expected: set[str]) -> None:
    config = server(fault)
    config["limits"] = {**QUICK, "start_s": 3}
    code, evidence, said = verify(tmp_path, config)
    assert code == 1
    assert expected <= set(ids(evidence)), said


def test_a_client_is_credited_with_no_more_than_the_servers_counters_confirm(tmp_path: Path) -> None:
    _, evidence, _ = verify(tmp_path, server("keeps-nothing"))
    cold, hit = evidence.request("cold"), evidence.request("hit")
    # The client says that it stored, and exits with 0.
    assert evidence.exits["client"].code == 0
    assert cold is not None and hit is not None
    assert (cold.stored, hit.external_hits) == (0, 0)


def test_a_server_that_runs_already_is_asked_and_left_running(tmp_path: Path) -> None:
    ports = free_ports(2)
    command = [*STACK, "server", "--port", str(ports[0]), "--http-port", str(ports[1])]
    log = tmp_path / "service.log"
    with log.open("w") as out:
        running = subprocess.Popen(command, stdout=out, env={**os.environ, "PYTHONHASHSEED": "0"})
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and socket.socket().connect_ex(("127.0.0.1", ports[1])):
            time.sleep(0.05)
        config = server()
        del config["server"]
        config["service"] = {
            "url": f"http://127.0.0.1:{ports[1]}",
            "rpc_url": f"tcp://127.0.0.1:{ports[0]}",
            "log_command": ["cat", str(log)],
            "pid": running.pid,
        }
        code, evidence, said = verify(tmp_path, config)
        assert code == 0, said
        assert evidence.pids == [running.pid]
        assert any("Stored 32 tokens" in line for line in evidence.proof)
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


# --- an engine whose LMCache server is on another host ----------------------------------------------------------------

ELSEWHERE = {"kv_connector_extra_config": {"lmcache.mp.host": "tcp://10.0.0.5", "lmcache.mp.port": 5555}}


def asked_elsewhere(tmp_path: Path, fault: str) -> tuple[int, Evidence, str]:
    """A service whose server's log and counters can't be read."""
    running = Service(tmp_path, fault)
    try:
        running.wait()
        log = ["grep", "-v", "tokens in", str(tmp_path / "log")]
        config = running.config(lmcache_metrics_urls=[], log_command=log)
        config["connector"] |= ELSEWHERE
        return verify(tmp_path, config)
    finally:
        running.close()


def test_a_store_that_nothing_tells_of_is_shown_by_the_hit(tmp_path: Path) -> None:
    code, evidence, said = asked_elsewhere(tmp_path, "")
    assert code == 0, said
    cold, hit = evidence.request("cold"), evidence.request("hit")
    assert cold is not None and hit is not None
    assert cold.stored is None
    assert hit.external_hits == 32


def test_without_a_hit_nothing_tells_of_a_store(tmp_path: Path) -> None:
    code, evidence, _ = asked_elsewhere(tmp_path, "no-external")
    assert code == 1
    assert "nothing-stored" in ids(evidence)
