"""A host's disk: an overlay over the base, on this machine's file system or on a small one of its own."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

from lab.shell import LabError, run
from lab.state import Host, Paths


def directory(paths: Paths, host: Host) -> Path:
    """Where a host's own data is: a directory, or a small file system of its own."""
    return paths.host(host.name) / "disk"


def mount(paths: Paths, host: Host) -> None:
    """Make a host's root file system visible; what is mounted already stays."""
    root, disk = paths.root(host.name), directory(paths, host)
    root.mkdir(parents=True, exist_ok=True)
    disk.mkdir(exist_ok=True)
    if host.disk_gb and not os.path.ismount(disk):
        image = paths.host(host.name) / "disk.img"
        if not image.exists():
            new = image.with_suffix(".new")
            with new.open("wb") as file:
                file.truncate(host.disk_gb * 2**30)
            run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-m", "1", new])
            new.rename(image)
        run(["mount", "-o", "loop,noatime", image, disk])
    for part in ("up", "work"):
        (disk / part).mkdir(exist_ok=True)
    if not os.path.ismount(root):
        lower = paths.bases / host.base
        if not lower.is_dir():
            raise LabError(f"the base that {host.name} was made from is gone; `reimage {host.name}`")
        layers = f"lowerdir={lower},upperdir={disk}/up,workdir={disk}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", layers, root])


def unmount(paths: Paths, host: Host) -> None:
    """Take a host's root file system away, its disk too."""
    for path in (paths.root(host.name), directory(paths, host)):
        until = time.monotonic() + 5
        while os.path.ismount(path):
            if run(["umount", path], check=False).returncode and time.monotonic() > until:
                # Somebody looks into it from this machine: it goes when they leave.
                run(["umount", "--lazy", path])
            time.sleep(0.05 if os.path.ismount(path) else 0)


def stop(paths: Paths, host: Host) -> None:
    """Stop an ext4 in its tracks, without a flush: what was not synced is lost, as when the current goes."""
    ext4_shutdown, without_log_flush = 0x8004587D, 2
    handle = os.open(directory(paths, host), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(handle, ext4_shutdown, struct.pack("I", without_log_flush))
    finally:
        os.close(handle)
