"""NVIDIA with CUDA 12.9: LMCache built from source beside vLLM, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda-12.9-source.yaml")
