"""Child processes that never outlive the program, whatever ends it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lmcache_fleet.evidence import Exit

_SHM = Path("/dev/shm")  # noqa: S108 - where shared memory lives, nothing is written here
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class InterruptedRun(Exception):
    """A signal asked the program to end."""


class TimeLimitReached(Exception):
    """The verification as a whole took too long."""


def _prctl(option: int, value: int) -> None:
    """Set a process attribute where the C library knows how."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _in_child() -> None:
    """Before the child's program starts: end it when this program is killed without a chance to clean up."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stat(pid: int) -> tuple[int, str] | None:
    """Parent and state of a process; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(parent), state


def descendants(root: int) -> list[int]:
    """Live processes below one, not itself; also those that made a session of their own."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None and stat[1] not in "ZX":
            parents[int(entry.name)] = stat[0]
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found.extend(sorted(level))
    return found


def environment_of(pid: int) -> dict[str, str] | None:
    """A process's environment at its start; None when it can't be read or was overwritten by its title."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = [item.partition(b"=") for item in raw.split(b"\0") if b"=" in item]
    found = {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
    return found if "PATH" in found else None


def title_of(pid: int) -> str:
    """What `ps` would call a process, in short."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
        if words and "::" in words[0]:
            return words[0]
    return "python"


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is multiprocessing's resource tracker."""
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def mapped_shared_memory(pids: Sequence[int]) -> set[Path]:
    """Files in /dev/shm that processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                _, sep, name = line.partition(f"{_SHM}/")
                if sep:
                    found.add(_SHM / name.removesuffix(" (deleted)"))
    return found


@dataclass
class Child:
    """A child process and its log.

    Args:
        name: `engine`, `server` or the like, with a number where there are several.
        process: the process, leader of its own group.
        log: its standard output and error, merged.
        stop_mark: length of the log when it was asked to stop.
        exit: how it ended.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stop_mark: int | None = None
    exit: Exit | None = None

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def mark(self) -> int:
        """A position in its log: the end as of now."""
        return self.log.stat().st_size if self.log.exists() else 0

    def text(self, start: int = 0, end: int | None = None) -> str:
        """Its log between two positions."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else max(0, end - start)).decode("utf-8", "replace")

    def processes(self) -> list[int]:
        """It and all processes below it."""
        return [self.process.pid, *descendants(self.process.pid)]


class Nursery:
    """Starts children, and ends all of them, and what they leave behind, when it closes.

    Args:
        logs: directory for their logs.
        stop_s: seconds between asking a child to stop and killing it.
        say: shows progress.
    """

    def __init__(self, logs: Path, stop_s: float, say: Callable[[str], None]) -> None:
        self.logs, self.stop_s, self.say = logs, stop_s, say
        self.children: list[Child] = []
        self.shared: set[Path] = set()
        # Orphans of a dying child come to this process rather than to init, so that none is lost sight of.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Child:
        """Start a child in a process group of its own, output going to its log."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_in_child,  # noqa: PLW1509 - this program has one thread
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def stop(self, child: Child) -> None:
        """Ask a child to stop, wait, and kill what is left of it."""
        if child.exit is not None:
            return
        asked = child.alive()
        members = child.processes()
        self.shared |= mapped_shared_memory(members)
        killed = False
        if asked:
            child.stop_mark = child.mark()
            self.say(f"stopping {child.name}")
            # The leader first and alone: it takes its own children down in order, which keeps the log clean.
            child.process.terminate()
            killed = not self._gone(child.process, self.stop_s)
        if not killed:
            self._signal(child, members, signal.SIGTERM)
        if killed or not self._all_gone(members, 2.0):
            self._kill(child, members)
        code = child.process.wait(timeout=10)
        self._all_gone(members, 5.0)
        child.exit = Exit(code, asked, killed)

    def close(self) -> None:
        """End every child, every stray process below this one, and shared memory that they left."""
        for child in reversed(self.children):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.stop(child)
        strays = descendants(os.getpid())
        self.shared |= mapped_shared_memory(strays)
        for pid in strays:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._all_gone(strays, 5.0)
        for path in self.shared:
            with contextlib.suppress(OSError):
                path.unlink()

    def own_shared_memory(self, name: str) -> None:
        """Remove files of a name that only this run uses, when it closes."""
        with contextlib.suppress(OSError):
            self.shared |= {path for path in _SHM.iterdir() if name in path.name}

    @staticmethod
    def _gone(process: subprocess.Popen[bytes], seconds: float) -> bool:
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill(self, child: Child, members: Sequence[int]) -> None:
        """Kill what is left, Python's resource trackers last: they end by themselves, and remove leaked semaphores."""
        for pid in [*members, *child.processes()]:
            if not is_resource_tracker(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if not self._all_gone(members, 3.0):
            self._signal(child, members, signal.SIGKILL)

    @staticmethod
    def _signal(child: Child, members: Sequence[int], number: signal.Signals) -> None:
        """Signal a child's group, and those of its processes that left the group."""
        with contextlib.suppress(OSError):
            os.killpg(child.process.pid, number)
        for pid in members[1:]:
            with contextlib.suppress(OSError):
                if os.getpgid(pid) != child.process.pid:
                    os.kill(pid, number)

    @staticmethod
    def _all_gone(pids: Sequence[int], seconds: float) -> bool:
        """Wait for processes to end; those that fell to this process are reaped."""
        deadline = time.monotonic() + seconds
        while True:
            for pid in pids[1:]:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
            if not any((stat := _stat(pid)) and stat[1] not in "ZX" for pid in pids):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


@contextlib.contextmanager
def limits(total_s: float) -> Iterator[None]:
    """Turn signals and the overall time limit into exceptions in the main thread; ignore further signals on leaving."""

    def interrupted(number: int, _frame: FrameType | None) -> None:
        raise InterruptedRun(signal.Signals(number).name)

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimitReached(f"{total_s:.0f} s")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, interrupted)
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, total_s)
    try:
        yield
    finally:
        # Cleaning up is bounded by itself and must not be cut short.
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
