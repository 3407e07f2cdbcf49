"""vLLM and LMCache on plain CPUs, everything real, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cpu.yaml")
