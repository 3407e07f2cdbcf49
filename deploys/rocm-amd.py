"""AMD Instinct, AMD's PyTorch image with ROCm 7.2.4 and torch 2.10: LMCache whose kernels load."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm-amd.yaml")
