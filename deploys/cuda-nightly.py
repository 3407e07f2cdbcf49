"""NVIDIA with CUDA 13: vLLM and the nightly LMCache, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda-nightly.yaml")
