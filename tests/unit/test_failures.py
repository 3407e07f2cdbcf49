"""Each rule of rules/failures.yaml is hit by a text as hosts really print it, and no earlier rule takes it."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import lmcache_fleet.failures
from lmcache_fleet.failures import Failure, explain, failure_table

RULES = yaml.safe_load(
    (Path(lmcache_fleet.failures.__file__).parent / "rules/failures.yaml").read_text(encoding="utf-8")
)

# A piece of the rule's cause → lines that must be explained by it.
EXAMPLES: dict[str, list[str]] = {
    "took another build than the one wanted": ["wrong build: torch is 2.11.0, wanted *+cu129"],
    "built for another torch": [
        "import lmcache.cuda_ops: ImportError: /r/lmcache/cuda_ops.so: undefined symbol: _ZN3c105ErrorC1ENS_14SourceLocationESs",
        "ImportError: /r/lmcache/cuda_ops.abi3.so: undefined symbol: _ZNK2at10TensorBase4itemIiEET_v",
        "ImportError: c_ops.so: undefined symbol: torch_abi_2_11_0",
    ],
    "built for a CUDA that is not here": ["ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"],
    "ROCm's runtime of the wheel's version": ["ImportError: libamdhip64.so.7: cannot open shared object file: No such file or directory"],
    "oneAPI's runtime": ["ImportError: libsycl.so.8: cannot open shared object file: No such file or directory"],
    "MUSA SDK's libraries": ["ImportError: libmusart.so.4: cannot open shared object file: No such file or directory"],
    "MACA's libraries": ["ImportError: libmcruntime.so: cannot open shared object file: No such file or directory"],
    "no such native module": ["import lmcache.cuda_ops: ModuleNotFoundError: No module named 'lmcache.cuda_ops'"],
    "two accelerators at once": ["RuntimeError: Multiple profiles explicitly requested: cuda, rocm"],
    "oneAPI's compiler": ["RuntimeError: icpx not found. Please source oneAPI setvars.sh first"],
    "neither 12 nor 13": ["ValueError: LMCACHE_CUDA_MAJOR must be '12' or '13', got '11'"],
    "CUDA extension on a host without CUDA": ["OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."],
    "bash's `source` under a plain sh": ["/bin/sh: 1: source: not found"],
    "CANN 9.1 moved this header": ["hixl.cpp:3:10: fatal error: runtime/rt_external_device.h: No such file or directory"],
    "CANN 8.5 moved the HCCL headers": ["x.h:1:10: fatal error: hccl/hccl_network_pub.h: No such file or directory"],
    "NUMA headers": ["mem.cpp:9:10: fatal error: numaif.h: No such file or directory"],
    "Python headers": ["/usr/x.h:1:10: fatal error: Python.h: No such file or directory"],
    "objects of an earlier build": ["distutils.errors.UnknownFileError: unknown file type '.o' (from 'a.o')"],
    "refuses connectors without kv_cache_config": ["ValueError: Connector X uses deprecated 2-argument constructor signature"],
    "community triton": ["AttributeError: module 'triton' has no attribute 'constexpr_function'"],
    "NNAL/ATB": ["ImportError: libatb.so: cannot open shared object file: No such file or directory"],
    "CANN's environment isn't loaded": ["ImportError: libhccl.so: cannot open shared object file: No such file or directory"],
    "driver's libraries": ["ImportError: libascend_hal.so: cannot open shared object file: No such file or directory"],
    "NPU is in use": ["dcmi module initialize failed. ret is -8020"],
    "management interface": ["dcmi module initialize failed. ret is -8005"],
    "neither an NPU nor a SoC name": ["RuntimeError: No available NPU found, set SOC_VERSION"],
    "no platform file": ["ERROR: file '/cann/data/platform_config/Ascend910b3.ini' is not found"],
    "pins can't be resolved": [
        "  × No solution found when resolving dependencies:",
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io",
        "ERROR: No matching distribution found for torch==9",
        "  ╰─▶ Because a==9 was not found, we can conclude that your requirements are unsatisfiable.",
    ],
    "not the one that was pinned": [
        "error: Hash mismatch for `a==1`",
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
    ],
    "disk is full": ["OSError: [Errno 28] No space left on device", "tar: x: Cannot write: No space left on device"],
    "downloaded file is damaged": [
        "  cause: Bad uncompressed size (got 00000b69, expected 00000b43) for file: vllm_ascend/worker.py",
        "zipfile.BadZipFile: Bad CRC-32 for file 'vllm_ascend/worker.py'",
        "ERROR: Wheel 'vllm-ascend' located at /tmp/pip-unpack-x/vllm_ascend-0.23.0-py3-none-any.whl is invalid.",
    ],
    "package manager's lock": [
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1 (apt)",
        "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
    ],
    "want of memory": [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "sh: line 1: 4242 Killed                  python setup.py",
        "virtual memory exhausted: Cannot allocate memory",
        "x.service: A process of this unit has been killed by the OOM killer (oom-kill).",
        "the build was ended by signal 9",
        "error: command '/usr/bin/cmake' failed with exit status 137",
    ],
    "repository can't be reached": [
        "E: Failed to fetch http://deb.example/x.deb  404  Not Found",
        "Temporary failure in name resolution",
        "connect to 10.0.0.1 port 80: Connection refused",
        "error: error sending request for url (https://pypi.example/simple/a/)",
        "  Caused by: HTTP status server error (503 Service Unavailable)",
        # What the index is on makes no difference to one who was fetching from it.
        "error: Failed to fetch: `http://127.0.0.1:3141/simple/a/`",
        "fatal: unable to access 'http://127.0.0.1:1/x.git/': Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server",
        "  Could not connect to deb.example:80 (10.0.0.1). - connect (111: Connection refused)",
        "Connecting to pypi.example|10.0.0.1|:443... failed: Connection refused.",
        "ERROR: Could not install packages due to an OSError: HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded with url: /files/a.whl (Caused by NewConnectionError('<x>: Failed to establish a new connection: [Errno 111] Connection refused'))",
    ],
    "container registry can't be reached": [
        'Error: initializing source docker://10.0.0.1:5000/a/b:1: pinging container registry 10.0.0.1:5000: Get "http://10.0.0.1:5000/v2/": dial tcp 10.0.0.1:5000: connect: connection refused',
        'Error response from daemon: Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 127.0.0.53:53: no such host',
        'Error response from daemon: Get "https://10.0.0.1:5000/v2/": http: server gave HTTP response to HTTPS client',
    ],
    "daemon doesn't run": [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    ],
    "died while it was proved": [
        "error: lmcache-fleet-server.service died, restarted 3 times: executable file `lmcache` not found in $PATH"
    ],
    "should answer on the host": [
        "error: request-failed: http://127.0.0.1:8000/v1/completions: [Errno 111] Connection refused",
        "GET http://127.0.0.1:8090/metrics: [Errno 111] Connection refused",
        "curl: (7) Failed to connect to localhost port 8000 after 0 ms: Couldn't connect to server",
        "Could not connect to Valkey at 127.0.0.1:6379: Connection refused",
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 127.0.0.1:8000 ssl:default [Connect call failed ('127.0.0.1', 8000)]",
        "[c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111 - Connection refused).",
        "WARNING LMCache server is unhealthy — entering degraded mode ([Errno 111] Connection refused)",
        "http://10.0.0.7:8000/v1/models: [Errno 111] Connection refused",
    ],
    "sudo refused": ["sudo: a password is required", "sudo: 1 incorrect password attempt", "Sorry, try again."],
    "no metadata under the name `vllm`": [
        "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"
    ],
}  # fmt: skip


def test_every_rule_has_an_example() -> None:
    for rule in RULES:
        assert sum(piece in rule["cause"] for piece in EXAMPLES) == 1, rule["cause"]
        assert set(rule) == {"match", "cause", "remedy"}
        assert rule["remedy"].strip()
    assert len(EXAMPLES) == len(RULES)


@pytest.mark.parametrize(("piece", "line"), [(piece, line) for piece, lines in EXAMPLES.items() for line in lines])
def test_an_example_is_explained_by_its_rule(piece: str, line: str) -> None:
    (rule,) = [rule for rule in RULES if piece in rule["cause"]]
    cause, remedy = explain(["Building wheel", f"\x1b[1;31m{line}\x1b[0m", "note: this is the end"])
    assert cause.startswith(f"{rule['cause']} [")
    assert remedy == rule["remedy"]
    assert line.strip()[:100] in cause


@pytest.mark.parametrize(
    "line",
    [
        "the engine was killed by us",
        "Successfully installed vllm-0.23.0",
        "error: command 'cmake' failed with exit status 1",
        "file.h: No such file or directory",
        "PackageNotFoundError: No package metadata was found for vllm-ascend",
        "ret is -80201",
        # Nothing of these says what refused.
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "ssh: connect to host 10.0.0.1 port 22: Connection refused",
        "redis.exceptions.ConnectionError: Error 111 connecting to 10.0.0.2:6379. Connection refused.",
    ],
)
def test_what_no_rule_is_about_is_explained_by_none(line: str) -> None:
    cause, remedy = explain([line])
    assert remedy == ""
    assert not any(cause.startswith(rule["cause"]) for rule in RULES)


PIPS_WORDS = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] Connection refused')': /simple/lmcache/
ERROR: Could not find a version that satisfies the requirement lmcache==0.5.6 (from versions: VERSIONS)
ERROR: No matching distribution found for lmcache==0.5.6
"""


@pytest.mark.parametrize(
    ("versions", "piece"), [("none", "repository can't be reached"), ("0.5.4, 0.5.5", "pins can't be resolved")]
)
def test_pip_that_reached_no_index_is_told_from_pip_that_found_nothing(versions: str, piece: str) -> None:
    cause, _ = explain(PIPS_WORDS.replace("VERSIONS", versions).splitlines())
    assert piece in cause


def test_apts_hash_mismatch_is_one() -> None:
    cause, _ = explain(["E: Failed to fetch http://deb.example/x.deb  Hash Sum mismatch"])
    assert "not the one that was pinned" in cause


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["error: first", "Error: second", "noise"], "first"),
        (["step 1 ok", "configure failed", "done"], "configure failed"),
        (["one", "two"], "two"),
        (["", "  "], "hint"),
        ([], "hint"),
        (["\x1b[31mfatal: bad\x1b[0m"], "fatal: bad"),
    ],
)
def test_without_a_rule_the_most_telling_line_is_said(lines: list[str], cause: str) -> None:
    assert explain(lines, "hint") == (cause, "")


def test_a_long_line_is_cut() -> None:
    cause, _ = explain(["x" * 500 + " No space left on device"])
    assert len(cause) < 220


def test_the_table_names_every_host_with_cause_and_remedy_in_order() -> None:
    table = failure_table([Failure("b", "02 venv", "no python", "install"), Failure("a", "01", "cause", "")])
    assert "2 failed" in table
    assert table.index(" a ") < table.index(" b ")
    assert "no python" in table
    assert "see the output above" in table
    assert not re.search(r"\x1b", table)


def test_the_table_shows_the_line_that_a_cause_quotes() -> None:
    for line in ("sudo: a password is required", "/bin/sh: 1: source: not found"):
        cause, _ = explain([line])
        assert f"[{line}]" in cause
        assert f"[{line}]" in failure_table([Failure("h", "s", f"x [{line}]", "")])
