"""Declarative playbooks that put vLLM + LMCache on a fleet of accelerator hosts and prove the KV offload."""

__version__ = "0.1.0"
