"""Moore Threads' image by digest with the LMCache wheel of MUSA on top, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/musa-image.yaml")
