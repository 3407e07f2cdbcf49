"""Data of every host of inventories/prod.py."""

# Overrides of the playbook's variables. A name that no playbook has is an error, before any connection.
vars = {
    "max_local_cpu_size": 32,
    "gpu_memory_utilization": 0.85,
    "max_model_len": 8192,
}

# Releases kept on each host: the serving one, the one to go back to, and one more.
keep_releases = 3

# Where the control machine takes secrets from: never the value itself. A service names those it wants in `secrets`.
secrets = {
    "HF_TOKEN": {"env": "HF_TOKEN"},
}
