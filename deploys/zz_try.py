from operations.playbook import apply_playbook
apply_playbook("playbooks/zz_try.yaml")
