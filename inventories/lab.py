"""The lab's hosts, as they are now: ``pyinfra inventories/lab.py deploys/ascend.py -y``."""

from typing import Any as _Any

from pyinfra.api.exceptions import PyinfraError as _PyinfraError

from lab.shell import LabError as _LabError
from lab.state import Host as _Host
from lab.state import Paths as _Paths
from lab.state import State as _State
from lab.state import load as _load


def _hosts() -> list[tuple[str, dict[str, _Any]]]:
    """The hosts of the running lab, with what pyinfra and the playbooks need to know of each."""
    try:
        state = _load(_Paths.here())
    except _LabError as error:
        raise _PyinfraError(str(error)) from error
    if not any(host.running for host in state.hosts):
        raise _PyinfraError("the lab is not up: `lmcache-fleet lab up --hosts 4` boots four hosts (needs root)")
    services = state.services
    variables: dict[str, _Any] = {
        # Debian's own Python; the vendor's images have 3.12.
        "python": "3.11",
        "trusted_hosts": [state.gateway],
        **{
            name: services[name]
            for name in ("index_url", "ascend_index_url", "variant_index_url", "cpu_index_url")
            if name in services
        },
        **({"lmcache_ascend_repo": f"{services['git_url']}/LMCache-Ascend.git"} if "git_url" in services else {}),
        **({"hub_url": services["hf_url"]} if "hf_url" in services else {}),
    }
    # Hosts that are off stay in: a run has to say that it did not reach them.
    return [(host.name, _data(host, state, variables)) for host in state.hosts]


def _data(host: _Host, state: _State, variables: dict[str, _Any]) -> dict[str, _Any]:
    """How to reach a host, and what the playbook's variables are in the lab."""
    return {
        "ssh_hostname": host.address,
        "ssh_user": host.user,
        "ssh_key": state.ssh_key,
        "ssh_known_hosts_file": state.known_hosts,
        # A host that changed its key is refused, as it would be in production.
        "ssh_strict_host_key_checking": "yes",
        # The person who runs this has SSH settings of their own, which may not leak into the lab.
        "ssh_config_file": "/dev/null",
        "ssh_allow_agent": False,
        "ssh_look_for_keys": False,
        "_sudo": True,
        "vars": variables,
    }


lab = _hosts()
