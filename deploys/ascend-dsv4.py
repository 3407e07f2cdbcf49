"""Ascend 910B: vLLM-Ascend and LMCache-Ascend's in-process branch with LMCache 0.4.5, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/ascend-dsv4.yaml")
