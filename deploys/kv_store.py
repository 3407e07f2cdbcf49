"""The second tier that all hosts' LMCache share: Redis or Valkey, on the hosts with the role kv_store."""

from operations.playbook import apply_playbook

apply_playbook("playbooks/kv_store.yaml")
