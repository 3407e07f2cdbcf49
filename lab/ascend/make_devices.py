#!/usr/bin/python3 -IS
# mypy: ignore-errors
"""Makes the simulated device nodes and lock files at boot (a container's /dev and /run are empty each time)."""

import grp
import json
import os
import pwd
import stat

LOCKS = "/run/lmcache-fleet-lab"
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")


def make_node(path, uid, gid):
    """Makes a character device like /dev/null, or a plain file where that isn't allowed."""
    if not os.path.lexists(path):
        try:
            os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(1, 3))
        except OSError:
            with open(path, "wb"):
                pass
    os.chown(path, uid, gid)
    os.chmod(path, 0o660)


def main():
    with open("/etc/lmcache-fleet-lab/hardware.json", encoding="utf-8") as handle:
        chips = json.load(handle)["chips"]
    uid, gid = pwd.getpwnam("HwHiAiUser").pw_uid, grp.getgrnam("HwHiAiUser").gr_gid
    count = len(chips["ids"]) * chips["dies"]
    for name in [*("davinci%d" % number for number in range(count)), *MANAGERS]:
        make_node("/dev/" + name, uid, gid)
    os.makedirs(LOCKS, exist_ok=True)
    for number in range(count):
        path = "%s/npu%d.lock" % (LOCKS, number)
        with open(path, "ab"):
            pass
        os.chmod(path, 0o666)


if __name__ == "__main__":
    main()
