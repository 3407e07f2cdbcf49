"""Runs on a host: starts the stand-in server, asks it, ends it. Printed at the end: ``client ok``."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

from huggingface_hub import snapshot_download

BASE = "http://127.0.0.1:8123"
CONNECTOR = {
    "kv_connector": "LMCacheAscendConnectorV1Dynamic",
    "kv_role": "kv_both",
    "kv_connector_module_path": "lmcache_ascend.integration.vllm.lmcache_ascend_connector_v1",
}


def call(path, body=None, method=None):
    """One request; gives status and text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def start(*options):
    """Starts a server and waits until it is healthy."""
    model = snapshot_download("Qwen/Qwen2.5-0.5B-Instruct")
    command = ["vllm", "serve", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", "8123"]
    command += ["--kv-transfer-config", json.dumps(CONNECTOR), "--enable-prompt-tokens-details", *options]
    process = subprocess.Popen(command)
    for _ in range(100):
        try:
            if call("/health")[0] == 200:
                return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not become healthy")


def metric(name):
    """One counter."""
    text = call("/metrics")[1]
    return float(next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")).split()[-1])


def complete():
    """Completes a long prompt; gives cached tokens and output."""
    body = {"model": "m", "prompt": list(range(5, 2005)), "max_tokens": 4, "return_token_ids": True}
    status, text = call("/v1/completions", body)
    assert status == 200, text
    answer = json.loads(text)
    details = answer["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
    return details["cached_tokens"], answer["choices"][0]["token_ids"]


def main():
    """The checks."""
    os.environ["LMCACHE_REMOTE_URL"] = "fs://localhost:0/tmp/server-tier"
    server = start()
    cold, first = complete()
    local, second = complete()
    assert (cold, local) == (0, 1920)
    assert (metric("prefix_cache_hits_total"), metric("external_prefix_cache_hits_total")) == (1920, 0)
    assert call("/reset_prefix_cache", {})[0] == 200
    external, third = complete()
    assert external == 1792
    assert metric("external_prefix_cache_hits_total") == 1792
    assert first == second == third
    assert call("/v1/completions", {"model": "other", "prompt": "x"})[0] == 404
    assert call("/v1/completions", {"model": "m", "prompt": []})[0] == 400
    assert json.loads(call("/tokenize", {"model": "m", "prompt": "hello"})[1])["count"] == 5
    body = {"model": "m", "prompt": "hello", "max_tokens": 3, "stream": True}
    assert call("/v1/completions", body)[1].rstrip().endswith("data: [DONE]")
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    del os.environ["VLLM_SERVER_DEV_MODE"]
    server = start("--no-enable-prefix-caching")
    assert complete() == (1792, first), "a new process finds what the old one stored"
    assert call("/reset_prefix_cache", {})[0] == 404, "only in development mode"
    server.terminate()
    assert server.wait(20) == 0
    print("client ok")


if __name__ == "__main__":
    main()
