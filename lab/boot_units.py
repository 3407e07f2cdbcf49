"""systemd units that the lab puts on a host's disk before it boots."""

from __future__ import annotations

from pathlib import Path

UNITS = "etc/systemd/system"
_DEVICES = """\
[Unit]
Description={description}
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={command}

[Install]
WantedBy=sysinit.target
"""


def install_devices_unit(root: Path, unit: str, description: str, command: str) -> None:
    """Have a host make its simulated device nodes, early at every boot.

    Args:
        root: the host's root directory.
        unit: name of the unit.
        description: what systemd calls it.
        command: makes the nodes; as for `ExecStart=`.
    """
    folder = root / UNITS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / unit).write_text(_DEVICES.format(description=description, command=command), encoding="utf-8")
    enable(root, "sysinit.target", unit)


def enable(root: Path, target: str, unit: str, template: str | None = None) -> None:
    """Have a target want a unit; again changes nothing.

    Args:
        root: the host's root directory.
        target: what wants it.
        unit: name of the unit.
        template: the file of the unit, when it is an instance.
    """
    link = root / UNITS / f"{target}.wants" / unit
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(f"/{UNITS}/{template or unit}")
