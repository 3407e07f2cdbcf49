#!/usr/bin/python3 -IS
# mypy: ignore-errors
"""Holds a simulated NPU: ``hold-npu DEVICE MEGABYTES [NAME]`` until it is killed.

Stands for somebody else's process on the card. The lock says how many MB it uses; see the stand-in ``npu-smi``.
"""

import fcntl
import os
import signal
import sys


def main(words: "list[str]") -> None:
    device, megabytes = int(words[0]), int(words[1])
    fd = os.open("/run/lmcache-fleet-lab/npu%d.lock" % device, os.O_RDONLY)
    fcntl.lockf(fd, fcntl.LOCK_SH, megabytes, 0)
    if len(words) > 2:
        with open("/proc/self/comm", "w", encoding="ascii") as handle:
            handle.write(words[2][:15])
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
