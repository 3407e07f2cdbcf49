"""NVIDIA with CUDA 13: vLLM and LMCache of the package index, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda.yaml")
