"""One engine process of the in-process verification: an offline vllm.LLM that ends by itself.

Started by verify.py with the plan's path in LMCACHE_FLEET_VERIFY_PLAN. The engine's own children are spawned and import
this file again, so vllm and then the vendor's plugins are imported at the top, in that order, in every process: a
plugin such as lmcache_ascend patches vllm only when vllm is loaded already, and a core without it has no device.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = json.loads(Path(os.environ["LMCACHE_FLEET_VERIFY_PLAN"]).read_text(encoding="utf-8"))

vllm = importlib.import_module("vllm")
for _plugin in PLAN["plugin_imports"]:
    importlib.import_module(_plugin)

#: Parts verify.py cuts the merged log by.
MARK = "lmcache-fleet-verify:"


def connector_of(transfer: dict[str, Any]) -> dict[str, str | None]:
    """Class and module of the connector that the configuration names, as Python finds it."""
    path, name = transfer.get("kv_connector_module_path"), str(transfer["kv_connector"])
    if path is None:
        factory = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
        found = factory.get_connector_class_by_name(name)
    else:
        found = getattr(importlib.import_module(path), name)
    return {"class": found.__name__, "module": found.__module__, "source": "import"}


def device_of(wanted: str | None) -> str | None:
    """The current device of the wanted kind, as torch says it; None when torch knows no such kind or has none."""
    if wanted is None:
        return None
    kind = wanted.partition(":")[0]
    if kind == "cpu":
        return "cpu"
    torch = importlib.import_module("torch")
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        return None
    return f"{kind}:{module.current_device()}"


def counters(llm: Any) -> dict[str, int]:
    """The engine's counters; empty where it keeps none."""
    try:
        values = llm.get_metrics()
    except Exception:  # statistics are off or not there; the log has to tell then
        return {}
    found: dict[str, int] = {}
    for value in values:
        number = getattr(value, "value", None)
        if isinstance(number, (int, float)):
            found[value.name] = found.get(value.name, 0) + int(number)
    return found


def difference(before: dict[str, int], after: dict[str, int], name: str) -> int | None:
    """Growth of a counter; None where there is none."""
    return after[name] - before.get(name, 0) if name in after else None


def ask(llm: Any, ids: list[int], params: Any) -> tuple[Any, float]:
    """One request and the milliseconds that it took."""
    start = time.monotonic()
    output = llm.generate([{"prompt_token_ids": ids}], params)[0]
    return output, (time.monotonic() - start) * 1000


def measured(llm: Any, phase: str, params: Any) -> dict[str, Any]:
    """One measured request, its log framed by marks."""
    before = counters(llm)
    print(MARK, "begin", phase, flush=True)
    output, total = ask(llm, PLAN["prompt_ids"], params)
    time.sleep(PLAN["settle_s"])  # a store may go on after the answer
    print(MARK, "end", phase, flush=True)
    after = counters(llm)
    latency = getattr(getattr(output, "metrics", None), "first_token_latency", None)
    return {
        "phase": phase,
        "prompt_tokens": len(output.prompt_token_ids or []) or None,
        "output": list(output.outputs[0].token_ids),
        "logprobs": likely(output.outputs[0]),
        "ttft_ms": round(latency * 1000 if latency else total, 1),
        "total_ms": round(total, 1),
        "external_hits": difference(before, after, "vllm:external_prefix_cache_hits"),
        "local_hits": difference(before, after, "vllm:prefix_cache_hits"),
        "cached_tokens": getattr(output, "num_cached_tokens", None),
    }


def likely(output: Any) -> list[dict[str, float]]:
    """The likeliest tokens of each position; empty where the engine gives none."""
    positions = getattr(output, "logprobs", None) or []
    return [{str(token): round(float(value.logprob), 4) for token, value in at.items()} for at in positions]


def sampling() -> Any:
    """Greedy sampling, with as much asked for as this engine knows."""
    greedy = {"temperature": 0, "max_tokens": PLAN["max_tokens"]}
    try:
        return vllm.SamplingParams(**greedy, ignore_eos=True, logprobs=PLAN["logprobs"])
    except TypeError:
        return vllm.SamplingParams(**greedy)


def save(result: dict[str, Any]) -> None:
    """Write what is known so far: a later crash shall not lose it."""
    Path(PLAN["result"]).write_text(json.dumps(result), encoding="utf-8")


def destroy() -> None:
    """Let LMCache close its tiers, as its own example does."""
    utils, engine = "lmcache.integration.vllm.utils", "lmcache.v1.cache_engine"
    try:
        name = importlib.import_module(utils).ENGINE_NAME
        importlib.import_module(engine).LMCacheEngineBuilder.destroy(name)
    except (ImportError, AttributeError) as error:
        print(MARK, "no LMCacheEngineBuilder.destroy:", error, flush=True)


def main() -> None:
    """Run the plan's phases."""
    transfer = importlib.import_module("vllm.config").KVTransferConfig(**PLAN["connector"])
    result: dict[str, Any] = {"hash_seed": os.environ.get("PYTHONHASHSEED"), "requests": []}
    result["connector"] = connector_of(PLAN["connector"])
    save(result)
    llm = vllm.LLM(model=PLAN["model"], kv_transfer_config=transfer, **PLAN["options"])
    params = sampling()
    print(MARK, "warm-up", flush=True)
    ask(llm, PLAN["warm_up_ids"], params)
    result["device"] = device_of(PLAN["device"])
    for phase in PLAN["phases"]:
        if phase == "hit" and PLAN["options"].get("enable_prefix_caching") is not False:
            llm.reset_prefix_cache()
        result["requests"].append(measured(llm, phase, params))
        save(result)
    print(MARK, "workload_ok", True, flush=True)
    destroy()


if __name__ == "__main__":
    main()
