"""What stands in the way of a playbook, host by host; changes nothing. `--data playbook=…` names another playbook."""

from operations.preflight import preflight_playbook

preflight_playbook("playbooks/ascend.yaml")
