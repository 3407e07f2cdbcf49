"""A small package index on loopback with real wheels, and a count of what it is asked for."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.packages.wheel import write_wheel


@dataclass
class LocalIndex:
    """Index pages and wheels below a folder, served while `serving` runs.

    Args:
        folder: where they lie.
        asked: paths of all requests.
        port: where it is served.
    """

    folder: Path
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def url(self, name: str = "main") -> str:
        """The address of one of its indexes."""
        return f"http://127.0.0.1:{self.port}/{name}/simple"

    def add(
        self, name: str, version: str, requires: Sequence[str] = (), *, index: str = "main", tag: str = "py3-none-any",
        files: dict[str, bytes] | None = None, python: str = ">=3.9",
    ) -> None:  # fmt: skip
        """Put a wheel into an index."""
        module = name.replace("-", "_")
        content = files or {f"{module}/__init__.py": f"version = '{version}'\n".encode()}
        page = self.folder / index / "simple" / name
        write_wheel(page, name, version, content, tag=tag, requires=requires, requires_python=python)
        self._write_page(page)

    def remove(self, name: str, version: str, index: str = "main") -> None:
        """Take a wheel away again."""
        page = self.folder / index / "simple" / name
        for path in page.glob(f"*-{version}-*.whl"):
            path.unlink()
        self._write_page(page)

    @staticmethod
    def _write_page(page: Path) -> None:
        hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(page.glob("*.whl"))}
        links = "".join(f'<a href="{name}#sha256={sha256}">{name}</a>\n' for name, sha256 in hashes.items())
        (page / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")

    @contextmanager
    def serving(self) -> Iterator[LocalIndex]:
        """Serve it on a free port."""
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

            def log_message(self, *arguments: object) -> None:
                pass

        handler = functools.partial(Handler, directory=str(self.folder))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
