"""The report in a real browser: nothing is fetched, nothing is logged, nothing sticks out, on paper too."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_fleet.reporters.html import html
from tests.lab.browser import CHROMIUM, Page, browser
from tests.unit.test_report import troubled

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install -y chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report to look at: LMCACHE_FLEET_TEST_REPORT, or one with all that a report can have."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html(troubled()), encoding="utf-8")
    return Path(os.environ.get("LMCACHE_FLEET_TEST_REPORT", path)).resolve().as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_fetches_nothing_and_says_nothing_on_the_console(page: Page, url: str, width: int, dark: bool) -> None:
    page.open(url, width, dark=dark)
    kept = page.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
    if folder := os.environ.get("LMCACHE_FLEET_TEST_SCREENSHOTS"):
        Path(folder, f"report-{width}-{'dark' if dark else 'light'}.png").write_bytes(base64.b64decode(kept))
    asked = [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    assert [item for item in asked if not item.startswith("data:")] == [url]
    assert not page.of("Runtime.exceptionThrown")
    assert not page.of("Runtime.consoleAPICalled")
    assert not page.of("Log.entryAdded")
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value("document.title").endswith("fleet report")
    body = page.value("getComputedStyle(document.body).backgroundColor")
    assert (body == "rgb(17, 22, 29)") is dark


def test_it_is_a_document_that_a_screen_reader_can_follow(page: Page, url: str) -> None:
    page.open(url, 1280)
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
    assert {"banner", "main", "heading", "table", "columnheader", "rowheader"} <= set(roles)
    unnamed = [
        node for node in nodes
        if node["role"]["value"] in {"image", "img", "link", "button"} and not node.get("name", {}).get("value")
    ]  # fmt: skip
    assert not unnamed


def test_it_prints_on_white_paper_whatever_the_screen(page: Page, url: str) -> None:
    page.open(url, 1280, dark=True)
    printed = base64.b64decode(page.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    if folder := os.environ.get("LMCACHE_FLEET_TEST_SCREENSHOTS"):
        Path(folder, "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF")
    page.ask("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
