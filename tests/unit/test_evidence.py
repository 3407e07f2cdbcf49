"""Judging evidence: each way to have no proof is found and named; reading logs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lmcache_fleet.evidence import (
    INCIDENTS,
    Evidence,
    Exit,
    Expectations,
    Incident,
    Request,
    compare,
    judge,
    render,
)
from lmcache_fleet.evidence_log import (
    FAULTS,
    MAX_LINES,
    NOISE,
    BadLine,
    fatal_fault,
    few_bad_lines,
    few_proof_lines,
    read_log,
    strip_ansi,
)

OUTPUT: list[int | str] = [5, 9, 2, 7]


def request(phase: str, **more: Any) -> Request:
    stored = {"cold": 512, "hit": 0, "restart": 0}[phase]
    external = 0 if phase == "cold" else 512
    known: dict[str, Any] = {
        "prompt_tokens": 521,
        "output": list(OUTPUT),
        "ttft_ms": 800.0 if phase == "cold" else 70.0,
        "stored": stored,
        "external_hits": external,
        "local_hits": 0,
        "retrieved": external,
    }
    return Request(phase, **{**known, **more})


def good(**more: Any) -> Evidence:
    evidence = Evidence("mp", finished="2026-01-01T00:00:00Z", chunk_size=128)
    evidence.requests = [request("cold"), request("hit"), request("restart")]
    evidence.connector = {"class": "C", "module": "m.c", "source": "log"}
    evidence.device = "npu:0"
    evidence.hash_seeds = {"engine/python": "0"}
    evidence.exits = {"engine": Exit(-15, asked=True)}
    for name, value in more.items():
        setattr(evidence, name, value)
    return evidence


EXPECT = Expectations("C", "m.c", "npu:0")


def judged(evidence: Evidence, expect: Expectations = EXPECT) -> dict[str, str]:
    return {f.id: f.severity for f in judge(evidence, expect)}


def with_request(phase: str, **more: Any) -> Evidence:
    evidence = good()
    evidence.requests = [request(r.phase, **(more if r.phase == phase else {})) for r in evidence.requests]
    return evidence


def test_good_evidence_has_no_findings() -> None:
    assert judged(good()) == {}


def test_unfinished_evidence_is_never_ok() -> None:
    assert good().ok()
    assert not good(finished="").ok()


@pytest.mark.parametrize(
    ("evidence", "finding"),
    [
        (with_request("cold", stored=0), "nothing-stored"),
        (with_request("cold", stored=None), "nothing-stored"),
        (with_request("cold", external_hits=256), "cold-not-cold"),
        (with_request("cold", prompt_tokens=128), "prompt-below-chunk"),
        (with_request("hit", external_hits=0, local_hits=512), "hit-from-engine-prefix-cache"),
        (with_request("hit", external_hits=0, retrieved=512), "no-hit"),
        (with_request("hit", external_hits=None, retrieved=None), "no-hit"),
        (with_request("restart", external_hits=0), "no-hit-after-restart"),
        (with_request("restart", external_hits=0, local_hits=8), "hit-from-engine-prefix-cache"),
        (with_request("hit", output=[5, 9, 2, 8]), "outputs-differ"),
        (with_request("restart", output=[5, 9, 2]), "outputs-differ"),
        (good(requests=[request("cold", output=[]), request("hit", output=[])]), "outputs-not-compared"),
        (good(requests=[request("cold"), request("hit")]), "restart-not-shown"),
        (good(requests=[request("cold"), request("hit", external_hits=0)]), "no-hit"),
        (good(requests=[]), "no-cold-request"),
        (good(connector={}), "connector-not-loaded"),
        (good(connector={"class": "D", "module": None}), "connector-not-loaded"),
        (good(connector={"class": "C", "module": "vllm.own"}), "connector-module-differs"),
        (good(device=None), "wrong-device"),
        (good(device="cpu"), "wrong-device"),
        (good(device="npu:1"), "wrong-device"),
        (good(hash_seeds={"engine/python": None}), "hashseed-missing"),
        (good(hash_seeds={"a": "0", "b": "1"}), "hashseed-differs"),
        (good(exits={"engine": Exit(1, asked=False)}), "bad-exit"),
        (good(exits={"engine": Exit(-9, asked=False)}), "out-of-memory"),
        *[(good(incidents=[Incident(kind, "p", "d")]), kind) for kind in INCIDENTS],
        *[(good(bad_lines=[BadLine(f.id, "engine", "line")]), f.id) for f in FAULTS if f.severity == "error"],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_lack_of_proof_is_an_error_with_cause_and_remedy(evidence: Evidence, finding: str) -> None:
    findings = {f.id: f for f in judge(evidence, EXPECT)}
    assert findings[finding].severity == "error"
    assert all(f.message and f.cause and f.remedy for f in findings.values())
    evidence.findings = list(findings.values())
    assert not evidence.ok()


@pytest.mark.parametrize(
    ("evidence", "finding"),
    [
        (with_request("hit", external_hits=384), "partial-hit"),
        (with_request("hit", busy=True), "busy-service"),
        (good(chunk_size_seen=256, requests=[request("cold"), request("restart")]), "chunk-size-differs"),
        (good(exits={"engine": Exit(-9, asked=True, killed=True)}), "had-to-be-killed"),
        (good(bad_lines=[BadLine("engine-died", "engine", "line", stopping=True)]), "engine-died"),
        (
            good(requests=[replace(request(p), output=[3, 3, 3, 3]) for p in ("cold", "restart")]),
            "outputs-tell-nothing",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_remarks_do_not_fail(evidence: Evidence, finding: str) -> None:
    assert judged(evidence) == {finding: "warning"}


def test_the_engines_own_counter_decides_over_the_caches_log() -> None:
    """LMCache's lookups also rise for a prefix that the engine then serves itself."""
    assert request("hit", external_hits=0, retrieved=512).offloaded() == 0
    assert request("hit", external_hits=None, retrieved=512).offloaded() == 512


def test_the_cause_of_nothing_stored_is_looked_for() -> None:
    degraded = with_request("cold", stored=0)
    degraded.bad_lines = [BadLine("degraded-mode", "engine", "x")]
    short = with_request("cold", stored=0, prompt_tokens=100)
    causes = [next(f.cause for f in judge(e, EXPECT) if f.id == "nothing-stored") for e in (degraded, short)]
    assert "degraded mode" in causes[0]
    assert "shorter than a chunk" in causes[1]


def test_a_missing_hash_seed_is_the_cause_of_a_miss_after_restart() -> None:
    evidence = with_request("restart", external_hits=0)
    evidence.hash_seeds = {"engine/python": None}
    miss = next(f for f in judge(evidence, EXPECT) if f.id == "no-hit-after-restart")
    assert "PYTHONHASHSEED" in miss.cause


def test_expectations_can_ask_for_less() -> None:
    evidence = good(requests=[request("cold"), request("hit")], hash_seeds={"e": None}, device="cpu")
    assert judged(evidence, Expectations(restart="not-applicable", hash_seed="ignored")) == {}
    advised = judged(evidence, Expectations(restart="not-applicable", hash_seed="advised"))
    assert advised == {"hashseed-missing": "warning"}


def test_a_device_without_a_number_is_any_of_its_kind() -> None:
    assert judged(good(device="npu"), replace(EXPECT, device="npu:0")) == {}
    assert judged(good(device="npu:3"), replace(EXPECT, device="npu")) == {}


def test_expected_log_text_and_versions() -> None:
    expect = replace(EXPECT, log_text=("Using NPU",), versions={"lmcache": "0.4.4"})
    evidence = good(log_text_seen={"Using NPU": True}, versions={"lmcache": "0.4.4"})
    assert judged(evidence, expect) == {}
    assert set(judged(good(), expect)) == {"log-text-missing", "version-differs"}


def test_an_output_from_the_engines_own_cache_says_nothing_about_lmcache() -> None:
    evidence = good(requests=[request("cold"), request("hit", external_hits=0, local_hits=512, output=[5, 9, 2, 8])])
    assert set(judged(evidence, replace(EXPECT, restart="not-applicable"))) == {"hit-from-engine-prefix-cache"}


def test_a_fault_that_is_named_makes_tracebacks_needless() -> None:
    evidence = good(bad_lines=[BadLine("degraded-mode", "e", "x"), BadLine("traceback", "e", "y")])
    assert "traceback" not in judged(evidence)
    evidence.bad_lines.append(BadLine("traceback", "other", "z"))
    assert "traceback" in judged(evidence)


# --- comparing outputs ------------------------------------------------------------------------------------------------


def likely(*tokens: dict[int, float]) -> list[dict[str, float]]:
    return [{str(t): p for t, p in at.items()} for at in tokens]


def test_outputs_may_part_at_a_tie() -> None:
    cold = Request("cold", output=[5, 9, 2], logprobs=likely({5: -0.1}, {9: -1.00, 8: -1.03}, {2: -0.5}))
    hit = Request("hit", output=[5, 8, 4], logprobs=likely({5: -0.12}, {8: -1.00, 9: -1.01}, {4: -0.5}))
    assert compare(cold, hit).equal
    assert compare(cold, hit).tie_at == 1


def test_outputs_that_part_where_there_is_no_tie_differ() -> None:
    cold = Request("cold", output=[5, 9], logprobs=likely({5: -0.1}, {9: -0.2, 8: -2.9}))
    hit = Request("hit", output=[5, 8], logprobs=likely({5: -0.1}, {8: -0.3, 9: -2.0}))
    assert not compare(cold, hit).equal
    # Nor does a tie excuse what was wrong before it.
    wrong = Request("hit", output=[5, 8], logprobs=likely({5: -1.9}, {8: -0.2, 9: -0.2}))
    tied = Request("cold", output=[5, 9], logprobs=likely({5: -0.1}, {9: -0.2, 8: -0.2}))
    assert not compare(tied, wrong).equal


def test_without_log_probabilities_every_token_counts() -> None:
    assert not compare(Request("cold", output=[5, 9]), Request("hit", output=[5, 8])).equal
    assert compare(Request("cold", output=[5, 9]), Request("hit", output=[5, 9])).same_as == "cold"


def test_the_engines_own_cache_is_the_reference() -> None:
    reference = Request("reference", output=[5, 9, 1, 1], external_hits=0, local_hits=512)
    evidence = good()
    evidence.requests = [request("cold"), reference, *(request(p, output=[5, 9, 1, 1]) for p in ("hit", "restart"))]
    assert judged(evidence) == {}
    assert [c.same_as for c in evidence.comparisons()] == ["reference", "reference"]
    assert "own cache" in render(evidence)
    # A reference that LMCache had a part in says nothing.
    reference.external_hits, reference.local_hits = 512, 0
    assert "outputs-differ" in judged(evidence)


# --- JSON and text ----------------------------------------------------------------------------------------------------


def test_json_round_trip_keeps_the_verdict() -> None:
    evidence = good(bad_lines=[BadLine("engine-died", "e", "x")], incidents=[Incident("engine-died", "p", "d")])
    evidence.findings = judge(evidence, EXPECT)
    read = Evidence.from_json(json.loads(json.dumps(evidence.as_json())))
    assert read == evidence
    assert judge(read, EXPECT) == evidence.findings


def test_json_of_a_newer_writer_is_read() -> None:
    value = good().as_json()
    value["something"] = value["requests"][0]["new"] = 1
    assert Evidence.from_json(value).requests[0].stored == 512


@pytest.mark.parametrize("value", [{}, {"format": "x"}, {"format": good().as_json()["format"], "requests": [3]}])
def test_what_is_not_evidence_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Evidence.from_json(value)


def test_derived_figures_are_in_the_json() -> None:
    value = good().as_json()
    assert value["tokens"] == {"prompt": 521, "stored": 512, "hit_after_reset": 512, "retrieved_after_restart": 512}
    assert value["ttft_ms"]["after_restart"] == 70.0
    assert value["outputs_equal"] is True and value["ok"] is True


def test_the_table_says_the_verdict_and_stays_narrow() -> None:
    evidence = with_request("hit", external_hits=0, local_hits=512)
    evidence.findings = judge(evidence, EXPECT)
    text = render(evidence)
    assert "NOT PROVEN" in text and "hit-from-engine-prefix-cache" in text
    assert max(len(line) for line in text.splitlines()) <= 120


# --- logs -------------------------------------------------------------------------------------------------------------

LMCACHE = "\x1b[32;20m[2026-12-01 09:37:03,518] LMCache INFO:\x1b[0m "
MP_SERVER = f"""{LMCACHE}TokenHasher initialized: chunk_size=128, hash_algorithm=blake3
{LMCACHE}Registered non-GPU context for instance 27 (model=m, world_size=1)
{LMCACHE}Stored 896 tokens in 0.009 seconds \x1b[3m(e.py:447:lmcache.v1.transfer)\x1b[0m
{LMCACHE}Prefetch request completed (L1+L2): 7/7 retained keys (7 L1, 0 L2) in 2.4 ms
{LMCACHE}Retrieved 896 tokens in 0.004 seconds
"""
MP_ENGINE = f"""(APIServer pid=1) INFO 12-01 non-default args: {{'kv_connector_module_path': 'x.y_connector'}}
(Worker pid=2) INFO 12-01 [factory.py:62] Creating v1 connector with name: LMCacheMPConnector and engine_id: 9b
{LMCACHE}Creating transfer context (device_type=cpu, mode=engine_driven) \x1b[3m(w.py:1:lmcache.v1.worker)\x1b[0m
{LMCACHE}Registering kv caches! \x1b[3m(c.py:867:lmcache.integration.vllm.lmcache_mp_connector)\x1b[0m
"""
IN_PROCESS = """NPU device is available. Using NPU for LMCache engine.
[req_id=0] Stored 512 out of total 521 tokens. size: 0.0100 GB, cost 1.0 ms, throughput: 1.0 GB/s; offload_time: 1 ms
[req_id=1] Retrieved 512 out of 512 required tokens (from 521 total tokens). size: 0.01 gb, cost 1.0 ms
"""


def test_log_of_the_mp_server_and_engine() -> None:
    server, engine = read_log(MP_SERVER, "server"), read_log(MP_ENGINE, "engine")
    assert (server.stored, server.retrieved, server.chunk_size) == (896, 896, 128)
    assert engine.connector_class == "LMCacheMPConnector"
    assert engine.connector_modules == ["lmcache.integration.vllm.lmcache_mp_connector"]
    assert engine.device == "cpu"
    assert not server.bad and not engine.bad
    assert all("\x1b" not in line for line in server.proof)


def test_log_of_the_in_process_connector() -> None:
    facts = read_log(IN_PROCESS, "engine")
    assert (facts.stored, facts.retrieved, facts.device) == (512, 512, "npu")


BAD = {
    "degraded-mode": "LMCache ERROR: x. System will operate in degraded mode (recompute).",
    "no-device-connector": "RuntimeError: No supported cpu connector found.",
    "unsupported-platform": "RuntimeError: Unsupported device platform for LMCache engine.",
    "transfer-mode-mismatch": "No handler registered for operation register_kv_cache_engine_driven_context",
    "hashseed-missing": "LMCache WARNING: Using builtin hash without PYTHONHASHSEED set. Set it",
    "connector-signature": "ValueError: Connector X uses deprecated 2-argument constructor signature.",
    "connector-not-found": "ValueError: Unsupported connector type: LMCacheAscendConnector",
    "library-missing": "ImportError: libatb.so: cannot open shared object file: No such file or directory",
    "triton-mixture": "TypeError: '>=' not supported between instances of 'NoneType' and 'tuple'",
    "out-of-memory": "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB",
    "pinned-memory": "RuntimeError: Unable to pin host memory with error code: -1",
    "transfer-error": "[2026] LMCache ERROR: Failed to retrieve KV cache for chunk 3",
    "engine-died": "(EngineCore pid=9) ERROR 12-01 09:00:00 [core.py:1] EngineCore encountered a fatal error.",
    "engine-stalled": "INFO No available shared memory broadcast block found in 60 seconds",
    "port-in-use": "OSError: [Errno 98] Address already in use",
    "log-error": "(Worker pid=2) ERROR 12-01 09:00:00 [x.py:1] something",
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_lines_are_recognised(fault: str) -> None:
    assert fault in [b.fault for b in read_log("fine\n\x1b[31m" + BAD[fault] + "\x1b[0m\n", "engine").bad]


def test_a_line_may_tell_of_two_faults() -> None:
    line = "RuntimeError: No supported cpu connector found. . System will operate in degraded mode (recompute)."
    assert {b.fault for b in read_log(line, "e").bad} == {"no-device-connector", "degraded-mode"}


@pytest.mark.parametrize(
    "line",
    [
        "WARNING [vllm.py:2179] Turning off hybrid kv cache manager because `--kv-transfer-config` may fail",
        "(Worker pid=1) WARNING [utils.py:597] Failed to create oneDNN linear, fallback to torch linear.",
        "INFO non-default args: {'kv_load_failure_policy': 'fail', 'error': None}",
        "LMCache WARNING: LazyMemoryAllocator requires memory pinning which is not supported on the current backend.",
        "INFO kernel ErrorHandler ready",
    ],
)
def test_ordinary_warnings_are_not_bad(line: str) -> None:
    assert read_log(line, "engine").bad == []


def test_a_traceback_is_shown_by_its_exception() -> None:
    text = """Traceback (most recent call last):
  File "a.py", line 1, in f
    raise ValueError("why")
ValueError: why
"""
    assert [(b.fault, b.line) for b in read_log(text, "e").bad] == [("traceback", "ValueError: why")]


def test_known_noise_is_allowed_by_name() -> None:
    facts = read_log("Assertion failed: pfd.revents & POLLIN (src/signaler.cpp:265)\n", "engine")
    assert facts.noise == {"zmq-pfd-revents": 1} and not facts.bad


def test_what_the_engine_says_at_exit_is_noise_only_at_exit() -> None:
    line = "(APIServer pid=1) ERROR 12-01 [core_client.py:1] Engine core proc EngineCore_DP0 died unexpectedly"
    assert read_log(line, "engine", stopping=True).noise == {"engine-core-exit": 1}
    assert [b.fault for b in read_log(line, "engine").bad] == ["engine-died"]
    assert read_log(line, "engine", True, ["engine-core-exit"]).bad


def test_fatal_faults_end_the_waiting() -> None:
    fault = fatal_fault("ok\n" + BAD["transfer-mode-mismatch"])
    assert fault is not None and fault.id == "transfer-mode-mismatch"
    assert fatal_fault(BAD["degraded-mode"]) is None


def test_few_lines_are_kept_and_specific_ones_first() -> None:
    lines = [BadLine("log-error", "e", f"line {i}") for i in range(50)] + [BadLine("degraded-mode", "e", "x")] * 3
    kept = few_bad_lines(lines)
    assert len(kept) == MAX_LINES and kept[0].fault == "degraded-mode" and kept[1].fault == "log-error"
    proof = few_proof_lines([f"Stored {i} tokens in 1 s" for i in range(30)] + ["Creating v1 connector with name: C"])
    assert len(proof) == 9 and "Stored 29" in proof[7]


def test_ids_are_unique_and_texts_are_there() -> None:
    assert len({f.id for f in FAULTS}) == len(FAULTS)
    assert len({n.name for n in NOISE}) == len(NOISE)
    assert all(f.message and f.cause and f.remedy for f in FAULTS)
    assert all(n.why for n in NOISE)


def test_ansi_codes_of_all_kinds_go() -> None:
    assert strip_ansi("\x1b[32;20ma\x1b[0m \x1b[3mb\x1b[K") == "a b"
