"""The library's entry: ``LLM``."""

import atexit
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.engine.arguments import make_config
from vllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from vllm.sampling_params import SamplingParams


@dataclass
class Counter:
    """One counter of the engine."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def exit_noise() -> None:
    """The line that ZMQ often leaves when an engine's process ends; it means nothing."""
    if os.environ.get("LMCACHE_FLEET_LAB_EXIT_NOISE", "1") == "1":
        sys.stdout.flush()
        text = "Assertion failed: pfd.revents & POLLIN (src/signaler.cpp:260)\n"
        os.write(2, text.encode())


class LLM:
    """An engine for a program that ends by itself."""

    def __init__(self, model: str, **kwargs: Any) -> None:
        from vllm.engine.core import Engine

        self._statistics = not kwargs.setdefault("disable_log_stats", True)
        self.llm_engine = Engine(make_config(model=model, **kwargs))
        atexit.register(exit_noise)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        **_: Any,
    ) -> list[RequestOutput]:
        """Computes prompts one after the other."""
        if isinstance(prompts, str | dict):
            prompts = [prompts]
        outputs = []
        for number, prompt in enumerate(prompts):
            params = sampling_params[number] if isinstance(sampling_params, Sequence) else sampling_params
            outputs.append(self._one(prompt, params or SamplingParams()))
        return outputs

    def _one(self, prompt: Any, params: SamplingParams) -> RequestOutput:
        engine = self.llm_engine
        text = prompt if isinstance(prompt, str) else prompt.get("prompt")
        tokens = list(prompt["prompt_token_ids"]) if text is None else engine.tokenizer.encode(text)
        request = engine.new_request(tokens, params.max_tokens)
        request.logprobs = params.logprobs or 0
        ids = list(engine.run(request))
        done = CompletionOutput(0, engine.tokenizer.decode(ids), ids, finish_reason="length")
        if request.likely:
            done.logprobs = [{token: Logprob(value) for token, value in at.items()} for at in request.likely]
        metrics = None
        if self._statistics:
            first = request.arrival + request.first_token
            metrics = RequestMetrics(request.arrival, first, time.time(), request.first_token)
        cached = request.local_hit + request.external_hit
        return RequestOutput(request.request_id, text, tokens, [done], True, metrics, cached)

    def get_metrics(self) -> list[Counter]:
        """The engine's counters; only with statistics on, which they aren't by default here."""
        assert self._statistics, "Stat logging disabled"
        stats = self.llm_engine.stats
        return [
            Counter("vllm:prefix_cache_queries", stats["local_queries"]),
            Counter("vllm:prefix_cache_hits", stats["local_hits"]),
            Counter("vllm:external_prefix_cache_queries", stats["external_queries"]),
            Counter("vllm:external_prefix_cache_hits", stats["external_hits"]),
            Counter("vllm:prompt_tokens", stats["prompt"]),
            Counter("vllm:generation_tokens", stats["generated"]),
        ]

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets the engine's own cache."""
        self.llm_engine.reset_prefix_cache()
        return True

    def shutdown(self) -> None:
        """Gives the devices back."""
        self.llm_engine.shutdown()
