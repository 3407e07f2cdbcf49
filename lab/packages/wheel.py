"""Writes wheels: a zip with metadata and a RECORD, byte for byte the same each time."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_DATE = (2026, 1, 1, 0, 0, 0)


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    return info


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def normalized(name: str) -> str:
    """A distribution's name as file names have it."""
    return name.replace("-", "_").replace(".", "_").lower()


def unpacked(
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    requires_python: str = ">=3.10",
    entry_points: str = "",
    summary: str = "",
) -> dict[str, bytes]:
    """All files of a wheel, or of a distribution that is installed as they lie. Arguments as for `write_wheel`."""
    info = f"{normalized(name)}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
    metadata += [f"Requires-Python: {requires_python}", *(f"Requires-Dist: {line}" for line in requires)]
    pure = "true" if tag.endswith("-any") else "false"
    content = dict(files)
    content[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: lmcache-fleet lab\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode()
    )
    if entry_points:
        content[f"{info}/entry_points.txt"] = entry_points.encode()
    record = "".join(f"{path},sha256={_hash(data)},{len(data)}\n" for path, data in content.items())
    record += f"{info}/RECORD,,\n"
    content[f"{info}/RECORD"] = record.encode()
    return content


def write_wheel(
    out: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    requires_python: str = ">=3.10",
    entry_points: str = "",
    summary: str = "",
    build: str = "",
) -> Path:
    """Writes one wheel into *out* and gives its path.

    Args:
        out: the directory.
        name: the distribution's name as its metadata says it.
        version: its version.
        files: path inside site-packages -> content.
        tag: the wheel's tag.
        requires: ``Requires-Dist`` lines.
        requires_python: ``Requires-Python``.
        entry_points: content of ``entry_points.txt``.
        summary: one line; ours says that it is a stand-in.
        build: the build number that some wheels have in their name.
    """
    content = unpacked(
        name, version, files, tag=tag, requires=requires, requires_python=requires_python, entry_points=entry_points,
        summary=summary,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    middle = f"-{build}" if build else ""
    target = out / f"{normalized(name)}-{version}{middle}-{tag}.whl"
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for path, data in content.items():
            archive.writestr(_entry(path), data)
    partial.replace(target)
    return target


def add_files(source: Path, out: Path, files: Mapping[str, bytes], tag: str) -> Path:
    """Copies a wheel under another *tag* with *files* added, its RECORD made anew."""
    with zipfile.ZipFile(source) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    info = next(name.partition("/")[0] for name in content if name.endswith(".dist-info/METADATA"))
    content.pop(f"{info}/RECORD")
    content.update(files)
    old = content[f"{info}/WHEEL"].decode().splitlines()
    new = [line for line in old if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    content[f"{info}/WHEEL"] = ("\n".join([*new, "Root-Is-Purelib: false", f"Tag: {tag}"]) + "\n").encode()
    record = "".join(f"{path},sha256={_hash(data)},{len(data)}\n" for path, data in content.items())
    base = "-".join(source.name.split("-")[:2])
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{base}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as made:
        for path, data in content.items():
            made.writestr(_entry(path), data)
        made.writestr(_entry(f"{info}/RECORD"), (record + f"{info}/RECORD,,\n").encode())
    return target
