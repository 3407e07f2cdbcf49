"""AMD's PyTorch image by digest with the LMCache wheel that was built in it."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/rocm-amd-image.yaml")
