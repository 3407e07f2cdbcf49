"""AMD Instinct, ROCm 7.2 and torch 2.11: LMCache beside the vLLM that is there, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm.yaml")
