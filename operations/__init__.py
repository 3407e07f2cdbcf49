"""How to get there: pyinfra operations, one module a playbook step."""
