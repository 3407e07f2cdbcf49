"""A small package index with pages of wheels: names, local versions and conflicts are those of the real ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from lab.packages.wheel import normalized, write_wheel

# Stands in a build's tag for the Python that the wheels are made for.
NATIVE = "@PYTHON@-@PYTHON@-manylinux_2_28_x86_64"
_TUPLE = "rocm7.2.4.torch2.10.git3d3aa833.cxx11abi1"
_CUDA13 = ("torch", "cupy-cuda13x", "numpy<=2.2.6", "transformers>=5.4")
_CUDA12 = ("torch", "cupy-cuda12x", "numpy<=2.2.6", "transformers>=5.4")
_ROCM = ("torch", "cupy-rocm-7-0", "numpy<=2.2.6", "transformers>=5.4")
_PLAIN = ("torch", "numpy<=2.2.6", "transformers>=5.4")


@dataclass(frozen=True)
class Build:
    """One wheel: where it lies, what it is, and the mark that tells which build was taken."""

    page: str
    name: str
    version: str
    mark: str = ""
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"


def _lmcache(page: str, version: str, mark: str, requires: tuple[str, ...], tag: str = NATIVE) -> Build:
    return Build(page, "lmcache", version, mark, requires, tag)


def builds() -> list[Build]:
    """What lies where."""
    index = [_lmcache("simple", version, "index, CUDA 13", _CUDA13) for version in
             ("0.5.3", "0.5.4rc4", "0.5.4", "0.5.5", "0.5.6", "0.5.7rc2")]  # fmt: skip
    common = [
        Build("simple", "torch", "2.13.0", requires=("numpy",)),
        Build("simple", "torch", "2.11.0"),
        Build("simple", "numpy", "2.2.6"),
        Build("simple", "numpy", "2.3.1"),
        Build("simple", "transformers", "5.19.0"),
        Build("simple", "vllm", "0.32.0", requires=("torch==2.13.0", "numpy>=2", "transformers>=4.57")),
        Build("simple", "nixl", "1.3.0"),
        Build("maca/simple", "mcpy", "13.1.0"),
        *(Build("simple", name, "13.6.0") for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy-rocm-7-0")),
    ]
    # torch's own indexes: other builds under the same versions, and old copies of common packages.
    torch = [
        Build("whl/cu129", "torch", "2.13.0+cu129", requires=("numpy",)),
        Build("whl/cu130", "torch", "2.13.0+cu130", requires=("numpy",)),
        Build("whl/rocm7.2", "torch", "2.11.0+rocm7.2"),
        Build("whl/rocm7.2", "torchvision", "0.26.0+rocm7.2", requires=("torch==2.11.0",)),
        Build("whl/cu129", "numpy", "1.26.4"),
        Build("whl/cu130", "numpy", "1.26.4"),
        Build("simple", "torchvision", "0.26.0", requires=("torch==2.11.0",)),
    ]
    pages = [
        # No local version: same name, same number, other content.
        _lmcache("releases/v0.5.6-cu129", "0.5.6", "page, CUDA 12.9", _CUDA12),
        _lmcache("releases/v0.5.3-rocm", "0.5.3+rocm7.2", "page, ROCm", _ROCM),
        _lmcache("releases/v0.5.4-rocm-torch210", f"0.5.4+{_TUPLE}", "page, ROCm 2.10", _ROCM),
        # All as it must be, but for the C++ ABI.
        _lmcache("releases/old-abi/v0.5.4-rocm-torch210", f"0.5.4+{_TUPLE[:-1]}0", "page, ROCm 2.10, old ABI", _ROCM),
        _lmcache("releases/v0.5.3-xpu", "0.5.3+xpu", "page, XPU", _PLAIN),
        _lmcache("releases/v0.5.5-musa", "0.5.5+musa", "page, MUSA", _PLAIN),
        _lmcache("releases/nightly", "0.5.8.dev12", "page, nightly CUDA 13", _CUDA13),
        _lmcache("releases/nightly-cu129", "0.5.8.dev12", "page, nightly CUDA 12.9", _CUDA12),
        _lmcache("releases/nightly-rocm", "0.5.4.dev15+rocm7.2", "page, nightly ROCm", _ROCM),
        # The nightly of days before a release: the index's candidate is newer.
        _lmcache("releases/nightly-before", "0.5.7.dev30", "page, nightly CUDA 13", _CUDA13),
    ]  # fmt: skip
    return [*index, *common, *torch, *pages]


# What a wheel holds besides its mark, and its entry points.
Contents = Callable[[Build], tuple[dict[str, bytes], str]]


def plain(build: Build) -> tuple[dict[str, bytes], str]:
    """Just enough to be imported."""
    modules = ("cuda_ops", "xpu_ops", "lmcache_native") if build.name == "lmcache" else ()
    return {f"{normalized(build.name)}/{module}.py": b"" for module in ("__init__", *modules)}, ""


def site(folder: Path, minor: int, listed: Sequence[Build], contents: Contents = plain) -> dict[str, tuple[str, bytes]]:
    """Path → content type and content of all pages and wheels."""
    linked: dict[str, list[str]] = {}
    served: dict[str, tuple[str, bytes]] = {}
    for build in listed:
        files, entry_points = contents(build)
        files[f"{normalized(build.name)}/_build.txt"] = build.mark.encode()
        wheel = write_wheel(
            folder / build.page.replace("/", "-"),
            build.name,
            build.version,
            files,
            tag=build.tag.replace("@PYTHON@", f"cp3{minor}"),
            requires=build.requires,
            entry_points=entry_points,
        )
        path = f"/files/{build.page}/{wheel.name}"
        served[path] = ("application/zip", wheel.read_bytes())
        project = "" if build.page.startswith("releases/") else f"/{build.name}"
        linked.setdefault(f"/{build.page}{project}", []).append(path)
    for page, files_ in linked.items():
        links = "".join(f'<a href="{quote(path)}">{path.rpartition("/")[2]}</a><br>\n' for path in files_)
        served[page] = ("text/html", f"<!DOCTYPE html><html><body>\n{links}</body></html>\n".encode())
    return served


@contextmanager
def serve(
    folder: Path,
    address: str = "127.0.0.1",
    minor: int = sys.version_info[1],
    listed: Sequence[Build] = (),
    contents: Contents = plain,
    other: str = "",
) -> Iterator[str]:
    """The base URL of the running site.

    Args:
        folder: where the wheels are written.
        address: this machine's, to listen on.
        minor: wheels are for Python 3.minor.
        listed: other wheels than those of `builds`.
        contents: what the wheels hold.
        other: an index that has the projects that this one hasn't.
    """
    content = site(folder, minor, listed or builds(), contents)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0]).rstrip("/")
            elsewhere = other and path not in content and path.startswith("/simple/")
            kind, body = content.get(path, ("text/plain", b"not found"))
            self.send_response(302 if elsewhere else 200 if path in content else 404)
            if elsewhere:
                self.send_header("Location", f"{other}/{path.removeprefix('/simple/')}/")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name is the protocol's

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
