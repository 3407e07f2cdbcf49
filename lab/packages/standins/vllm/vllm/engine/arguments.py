"""Engine arguments, for the library and the command line alike."""

from typing import Any

from vllm.config import CacheConfig, KVTransferConfig, ParallelConfig, VllmConfig, load_model_config

#: name -> type or default; the ones the stand-in looks at come first, the others are accepted and ignored
USED: dict[str, Any] = {
    "model": "",
    "served_model_name": None,
    "max_model_len": None,
    "dtype": "auto",
    "trust_remote_code": False,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "kv_transfer_config": None,
    "block_size": None,
    "disable_log_stats": False,
}
IGNORED = [
    "tokenizer",
    "tokenizer_mode",
    "skip_tokenizer_init",
    "revision",
    "tokenizer_revision",
    "seed",
    "swap_space",
    "cpu_offload_gb",
    "quantization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "distributed_executor_backend",
    "load_format",
    "kv_cache_dtype",
    "enable_chunked_prefill",
    "compilation_config",
    "additional_config",
    "speculative_config",
    "hf_overrides",
    "disable_custom_all_reduce",
    "max_seq_len_to_capture",
    "prefix_caching_hash_algo",
    "scheduling_policy",
    "async_scheduling",
    "enable_expert_parallel",
    "disable_hybrid_kv_cache_manager",
    "kv_offloading_size",
    "kv_offloading_backend",
    "download_dir",
    "limit_mm_per_prompt",
    "task",
    "runner",
    "enable_lora",
    "num_gpu_blocks_override",
    "kv_events_config",
    "max_logprobs",
    "generation_config",
    "enable_sleep_mode",
    "safetensors_load_strategy",
]


def make_config(**given: Any) -> VllmConfig:
    """Makes the configuration; an argument that vLLM doesn't know is refused as vLLM refuses it."""
    for name in given:
        if name not in USED and name not in IGNORED:
            raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument '{name}'")
    args = {**USED, **{key: value for key, value in given.items() if key in USED and value is not None}}
    served = args["served_model_name"]
    model = load_model_config(
        args["model"],
        served_model_name=served[0] if isinstance(served, list) else served,
        max_model_len=args["max_model_len"],
        dtype=args["dtype"],
        trust_remote_code=args["trust_remote_code"],
    )
    utilization = float(args["gpu_memory_utilization"])
    if not 0 < utilization <= 1:
        raise ValueError(f"GPU memory utilization must be less than 1.0. Got {utilization}.")
    cache = CacheConfig(gpu_memory_utilization=utilization, enable_prefix_caching=bool(args["enable_prefix_caching"]))
    if args["block_size"]:
        cache.block_size = int(args["block_size"])
    parallel = ParallelConfig(
        int(args["tensor_parallel_size"]), int(args["pipeline_parallel_size"]), int(args["data_parallel_size"])
    )
    transfer = KVTransferConfig.parse(args["kv_transfer_config"])
    return VllmConfig(model, cache, parallel, kv_transfer_config=transfer, enforce_eager=bool(args["enforce_eager"]))
