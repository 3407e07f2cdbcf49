"""Intel XPU: LMCache built from source beside the vLLM that is there, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/xpu-source.yaml")
