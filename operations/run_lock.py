"""A host's run lock: one run at a time works on a host, and a run that is gone is in nobody's way.

It is held by a program on the host that lives as long as its connection. Where the line breaks without the host being
told, sshd would keep that program for hours, so it also wants a sign of life every now and then.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Callable

from lmcache_fleet.layout import Layout
from lmcache_fleet.shell import words
from operations import connection
from operations.channel import Channel
from operations.host_fault import HostFault

# Seconds between signs of life, and without one until the lock is given up. The control machine gives its connection
# up after 60 s without an answer (operations.transport), before the host gives the lock up.
BEAT = 5
SILENT_FOR = 75


class RunLock:
    """The run lock of one host.

    Args:
        layout: paths on the host.
        open_channel: starts a script on the host.
    """

    def __init__(self, layout: Layout, open_channel: Callable[[str], Channel]) -> None:
        self._layout = layout
        self._open_channel = open_channel
        self._channel: Channel | None = None
        self._over = threading.Event()

    def hold(self) -> None:
        """Take the lock, or see that it is still held.

        Raises:
            HostFault: another run holds it, or the host gave it up.
        """
        if self._channel is not None:
            if self._channel.ended():
                raise HostFault("the host heard nothing of this run and gave its lock up", connection.REMEDY)
            return
        channel = self._open_channel(lock_script(self._layout, _holder()))
        answer = channel.answer
        if answer.startswith("busy"):
            raise HostFault(
                f"another run works on this host: {answer.removeprefix('busy').strip()}",
                "wait for it to end; its lock goes when its process or its connection ends",
            )
        if answer != "held":
            raise HostFault(f"the host's lock can't be taken: {answer or 'no answer'}", connection.REMEDY)
        self._channel = channel
        threading.Thread(target=self._live, args=(channel,), daemon=True).start()

    def release(self) -> None:
        """Give the lock back."""
        self._over.set()
        held, self._channel = self._channel, None
        if held is not None:
            held.finish()

    def _live(self, channel: Channel) -> None:
        while not self._over.wait(BEAT):
            try:
                channel.write(b".")
            except (OSError, ValueError):
                # The connection is gone: whoever next needs the lock is told.
                return


def lock_script(layout: Layout, me: str, silent_for: float = SILENT_FOR) -> str:
    """Takes the lock, says `held` and keeps it as long as it is sent signs of life; else says `busy` and who has it.

    A holder is waited for as long as it gives no sign of life: either it gives one, and is at work, or it goes.

    Args:
        layout: paths on the host.
        me: who takes the lock.
        silent_for: seconds without a sign of life until the lock is given up.
    """
    lock, holder = words(layout.lock), words(f"{layout.lock}.holder")
    living = f'[ -n "$(timeout {silent_for:g} head -c 1)" ]'
    hold = f"printf '%s\\n' {words(me)} > {holder}; echo held; while {living}; do touch {holder}; done"
    sign = f"$(stat -c %y {holder} 2>/dev/null)"
    return (
        f"mkdir -p {words(layout.prefix)} || exit; seen={sign}; left={int(2 * silent_for) + 30}; "
        f"while :; do flock -n -E 75 {lock} sh -c {words(hold)} && exit; [ $? = 75 ] || exit; "
        f'[ "{sign}" = "$seen" ] && [ $left -gt 0 ] || break; left=$((left - 1)); sleep 0.5; done; '
        f"printf 'busy '; cat {holder}"
    )


def _holder() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()} since {since}"
