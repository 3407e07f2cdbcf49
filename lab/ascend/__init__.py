"""Stand-in Ascend hardware and vendor software for a simulated host."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

from lab import boot_units
from lab.ascend.profile import Profile, load
from lab.ascend.tree import install_tree

_HERE = Path(__file__).resolve().parent
_LIBEXEC = "usr/local/libexec/lmcache-fleet-lab"
_ACCOUNT = "HwHiAiUser"

_HOLDER_UNIT = """\
[Unit]
Description=Somebody else's process on simulated NPU %i
After=lab-npu-devices.service

[Service]
EnvironmentFile=/etc/lmcache-fleet-lab/holder-%i.env
ExecStart=/usr/local/libexec/lmcache-fleet-lab/hold-npu %i ${MEGABYTES} ${NAME}

[Install]
WantedBy=multi-user.target
"""


def install(root: Path, profile: str, arch: str | None = None) -> Profile:
    """Makes the file system below *root* look like a host with the hardware of *profile*.

    To be called before the host boots; doing it again changes nothing. The profile can be changed on a stopped host,
    but reimaging is cleaner: files of the old profile that the new one doesn't have stay.

    Args:
        root: the host's root directory.
        profile: a name below ``lab/hardware``.
        arch: what ``uname -m`` says on the host; this machine's by default.
    """
    model = load(profile)
    arch = arch or platform.machine()
    _account(root)
    install_tree(root, model, arch)
    state = root / "etc/lmcache-fleet-lab"
    state.mkdir(parents=True, exist_ok=True)
    data = model.model_dump(mode="json")
    data["profile"] = profile
    (state / "hardware.json").write_text(json.dumps(data, indent=1) + "\n")
    _program(_HERE / "npu_smi.py", root / "usr/local/sbin/npu-smi")
    _program(_HERE / "make_devices.py", root / _LIBEXEC / "make-devices")
    _program(_HERE / "hold_npu.py", root / _LIBEXEC / "hold-npu")
    _units(root, model)
    locks = root / "var/lib/lmcache-fleet-lab"
    locks.mkdir(parents=True, exist_ok=True)
    for number in range(len(model.chips.ids) * model.chips.dies):
        # the locks themselves live in /run, where a lock's inode in /proc/locks is the file's own
        link = locks / f"npu{number}.lock"
        if not link.is_symlink():
            link.symlink_to(f"/run/lmcache-fleet-lab/npu{number}.lock")
    return model


def _program(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _units(root: Path, model: Profile) -> None:
    make = f"/{_LIBEXEC}/make-devices"
    boot_units.install_devices_unit(root, "lab-npu-devices.service", "Simulated NPU device nodes", make)
    (root / boot_units.UNITS / "lab-npu-holder@.service").write_text(_HOLDER_UNIT)
    wanted = "multi-user.target"
    for old in (root / boot_units.UNITS).glob(f"{wanted}.wants/lab-npu-holder@*"):
        old.unlink()
    for holder in model.holders:
        env = root / f"etc/lmcache-fleet-lab/holder-{holder.npu}.env"
        env.write_text(f"MEGABYTES={holder.megabytes}\nNAME={holder.name}\n")
        boot_units.enable(root, wanted, f"lab-npu-holder@{holder.npu}.service", "lab-npu-holder@.service")


def _account(root: Path) -> None:
    """Adds the group and the user that own the devices, with the first id from 1000 that is free as both."""
    passwd, group = root / "etc/passwd", root / "etc/group"
    users = [line.split(":") for line in passwd.read_text().splitlines() if line] if passwd.exists() else []
    groups = [line.split(":") for line in group.read_text().splitlines() if line] if group.exists() else []
    if any(user[0] == _ACCOUNT for user in users):
        return
    taken = {int(row[2]) for row in users + groups if len(row) > 2 and row[2].isdigit()}
    number = next(candidate for candidate in range(1000, 60000) if candidate not in taken)
    lines = {
        "passwd": f"{_ACCOUNT}:x:{number}:{number}::/home/{_ACCOUNT}:/usr/sbin/nologin",
        "group": f"{_ACCOUNT}:x:{number}:",
        "shadow": f"{_ACCOUNT}:!:19700::::::",
        "gshadow": f"{_ACCOUNT}:!::",
    }
    for name, line in lines.items():
        path = root / "etc" / name
        if name in ("passwd", "group") or path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            old = path.read_text() if path.exists() else ""
            path.write_text(old.rstrip("\n") + "\n" * bool(old) + line + "\n")
