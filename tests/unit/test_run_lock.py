"""The run lock's program, as it runs on a host: held by signs of life, and by nothing else."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.layout import Layout
from lmcache_fleet.shell import words
from operations.channel import LocalChannel
from operations.host_fault import HostFault
from operations.run_lock import RunLock, lock_script

SILENT_FOR = 1.5


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "prefix"))


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.communicate()


def take(layout: Layout, me: str, started: list[subprocess.Popen[str]]) -> tuple[str, subprocess.Popen[str]]:
    """Run the program; its first line."""
    script = lock_script(layout, me, SILENT_FOR)
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


def opening(script: str, opened: list[LocalChannel]) -> LocalChannel:
    opened.append(LocalChannel(words("sh", "-c", script)))
    return opened[-1]


def test_a_holder_that_lives_is_named_and_keeps_the_lock(layout: Layout, started: list[Any]) -> None:
    answer, first = take(layout, "first's run", started)
    assert answer == "held"
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.2):
            first.stdin.write(".")
            first.stdin.flush()

    beating = threading.Thread(target=live)
    beating.start()
    try:
        for _ in range(2):
            began = time.monotonic()
            assert take(layout, "second's run", started)[0] == "busy first's run"
            assert time.monotonic() - began < SILENT_FOR
        time.sleep(SILENT_FOR)
        assert first.poll() is None
    finally:
        over.set()
        beating.join()


def test_a_holder_that_ends_leaves_the_lock_at_once(layout: Layout, started: list[Any]) -> None:
    _, first = take(layout, "first", started)
    first.communicate()
    began = time.monotonic()
    assert take(layout, "second", started)[0] == "held"
    assert time.monotonic() - began < SILENT_FOR / 2


def test_a_holder_of_whom_nothing_is_heard_is_waited_for_and_loses_the_lock(layout: Layout, started: list[Any]) -> None:
    """As after a broken line: the program on the host isn't told that its run is gone."""
    _, first = take(layout, "first", started)
    began = time.monotonic()
    assert take(layout, "second", started)[0] == "held"
    assert 0.5 * SILENT_FOR < time.monotonic() - began < 3 * SILENT_FOR
    assert first.wait(5) == 0


def test_a_run_that_lost_its_lock_is_told(layout: Layout) -> None:
    opened: list[LocalChannel] = []
    lock = RunLock(layout, lambda script: opening(script, opened))
    lock.hold()
    lock.hold()
    (channel,) = opened
    channel._process.kill()
    channel._process.communicate()
    with pytest.raises(HostFault, match="gave its lock up"):
        lock.hold()


def test_a_lock_that_is_given_back_is_free(layout: Layout, started: list[Any]) -> None:
    opened: list[LocalChannel] = []
    lock = RunLock(layout, lambda script: opening(script, opened))
    lock.hold()
    # A sign of life is taken as what it is, and the program goes on.
    opened[0].write(b".")
    assert not opened[0].ended()
    assert take(layout, "another", started)[0].startswith("busy ")
    lock.release()
    assert opened[0].ended()
    assert take(layout, "another", started)[0] == "held"
