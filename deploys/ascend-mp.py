"""Ascend 910B: vLLM-Ascend with an LMCache server beside it (MP mode), ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/ascend-mp.yaml")
