"""An image made from LMCache's own Dockerfile, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/built-image.yaml")
