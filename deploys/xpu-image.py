"""vLLM's XPU image with the LMCache wheel of XPU on top, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/xpu-image.yaml")
