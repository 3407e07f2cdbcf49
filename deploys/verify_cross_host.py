"""Prove that hosts share KV: the first stores a prompt, each other retrieves it. `--data playbook=playbooks/….yaml`."""

from pyinfra import host

from operations.cross_host import verify_across

verify_across(host.data.get("playbook", "playbooks/cpu.yaml"))
