"""The lmcache command line alone."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/cli.yaml")
