"""Simulated devices: what /dev has and this process may open, and what the lab's hardware file says of them."""

import fcntl as _fcntl
import json as _json
import os as _os
import pathlib as _pathlib

_STATE = _pathlib.Path("/etc/lmcache-fleet-lab/hardware.json")
_LOCKS = _pathlib.Path("/run/lmcache-fleet-lab")
_held: list[int] = []
_current = 0
_initialized = False


def hardware() -> dict:
    """The lab's description of this host; empty where there is none."""
    try:
        return _json.loads(_STATE.read_text())
    except OSError:
        return {}


def _physical() -> list[int]:
    """Numbers of the device nodes that this process can open."""
    if not _os.access("/dev/davinci_manager", _os.R_OK | _os.W_OK):
        return []
    names = [name[7:] for name in _os.listdir("/dev") if name.startswith("davinci") and name[7:].isdigit()]
    return sorted(int(name) for name in names if _os.access("/dev/davinci" + name, _os.R_OK | _os.W_OK))


def visible() -> list[int]:
    """Numbers of the devices this process uses, in its own order."""
    if hardware().get("npu_smi_failure"):
        return []
    devices = _physical()
    wanted = _os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if wanted is None:
        return devices
    # relative to what is mounted, as the vendor's runtime counts
    indexes = [int(part) for part in wanted.split(",") if part.strip().isdigit()]
    return [devices[index] for index in indexes if index < len(devices)]


def is_available() -> bool:
    """Whether there is a device."""
    return bool(visible())


def device_count() -> int:
    """Number of visible devices."""
    return len(visible())


def current_device() -> int:
    """The device that this process has chosen, counted from 0."""
    _init()
    return _current


def set_device(device: int | str) -> None:
    """Chooses a device."""
    global _current
    _init()
    index = int(str(device).rpartition(":")[2])
    if index >= device_count():
        raise RuntimeError(f"Invalid device id: {index}, error code is 107001")
    _current = index


def get_device_name(device: int = 0) -> str:
    """The SoC's name."""
    return str(hardware().get("chips", {}).get("soc", "UNDEFINED"))


def mem_get_info(device: int = 0) -> tuple[int, int]:
    """Free and total bytes of a visible device."""
    data = hardware()
    chips = data["chips"]
    number = visible()[device]
    used = chips["idle_mb"] + sum(_others(number))
    if number % chips["dies"] == 0:
        card = data["cards"].get(str(chips["ids"][number // chips["dies"]]), {})
        used += card.get("hidden_mb", 0)
    total = chips["memory_mb"]
    return max(0, total - used) * 2**20, total * 2**20


def _others(number: int) -> list[int]:
    """MB that other processes hold of a device."""
    path = _LOCKS / f"npu{number}.lock"
    found = []
    try:
        inode = path.stat().st_ino
        lines = _pathlib.Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        if "->" in fields or len(fields) < 8 or int(fields[5].rsplit(":", 1)[1]) != inode:
            continue
        if int(fields[4]) != _os.getpid():
            found.append(int(fields[7]) + 1 if fields[1] == "POSIX" and fields[7] != "EOF" else 1024)
    return found


def hold(device: int, megabytes: int) -> None:
    """Marks a visible device as used by this process; the mark goes away with the process."""
    try:
        fd = _os.open(_LOCKS / f"npu{visible()[device]}.lock", _os.O_RDONLY)
        _fcntl.lockf(fd, _fcntl.LOCK_SH | _fcntl.LOCK_NB, megabytes, 0)
    except OSError as error:
        raise RuntimeError(f"aclrtSetDevice failed, the device is used, error code is 507899: {error}") from error
    _held.append(fd)


def release() -> None:
    """Gives all devices back."""
    while _held:
        _os.close(_held.pop())


def is_initialized() -> bool:
    """Whether this process has touched a device."""
    return _initialized


def _init() -> None:
    """What the runtime checks before the first use of a device."""
    global _initialized
    failure = hardware().get("npu_smi_failure")
    if failure:
        raise RuntimeError("npu initialization failed, error code is 507033: " + failure["lines"][-1])
    if not visible():
        raise RuntimeError("Can't get the number of NPU devices: no device node can be opened, error code is 507033")
    home = _os.environ.get("ASCEND_HOME_PATH", "")
    soc = get_device_name()
    base = _pathlib.Path(home) / f"{_os.uname().machine}-linux"
    if not (base / "ascend_ops_install.info").exists():
        raise RuntimeError(f"init runtime platform info failed, SocVersion={soc}, error code is 500001")
    _initialized = True
