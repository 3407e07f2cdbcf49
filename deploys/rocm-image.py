"""vLLM's ROCm image with the LMCache wheel of ROCm on top, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm-image.yaml")
