"""The quickstart by hand, as an operator would, on a booted host with stand-in hardware.

It works, and where a step is left out or done wrong it fails as on real hardware. What is tried here is the lab; the
product is tried on it elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import ascend, services
from tests.lab.conftest import RunningLab

HOST = "h4"
CONNECTOR = "LMCacheAscendConnectorV1Dynamic:lmcache_ascend.integration.vllm.lmcache_ascend_connector_v1"
ANSI = re.compile(r"\x1b\[[0-9;]*m")

ENVIRONMENT = """\
cd /root/try
export PIP_INDEX_URL={index_url} PIP_TRUSTED_HOST={address} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PIP_NO_COMPILE=1
. venv/bin/activate
source /usr/local/Ascend/ascend-toolkit/set_env.sh
source /usr/local/Ascend/nnal/atb/latest/atb/set_env.sh
export PATH=/usr/local/sbin:/usr/sbin:$PATH
export HF_ENDPOINT={hf_url} PYTHONHASHSEED=0 VLLM_WORKER_MULTIPROC_METHOD=spawn VLLM_LOGGING_LEVEL=INFO
export GIT_TERMINAL_PROMPT=0 GIT={git_url} ASCEND={ascend_index_url} VARIANT={variant_index_url} CPU={cpu_index_url}
"""
INSTALL = """\
if ! command -v cmake || ! command -v ninja || [ ! -f /usr/include/numaif.h ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y cmake ninja-build libnuma-dev
fi >/dev/null 2>&1
python -m pip install vllm==0.23.0
python -m pip install --extra-index-url $VARIANT --extra-index-url $ASCEND --extra-index-url $CPU vllm-ascend==0.23.0
head -1 venv/lib/python3*/site-packages/triton/__init__.py
python -m pip install --force-reinstall --no-deps --extra-index-url $ASCEND triton-ascend==3.2.2
head -1 venv/lib/python3*/site-packages/triton/__init__.py
NO_CUDA_EXT=1 python -m pip install --no-build-isolation --no-binary lmcache lmcache==0.4.4 --no-deps
python -m pip install aiofile aiofiles blake3 aiohttp msgspec numpy psutil pyyaml pyzmq redis safetensors \\
  sortedcontainers transformers huggingface_hub
git clone -q -c advice.detachedHead=false --depth 1 --branch v0.4.4 $GIT/LMCache/LMCache-Ascend.git LMCache-Ascend
git -C LMCache-Ascend submodule update -q --init --recursive
git -C LMCache-Ascend describe --tags --exact-match
python patch.py
python -m pip install --no-build-isolation -e ./LMCache-Ascend
python -c "import importlib.metadata as m; print([m.version(n) for n in ('torch', 'torch-npu', 'vllm', 'vllm-ascend')])"
"""
PATCH = """\
from pathlib import Path
from typing import Any
file = Path("LMCache-Ascend/csrc/hixl/CMakeLists.txt")
line = "${ASCEND_CANN_PACKAGE_PATH}/${ARCH_SUBDIR}/pkg_inc/runtime"
assert line in file.read_text()
file.write_text(file.read_text().replace(line, line + "\\n    " + line.removesuffix("/runtime"), 1))
file = Path("LMCache-Ascend/lmcache_ascend/integration/vllm/lmcache_ascend_connector_v1.py")
old = '''self, vllm_config: "VllmConfig", role: KVConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)'''
assert old in file.read_text()
new = '''self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config=None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)'''
file.write_text(file.read_text().replace(old, new, 1))
"""
PROGRAM = """\
import os, sys
if "wrong-order" in sys.argv:
    import lmcache_ascend
from huggingface_hub import snapshot_download
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
import lmcache_ascend
import torch, torch_npu
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.cache_engine import LMCacheEngineBuilder

def main():
    name, _, path = os.environ["CONNECTOR"].partition(":")
    transfer = KVTransferConfig(kv_connector=name, kv_role="kv_both", kv_connector_module_path=path or None)
    llm = LLM(model=snapshot_download("Qwen/Qwen2.5-0.5B-Instruct"), enforce_eager=True, kv_transfer_config=transfer,
              max_model_len=4096, gpu_memory_utilization=0.4, enable_prefix_caching=False, trust_remote_code=True)
    params = SamplingParams(temperature=0, max_tokens=8)
    for number in range(2):
        (one,) = llm.generate([{"prompt_token_ids": list(range(100, 2100))}], params)
        print("RUN", number, one.num_cached_tokens, one.outputs[0].token_ids)
    llm.generate(["Hello, my name is"], params)
    print("current_device", f"npu:{torch.npu.current_device()}")
    LMCacheEngineBuilder.destroy(ENGINE_NAME)

if __name__ == "__main__":
    main()
"""

Shell = Callable[..., str]


@pytest.fixture(scope="module")
def urls(lab: RunningLab) -> dict[str, str]:
    """The lab's index; its first start fetches real packages."""
    paths, state = lab.lab.paths, lab.lab.reload()
    return {key: str(value) for key, value in services.start(paths.lab, state.gateway, print).items()}


@pytest.fixture(scope="module")
def shell(lab: RunningLab, urls: dict[str, str]) -> Iterator[Shell]:
    """A host with hardware and the environment of the quickstart; gives a function that runs commands in it as root."""
    before = lab.host(HOST).profile
    lab.reimage(HOST, profile="910b3x8")

    def put(name: str, text: str) -> None:
        lab.out(HOST, f"printf %s {shlex.quote(text)} | sudo tee /root/try/{name} >/dev/null")

    lab.out(HOST, "sudo mkdir -p /root/try; sudo python3 -m venv /root/try/venv")
    put("env.sh", ENVIRONMENT.format(**urls))
    put("patch.py", PATCH)
    put("program.py", PROGRAM)

    def run(command: str, *, check: bool = True, **env: str) -> str:
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        script = f"cd /root/try && . ./env.sh && export CONNECTOR={CONNECTOR} {given}\n{command}"
        done = lab.ssh(HOST, f"sudo bash -c {shlex.quote(script)} 2>&1", check=False, limit=300)
        out = ANSI.sub("", done.stdout)
        assert done.returncode == 0 or not check, out[-3000:]
        return out

    yield run
    lab.reimage(HOST, profile=before)


@pytest.fixture(scope="module")
def installed(shell: Shell) -> str:
    """The quickstart's sections 3 to 6; gives what they printed."""
    return shell("set -e\n" + INSTALL)


def program(shell: Shell, *words: str, check: bool = True, **env: str) -> str:
    return shell(f"python program.py {' '.join(words)}", check=check, **env)


def runs(out: str) -> list[tuple[int, str]]:
    """Cached tokens and output of each of the two requests."""
    return [(int(n), tokens) for n, tokens in re.findall(r"^RUN \d (\d+) (\[.*\])$", out, re.M)]


def test_devices_are_there_at_boot_and_belong_to_the_vendors_group(lab: RunningLab, shell: Shell) -> None:
    nodes = lab.out(HOST, "stat -c '%n %a %G' /dev/davinci[0-7] /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc")
    assert nodes.count(" 660 HwHiAiUser") == 11
    assert "910B3" in shell("npu-smi info")
    refused = lab.ssh(HOST, "/usr/local/sbin/npu-smi info", check=False)
    assert refused.returncode != 0
    assert "ret is -8005" in refused.stdout, "as for anybody who isn't in the group"
    lab.out(HOST, "sudo usermod -aG HwHiAiUser operator")
    assert "910B3" in lab.ssh(HOST, "/usr/local/sbin/npu-smi info", user="operator").stdout


def test_quickstart_installs_and_the_triton_trap_is_sprung_and_mended(installed: str) -> None:
    community, vendor = installed.index("the community's triton, for"), installed.index("Stand-in for triton-ascend")
    assert community < vendor, "after the second call the community's triton lies there, after the third the vendor's"
    assert "\nv0.4.4\n" in installed
    assert re.search(r"\['2\.10\.0(\+cpu)?', '2\.10\.0\.post4', '0\.23\.0', '0\.23\.0'\]", installed)


def test_offline_run_stores_retrieves_and_answers_the_same(installed: str, shell: Shell) -> None:
    out = program(shell)
    assert "Platform plugin ascend is activated" in out
    assert "NPU device is available. Using NPU for LMCache engine." in out
    assert "current_device npu:0" in out
    (cold, first), (hit, second) = runs(out)
    assert (cold, hit) == (0, 1792)
    assert first == second
    assert "Stored 1792 out of total 1792 tokens" in out
    assert "Retrieved 1792 out of 1792 required tokens (from 2000 total tokens)" in out
    assert "LMCache hit tokens: 1792, need to load: 1792" in out
    assert out.count(" Stored ") == 1, "a prompt below one chunk stores nothing"
    assert "Assertion failed: pfd.revents & POLLIN" in out


def test_only_one_hash_seed_finds_what_another_process_stored(installed: str, shell: Shell) -> None:
    tier: dict[str, Any] = {"LMCACHE_REMOTE_URL": "fs://localhost:0/tmp/tier", "LMCACHE_REMOTE_SERDE": "naive"}
    assert [n for n, _ in runs(program(shell, **tier))] == [0, 1792]
    assert [n for n, _ in runs(program(shell, **tier))] == [1792, 1792], "the file tier survives the process"
    assert [n for n, _ in runs(program(shell, **tier, PYTHONHASHSEED="1"))] == [0, 1792]
    unset = shell("unset PYTHONHASHSEED; python program.py", **tier)
    assert "Using builtin hash without PYTHONHASHSEED set" in unset
    assert [n for n, _ in runs(unset)] == [0, 1792]
    corrupt = runs(program(shell, **tier, LMCACHE_FLEET_LAB_FAULTS="corrupt_kv"))
    assert corrupt[0][0] == 1792
    assert corrupt[0][1] != runs(program(shell, **tier))[0][1]


@pytest.mark.parametrize("how", ["degraded", "wrong-order", "old driver"])
def test_degraded_engine_answers_and_caches_nothing(how: str, lab: RunningLab, installed: str, shell: Shell) -> None:
    if how == "old driver":
        ascend.install(lab.lab.root(HOST), "910b3-olddriver")
    try:
        fault: dict[str, Any] = {"LMCACHE_FLEET_LAB_FAULTS": "degraded"} if how == "degraded" else {}
        out = program(shell, *(["wrong-order"] if how == "wrong-order" else []), **fault)
    finally:
        ascend.install(lab.lab.root(HOST), "910b3x8")
    assert "System will operate in degraded mode (recompute)" in out
    assert [n for n, _ in runs(out)] == [0, 0]
    if how == "old driver":
        assert "halHostRegister: 65534" in out
    if how == "wrong-order":
        assert "Unsupported device platform for LMCache engine." in out


def test_registered_name_needs_no_patch_and_an_unpatched_or_unknown_connector_is_refused(
    installed: str, shell: Shell
) -> None:
    shell("git -C LMCache-Ascend stash -q -- lmcache_ascend")
    try:
        refused = program(shell, check=False)
        assert "ValueError: Connector LMCacheAscendConnectorV1Dynamic uses deprecated 2-argument" in refused
        assert [n for n, _ in runs(program(shell, CONNECTOR="LMCacheAscendConnector"))] == [0, 1792]
    finally:
        shell("git -C LMCache-Ascend stash pop -q")
    assert "Unsupported connector type: Nobody" in program(shell, check=False, CONNECTOR="Nobody")


def test_missing_environments_are_told_by_the_loader(installed: str, shell: Shell) -> None:
    no_atb = shell("export LD_LIBRARY_PATH=${LD_LIBRARY_PATH//nnal/x}; python program.py", check=False)
    assert "OSError: libatb.so: cannot open shared object file" in no_atb
    no_cann = shell("unset LD_LIBRARY_PATH; python -c 'import torch'", check=False)
    assert "ImportError: libhccl.so: cannot open shared object file" in no_cann
    assert "RuntimeError: Failed to load the backend extension: torch_npu" in no_cann


def test_community_triton_fails_at_the_first_inference(installed: str, shell: Shell) -> None:
    shell("python -m pip install --force-reinstall --no-deps triton==3.5.1")
    try:
        out = program(shell, check=False)
    finally:
        shell("python -m pip install --force-reinstall --no-deps --extra-index-url $ASCEND triton-ascend==3.2.2")
    assert "init engine" in out, "the engine started"
    assert "module 'triton.language' has no attribute 'constexpr_function'" in out


def test_devices_in_use_and_out_of_reach(lab: RunningLab, installed: str, shell: Shell) -> None:
    hold = "python3 /usr/local/libexec/lmcache-fleet-lab/hold-npu 0 60000 other_job & sleep 0.5; "
    busy = shell(hold + "npu-smi info; python program.py; kill %1", check=False)
    row = next(line for line in busy.splitlines() if "other_job" in line)
    assert row.split("|")[4].strip() == "60000"
    assert "is less than desired GPU memory utilization" in busy
    other = shell(hold + "python program.py; status=$?; kill %1; exit $status", ASCEND_RT_VISIBLE_DEVICES="3")
    assert len(runs(other)) == 2
    flocked = shell("flock /var/lib/lmcache-fleet-lab/npu2.lock sleep 2 & sleep 0.3; npu-smi info; wait")
    assert re.search(r"\| 2       0 .*\| flock ", flocked)
    ascend.install(lab.lab.root(HOST), "910b3-8020")
    try:
        used = shell("npu-smi info; python program.py", check=False)
    finally:
        ascend.install(lab.lab.root(HOST), "910b3x8")
    assert "because the device is used. ret is -8020" in used
    assert "must be less than or equal to the number of visible devices (0)" in used


def test_build_fails_as_the_real_one_does(installed: str, shell: Shell) -> None:
    shell(
        "git clone -q -c advice.detachedHead=false --depth 1 --branch v0.4.4 $GIT/LMCache-Ascend.git /tmp/tree"
        " && git -C /tmp/tree submodule update -q --init"
    )
    build = "PIP_QUIET=0 python -m pip wheel -v --no-build-isolation --no-deps -w /tmp/wheels /tmp/tree"
    fresh = f"rm -rf /tmp/tree/build; {build}"
    header = "fatal error: runtime/rt_external_device.h: No such file or directory"
    assert header in shell(fresh, check=False)
    include = "export CXXFLAGS=-I$ASCEND_HOME_PATH/$(uname -m)-linux/pkg_inc; "
    log: dict[str, Any] = {"LMCACHE_FLEET_LAB_BUILD_LOG": "/tmp/jobs", "LMCACHE_FLEET_LAB_BUILD_SECONDS": "0.4"}

    def jobs_at_once(command: str, **env: str) -> int:
        shell("rm -f /tmp/jobs; " + include + command, **log, **env)
        running = most = 0
        for line in sorted(shell("cat /tmp/jobs").splitlines()):
            running += 1 if line.split()[1] == "start" else -1
            most = max(most, running)
        return most

    assert jobs_at_once(fresh, MAX_JOBS="1", CMAKE_BUILD_PARALLEL_LEVEL="1") >= 8, "upstream's build has no limit"
    names = shell("ls /tmp/wheels; python -m zipfile -l /tmp/wheels/lmcache_ascend-0.4.4-*.whl")
    for name in ("c_ops", "libcache_kernels.so", "hccl_npu_comms", "hixl_npu_comms", "_build_info.py"):
        assert f"lmcache_ascend/{name}" in names
    assert "unknown file type" in shell(include + build, check=False), "objects were changed in place"
    assert jobs_at_once(fresh, MAKEFLAGS="-l0.01") == 1, "a load limit is obeyed"
    no_header = "mv /usr/include/numaif.h /tmp/; " + include + fresh + "; mv /tmp/numaif.h /usr/include/"
    assert "numaif.h: No such file or directory" in shell(no_header, check=False)
    hidden = "export PATH=${PATH//\\/usr\\/local\\/sbin:/}; "
    assert "No available NPU found, please check npu-smi info" in shell(hidden + include + fresh, check=False)
    wrong = shell(hidden + include + fresh, check=False, SOC_VERSION="ascend910b3")
    assert "Ascend910b3.ini' is not found, please check your SOC_VERSION" in wrong
    shell(hidden + include + fresh, SOC_VERSION="Ascend910_9382")
    assert "__soc_version__ = 'Ascend910_9382'" in shell("cat /tmp/tree/lmcache_ascend/_build_info.py")
    empty = shell(f"rm -rf /tmp/tree/third_party/hcomm/*; {include} {fresh}", check=False)
    assert "hccl/hccl_network_pub.h: No such file or directory" in empty


def test_index_traps(installed: str, shell: Shell) -> None:
    shell("python3 -m venv /tmp/other")
    pip = "PIP_QUIET=0 /tmp/other/bin/pip install --dry-run "
    assert "No matching distribution found for triton-ascend==3.2.2" in shell(pip + "vllm-ascend==0.23.0", check=False)
    if shell("uname -m").strip() == "x86_64":
        without_cpu = shell(pip + "--extra-index-url $ASCEND vllm-ascend==0.23.0", check=False)
        assert "ResolutionImpossible" in without_cpu, "torch's CPU build is on an index of its own"
        shell("NO_CUDA_EXT=1 /tmp/other/bin/pip install --no-deps lmcache==0.4.4")
        trap = shell("ls /tmp/other/lib/python3*/site-packages/lmcache/")
        assert "c_ops.cpython-3" in trap, "without --no-binary the CUDA wheel comes, in silence"
    together = shell(
        pip + "--extra-index-url $ASCEND --extra-index-url $CPU vllm==0.23.0 vllm-ascend==0.23.0", check=False
    )
    assert "ResolutionImpossible" in together


def test_server_counts_hits_by_source_and_ends_when_told(installed: str, shell: Shell, lab: RunningLab) -> None:
    serve = Path(__file__).with_name("standin_server.py").read_text()
    out = shell(f"cat > client.py <<'END'\n{serve}\nEND\npython client.py", VLLM_SERVER_DEV_MODE="1")
    assert "client ok" in out


def test_other_lines_of_upstream(installed: str, shell: Shell) -> None:
    """The branch for lmcache 0.4.5, and MP mode. Last here: they replace what the other tests use."""

    def switch(ref: str) -> None:
        shell(
            f"rm -rf line && git clone -q -c advice.detachedHead=false --depth 1 --branch {ref} $GIT/LMCache-Ascend.git"
            " line && git -C line submodule update -q --init && python -m pip uninstall -q -y lmcache-ascend"
            " && python -m pip install --no-build-isolation --no-deps ./line"
        )

    shell("NO_CUDA_EXT=1 python -m pip install --no-build-isolation --no-binary lmcache --no-deps lmcache==0.4.5")
    switch("dsv4_support_045")
    module = "lmcache_ascend.integration.vllm.lmcache_ascend_connector"
    assert [n for n, _ in runs(program(shell, CONNECTOR=f"LMCacheAscendConnector2:{module}", check=False))] == []
    newer = program(shell, CONNECTOR="LMCacheAscendConnectorV1Dynamic:" + module + "_v1")
    assert [n for n, _ in runs(newer)] == [0, 1792], "needs no patch"

    shell("python -m pip install --no-deps lmcache==0.5.6")
    shell("sed -i '/wrong-order\\|lmcache_ascend\\|ENGINE_NAME\\|Builder/d' program.py")
    connector: dict[str, Any] = {"CONNECTOR": "LMCacheMPConnector:lmcache.integration.vllm.lmcache_mp_connector"}
    assert "Install LMCache-Ascend and retry." in program(shell, check=False, **connector)
    switch("v0.5.6")
    server = (
        'lmcache server --l1-size-gb 1 --eviction-policy LRU --l2-adapter \'{"type":"fs","base_path":"/tmp/l2"}\' '
        ">server.log 2>&1 & "
        "until curl -sf http://127.0.0.1:8080/healthcheck; do sleep 0.1; done; "
    )
    out = shell(
        "unset PYTHONHASHSEED; " + server + "python program.py; python program.py; kill %1; wait; cat server.log",
        **connector,
    )
    assert [n for n, _ in runs(out)] == [0, 1792, 1792, 1792], "no hash seed is needed in this mode"
    assert "Stored 1792 tokens in" in out
    assert "Retrieved 1792 tokens in" in out
    again = shell("unset PYTHONHASHSEED; " + server + "python program.py; kill %1; wait", **connector)
    assert [n for n, _ in runs(again)] == [1792, 1792], "the file tier survives the server"
    without = program(shell, **connector)
    assert "entering degraded mode" in without
    assert [n for n, _ in runs(without)] == [0, 0]
