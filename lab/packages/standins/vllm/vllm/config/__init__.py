"""Configuration objects."""

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab_engine import toy

ROLES = ("kv_producer", "kv_consumer", "kv_both")
BLOCK_SIZE = 128  # what vllm-ascend uses


@dataclass
class KVTransferConfig:
    """Which connector moves KV, and how."""

    kv_connector: str | None = None
    engine_id: str | None = None
    kv_buffer_device: str = "cuda"
    kv_buffer_size: float = 1e9
    kv_role: str | None = None
    kv_rank: int | None = None
    kv_parallel_size: int = 1
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_connector_module_path: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: str = "recompute"

    def __post_init__(self) -> None:
        if self.engine_id is None:
            self.engine_id = str(uuid.uuid4())
        if self.kv_role is not None and self.kv_role not in ROLES:
            raise ValueError(f"Unsupported kv_role: {self.kv_role}. Supported roles are {ROLES}")
        if self.kv_connector is not None and self.kv_role is None:
            raise ValueError(f"Please specify kv_role when kv_connector is set, supported roles are {ROLES}")

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        """An entry of the connector's own configuration."""
        return self.kv_connector_extra_config.get(key, default)

    @classmethod
    def parse(cls, value: Any) -> "KVTransferConfig | None":
        """Reads JSON text, a dictionary, or an object that is one already."""
        if value is None or isinstance(value, cls):
            return value
        data = json.loads(value) if isinstance(value, str) else dict(value)
        known = cls.__dataclass_fields__
        for key in data:
            if key not in known:
                raise ValueError(f"1 validation error for KVTransferConfig\n{key}\n  Unexpected keyword argument")
        return cls(**data)


@dataclass
class ModelConfig:
    """The model as its config.json describes it."""

    model: str
    served_model_name: str
    max_model_len: int
    dtype: str
    hf: dict[str, Any]
    trust_remote_code: bool = False

    def kv_bytes_per_token(self) -> int:
        """Size of one token's keys and values in 16 bits."""
        return toy.kv_bytes_per_token(self.hf)

    def get_vocab_size(self) -> int:
        """Size of the vocabulary."""
        return int(self.hf.get("vocab_size", 32000))


@dataclass
class CacheConfig:
    """The engine's own KV cache."""

    block_size: int = BLOCK_SIZE
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    cache_dtype: str = "auto"


@dataclass
class ParallelConfig:
    """Ranks."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    rank: int = 0

    @property
    def world_size(self) -> int:
        """Number of ranks of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass
class DeviceConfig:
    """The kind of device."""

    device: str = "npu"


@dataclass
class VllmConfig:
    """Everything together."""

    model_config: ModelConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    kv_transfer_config: KVTransferConfig | None = None
    enforce_eager: bool = False


def load_model_config(
    model: str, *, served_model_name: str | None, max_model_len: int | None, dtype: str, trust_remote_code: bool
) -> ModelConfig:
    """Finds the model on disk, or through the hub's own client, and reads its config.json."""
    path = Path(model)
    if not path.is_dir():
        from huggingface_hub import snapshot_download

        path = Path(snapshot_download(model))
    file = path / "config.json"
    if not file.exists():
        raise ValueError(
            f"No config.json found in {path}: Invalid repository ID or local directory specified: {model!r}"
        )
    hf = json.loads(file.read_text())
    limit = int(hf.get("max_position_embeddings", 32768))
    if max_model_len is not None and max_model_len > limit:
        raise ValueError(
            f"User-specified max_model_len ({max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={limit} or model_max_length=None in model's config.json)."
        )
    if not toy.weights(path):
        raise RuntimeError(f"Cannot find any model weights with `{path}`")
    return ModelConfig(str(path), served_model_name or model, max_model_len or limit, dtype, hf, trust_remote_code)
