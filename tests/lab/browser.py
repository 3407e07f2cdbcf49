"""A headless Chromium, spoken to over a pipe: the DevTools protocol without a network socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]


class Page:
    """One page.

    Args:
        to: file descriptor for commands.
        back: file descriptor for answers and events.
    """

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.events: list[dict[str, Any]] = []
        self.session = ""
        self._number, self._rest = 0, b""

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A command's answer; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            block = os.read(self.back, 1 << 16)
            assert block, "the browser ended"
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def open(self, url: str, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page at a width, and wait until it is complete."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=url)
        until = time.monotonic() + 30
        while self.value("location.href + document.readyState") != f"{url}complete":
            assert time.monotonic() < until, f"{url} is not complete"
            time.sleep(0.05)

    def of(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A fresh browser with one empty page.

    Args:
        folder: for its profile.
    """
    assert CHROMIUM
    command_out, command_in = os.pipe()
    answer_out, answer_in = os.pipe()
    # The browser reads commands from its descriptor 3 and answers on 4. Debian's sh copies only descriptors below 10.
    plumbed = ["bash", "-c", f'exec "$@" 3<&{command_out} 4>&{answer_in}', "sh", CHROMIUM, *_FLAGS]
    process = subprocess.Popen(
        [*plumbed, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(command_out, answer_in), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(command_out)
    os.close(answer_in)
    try:
        page = Page(command_in, answer_out)
        target = page.ask("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.ask(f"{domain}.enable")
        yield page
    finally:
        with suppress(AssertionError, OSError):
            page.session = ""
            page.ask("Browser.close")
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(command_in)
        os.close(answer_out)
