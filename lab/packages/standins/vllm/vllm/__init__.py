"""Stand-in for vLLM, for simulated hosts: serves, stores and retrieves pseudo KV, runs no model.

Names, messages and the order of checks follow the real thing where a deployment tool can see them.
"""

from vllm.entrypoints.llm import LLM
from vllm.inputs import TokensPrompt
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.version import __version__

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "TokensPrompt", "__version__"]
