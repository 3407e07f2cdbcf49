"""An example to copy: eight Ascend 910B hosts in two racks. Data of the whole group is in group_data/prod.py."""

_KNOWN_HOSTS = "inventories/known_hosts"


def _host(name: str, address: str, rack: str, **extra: object) -> tuple[str, dict[str, object]]:
    """One host: how to reach it, and which rack it must not share a wave with."""
    return name, {
        "ssh_hostname": address,
        "ssh_user": "fleet",
        # The fleet's own list. An unknown or changed key is refused until `lmcache-fleet adopt` has put it there.
        "ssh_known_hosts_file": _KNOWN_HOSTS,
        "ssh_strict_host_key_checking": "yes",
        "_sudo": True,
        "failure_domain": rack,
        **extra,
    }


prod = [
    *(_host(f"npu-{n:02d}", f"192.0.2.{10 + n}", "rack-a") for n in range(1, 5)),
    *(_host(f"npu-{n:02d}", f"192.0.2.{10 + n}", "rack-b") for n in range(5, 8)),
    # One host that differs: its variables are laid over the group's.
    _host("npu-08", "192.0.2.18", "rack-b", vars={"max_local_cpu_size": 8}),
]
