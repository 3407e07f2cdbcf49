"""Ascend 910B: vLLM-Ascend and LMCache-Ascend, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/ascend.yaml")
