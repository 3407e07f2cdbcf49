"""AMD Instinct, ROCm 7.2: the nightly LMCache beside the vLLM that is there, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm-nightly.yaml")
