"""Container images for the lab: a small base with Python from the hosts' own base, vendors' stand-ins, a registry.

The registry is Debian's docker-registry; images are pushed with skopeo: what a host pulls went through a real one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.shell import LabError, run

NEEDED = ("docker-registry", "skopeo")
_PROGRAMS = (
    "sh",
    "env",
    "cat",
    "ls",
    "id",
    "sleep",
    "rm",
    "mkdir",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
)
_LIBRARIES = (
    "c",
    "m",
    "z",
    "dl",
    "pthread",
    "util",
    "rt",
    "expat",
    "ssl",
    "crypto",
    "ffi",
    "bz2",
    "lzma",
    "uuid",
    "tinfo",
    "tinfow",
    "ncursesw",
    "selinux",
    "pcre2-8",
    "acl",
    "attr",
    "sqlite3",
    "readline",
    "db-5.3",
    "resolv",
    "nss_dns",
    "nss_files",
    "gcc_s",
    "stdc++",
)

Files = Mapping[str, bytes]


def missing() -> list[str]:
    """Packages that this machine lacks for the registry."""
    return [name for name in NEEDED if shutil.which(name) is None]


@contextmanager
def registry(address: str, port: int, folder: Path) -> Iterator[str]:
    """A registry on this machine, without TLS; gives `address:port`.

    Args:
        address: where it listens, such as the lab's gateway.
        port: there.
        folder: where it keeps images; made when missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {folder}/images}}, "
        f"delete: {{enabled: true}}}}\nhttp: {{addr: '{address}:{port}'}}\n"
    )
    with (folder / "registry.log").open("ab") as log:
        server = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{address}:{port}/v2/", timeout=2).close()
                break
            except (OSError, urllib.error.URLError) as error:
                if server.poll() is not None or time.monotonic() > end:
                    raise LabError(f"the registry doesn't answer: {error} ({folder}/registry.log)") from error
                time.sleep(0.1)
        yield f"{address}:{port}"
    finally:
        server.terminate()
        server.wait(10)


def push(target: str, layers: Iterable[bytes], work: Path, env: Mapping[str, str] | None = None) -> str:
    """Push an image; gives its digest.

    Args:
        target: `registry/name:tag`.
        layers: tar archives, the lowest first.
        work: a directory for scratch files.
        env: variables of the image.
    """
    with tempfile.TemporaryDirectory(dir=work) as place:
        layout = Path(place)
        blobs = layout / "blobs/sha256"
        blobs.mkdir(parents=True)

        def blob(data: bytes, kind: str) -> dict[str, object]:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

        plain = list(layers)
        packed = [blob(gzip.compress(layer, 1, mtime=0), "layer.v1.tar+gzip") for layer in plain]
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
        config = {
            "architecture": machine,
            "os": "linux",
            # As vendors' images have it: what isn't overridden starts something else.
            "config": {"Env": [f"{k}={v}" for k, v in variables.items()], "Entrypoint": ["sleep", "1000"]},
            "history": [{"created_by": f"lab layer {number}"} for number in range(len(plain))],
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in plain],
            },
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(json.dumps(config, sort_keys=True).encode(), "config.v1+json"),
            "layers": packed,
        }
        top = blob(json.dumps(manifest, sort_keys=True).encode(), "manifest.v1+json")
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
        copy = ["skopeo", "copy", "--insecure-policy", "--preserve-digests", "--dest-tls-verify=false"]
        run([*copy, f"oci:{layout}", f"docker://{target}"])
        return str(top["digest"])


def layer(files: Files) -> bytes:
    """A layer of files: path → content; the same bytes each time."""
    archive = _Archive()
    for name, data in sorted(files.items()):
        archive.file(name, data, 0o755 if "/bin/" in f"/{name}" else 0o644)
    return archive.content()


def base_layer(root: Path, pip: Path) -> bytes:
    """Python, pip and a shell out of a Debian root file system, about 80 MB.

    Args:
        root: the root file system, such as the lab's base.
        pip: pip's wheel.
    """
    python = root / f"usr/lib/python{python_minor(root)}"
    wanted = [root / "usr/bin" / name for name in _PROGRAMS]
    triplet = f"{platform.machine()}-linux-gnu"
    for name in _LIBRARIES:
        wanted += root.glob(f"usr/lib/{triplet}/lib{name}.so*")
    loaders = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
    archive = _Archive()
    for link, target in (("bin", "usr/bin"), ("lib", "usr/lib")):
        archive.entry(link, tarfile.SYMTYPE, target=target)
    for name in ("tmp", "var/tmp"):
        archive.entry(name, tarfile.DIRTYPE, 0o1777)
    for path in [*wanted, root / loaders[platform.machine()]]:
        if path.exists() or path.is_symlink():
            data = path.resolve().read_bytes() if not path.is_symlink() else _inside(root, path).read_bytes()
            archive.file(str(path.relative_to(root)), data)
    for path in sorted(python.rglob("*")):
        parts = set(path.parts)
        if path.is_file() and not parts & {"__pycache__", "test", "idlelib", "EXTERNALLY-MANAGED"}:
            archive.file(str(path.relative_to(root)), _inside(root, path).read_bytes())
    _add_wheel(archive, pip, f"usr/local/lib/{python.name}/dist-packages")
    return archive.content()


def _inside(root: Path, path: Path) -> Path:
    # Links of the root file system are read as they are meant there.
    for _ in range(8):
        if not path.is_symlink():
            return path
        target = str(path.readlink())
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
    raise LabError(f"{path} links in a circle")


class _Archive:
    """A layer's archive in which every directory is named: docker lets nobody but root into one that isn't."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._archive = tarfile.TarFile(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)
        self._known = {"."}

    def entry(self, name: str, kind: bytes, mode: int = 0o755, target: str = "") -> None:
        """A directory or a link."""
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname = kind, mode, target
        self._above(name)
        self._known.add(name)
        self._archive.addfile(info)

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        """A file."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), mode
        self._above(name)
        self._archive.addfile(info, io.BytesIO(data))

    def content(self) -> bytes:
        """The whole archive."""
        self._archive.close()
        return self._out.getvalue()

    def _above(self, name: str) -> None:
        parent = str(Path(name).parent)
        if parent not in self._known:
            self.entry(parent, tarfile.DIRTYPE)


def _add_wheel(archive: _Archive, wheel: Path, site: str) -> None:
    import zipfile

    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if not name.endswith("/"):
                archive.file(f"{site}/{name}", packed.read(name))


def wheel_layer(wheels: Iterable[Path], minor: str) -> bytes:
    """A layer with wheels unpacked where the image's Python finds them, as a vendor's image has them.

    Args:
        wheels: the files.
        minor: version of the image's Python, such as `3.11`.
    """
    archive = _Archive()
    for wheel in wheels:
        _add_wheel(archive, wheel, f"usr/local/lib/python{minor}/dist-packages")
    return archive.content()


def python_minor(root: Path) -> str:
    """Version of a root file system's Python, such as `3.11`."""
    found = sorted(root.glob("usr/lib/python3.[0-9]*"), key=lambda path: int(path.name.split(".")[1]))
    return found[-1].name.removeprefix("python")
