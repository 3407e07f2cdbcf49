"""Stands for the device compiler: takes time and memory, and leaves a file.

LMCACHE_FLEET_LAB_BUILD_SECONDS and LMCACHE_FLEET_LAB_BUILD_MB say how much of each (a kernel), for tests of limits;
LMCACHE_FLEET_LAB_BUILD_FAIL=1 makes it fail; LMCACHE_FLEET_LAB_BUILD_LOG names a file that gets a line at each start
and end, from which a test sees how many ran at once.
"""

import os
import sys
import time
from pathlib import Path


def log(word: str, kernel: str) -> None:
    """Adds a line to the job log."""
    file = os.environ.get("LMCACHE_FLEET_LAB_BUILD_LOG")
    if file:
        with Path(file).open("a") as handle:
            handle.write(f"{time.time():.3f} {word} {kernel} {os.getpid()}\n")


def main(kernel: str, soc: str, out: str) -> int:
    """Makes one kernel."""
    log("start", kernel)
    if os.environ.get("LMCACHE_FLEET_LAB_BUILD_FAIL") == "1":
        print(f"error: {kernel}: the lab was told to fail this build", file=sys.stderr)
        return 1
    ballast = bytearray(int(os.environ.get("LMCACHE_FLEET_LAB_BUILD_MB", "4")) * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    time.sleep(float(os.environ.get("LMCACHE_FLEET_LAB_BUILD_SECONDS", "0.05")))
    Path(out).write_text(f"{kernel} {soc}\n")
    log("end", kernel)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
