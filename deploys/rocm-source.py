"""AMD Instinct: LMCache built from source, whose kernels load."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm-source.yaml")
