"""The playbook: YAML in, validated and rendered steps out."""
