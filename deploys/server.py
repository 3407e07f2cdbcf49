"""An LMCache server alone, on the hosts with the role lmcache_server, ending in evidence."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/server.yaml")
