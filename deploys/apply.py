"""Any playbook: `pyinfra INVENTORY deploys/apply.py --data playbook=playbooks/mine.yaml`."""

from pyinfra import host
from pyinfra.api.exceptions import DeployError

from operations.playbook import apply_playbook

if not host.data.get("playbook"):
    raise DeployError("name a playbook: --data playbook=playbooks/mine.yaml")
apply_playbook(host.data.playbook)
