"""NVIDIA with CUDA 12.9: vLLM and the nightly LMCache, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda-12.9-nightly.yaml")
