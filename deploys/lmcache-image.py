"""A ready image with vLLM and LMCache, pulled by digest, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/lmcache-image.yaml")
