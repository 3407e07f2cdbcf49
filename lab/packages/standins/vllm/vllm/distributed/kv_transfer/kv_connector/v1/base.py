"""What a connector is. The methods keep their real names; their arguments are the stand-in engine's."""

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class KVConnectorRole(enum.Enum):
    """Where a connector runs."""

    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    """What the scheduler's connector tells the worker's."""


class KVConnectorBase_V1:  # noqa: N801 - the name others inherit from
    """Base of connectors."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        self._vllm_config = vllm_config
        self._role = role
        self._kv_cache_config = kv_cache_config

    @property
    def role(self) -> KVConnectorRole:
        """Where this connector runs."""
        return self._role

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens beyond the computed ones can be loaded, and whether loading is asynchronous."""
        return 0, False

    def start_load_kv(self, request: Any, start: int, count: int) -> list[int]:
        """Loads the KV of *count* tokens from *start*; fewer when some are gone."""
        return []

    def wait_for_save(self, request: Any, kv: list[int]) -> None:
        """Saves the KV of a request's prompt."""

    def shutdown(self) -> None:
        """Lets go of everything."""
