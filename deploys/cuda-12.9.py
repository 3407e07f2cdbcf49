"""NVIDIA with CUDA 12.9: vLLM and LMCache of the release page, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cuda-12.9.yaml")
