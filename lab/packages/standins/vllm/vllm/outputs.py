"""What a request gives back."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Logprob:
    """How likely a token was."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestMetrics:
    """Times of a request, in seconds since the epoch or of duration."""

    arrival_time: float
    first_token_time: float = 0.0
    finished_time: float = 0.0
    first_token_latency: float = 0.0


@dataclass
class RequestOutput:
    """A request's prompt and completions."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = field(default=None)
