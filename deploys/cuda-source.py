"""NVIDIA with CUDA 13: LMCache built from source beside vLLM, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda-source.yaml")
