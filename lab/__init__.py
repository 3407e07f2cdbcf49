"""The lab: booted systemd + sshd hosts on this machine, for trying playbooks on. Nothing in the product imports it."""
