"""A slow cable: carries frames between two network links with a delay. Ends by itself when a link goes.

The kernel's own netem is missing on many small kernels, so the lab does without it. Frames carry the kernel's offload
header (PACKET_VNET_HDR): unsplit segments and unfinished checksums pass through as they are.
"""

from __future__ import annotations

import errno
import random
import select
import socket
import sys
import time
from collections import deque

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
LARGEST = 2**17


def open_link(name: str) -> socket.socket:
    """A raw socket on a link that gets what arrives there, and not what we send."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        link.setsockopt(socket.SOL_SOCKET, option, 2**23)
    link.bind((name, ETH_P_ALL))
    link.setblocking(False)
    return link


def carry(near: str, far: str, delay: float, loss: float) -> None:
    """Carry frames both ways, each ``delay`` seconds late; a share of ``loss`` of those from ``near`` is lost."""
    links = {link.fileno(): link for link in (open_link(near), open_link(far))}
    first, second = links
    other = {first: second, second: first}
    # The delay is the same for all, so what came first is due first.
    waiting: deque[tuple[float, int, bytes]] = deque()
    poll = select.poll()
    for number in links:
        poll.register(number, select.POLLIN)
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
        for number, _ in poll.poll(pause):
            try:
                frame = links[number].recv(LARGEST)
            except BlockingIOError:
                continue
            if number != first or random.random() >= loss:
                waiting.append((time.monotonic() + delay, other[number], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, number, frame = waiting.popleft()
            try:
                links[number].send(frame)
            except OSError as error:
                # A full queue loses a frame, as a cable's switch does. Anything else is the end of the link.
                if error.errno not in {errno.ENOBUFS, errno.EAGAIN}:
                    raise


if __name__ == "__main__":
    try:
        carry(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
    except OSError as error:
        if error.errno not in {errno.ENETDOWN, errno.ENXIO, errno.ENODEV}:
            raise
