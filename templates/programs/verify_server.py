"""Evidence of an LMCache server without an engine: LMCache's own client stores KV there, and has it back."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import verify_client as client
from verify_children import Child
from verify_config import Config
from verify_modes import (
    PROGRESS_S,
    CommandLog,
    MpStack,
    PhaseFailed,
    Run,
    check_child,
    grown,
    last_line,
    note_service,
    wait_ready,
)

from lmcache_fleet.evidence import Incident, Request
from lmcache_fleet.evidence_log import strip_ansi

CLIENT_COMMAND = [sys.executable, "-m", "lmcache.cli.main", "bench", "server"]
#: Heads, their size and layers of the KV that is sent: a kilobyte a token in float16.
_HEADS, _HEAD_SIZE, _LAYERS = 2, 64, 2
#: LMCache's hashes take token ids of 32 bits; the client takes its first one from us, and it makes the prompt unique.
_FIRST_TOKENS = 2**31
# What the client prints of each of its two requests, `cold` and `warm`.
_LOOKUP = re.compile(r"/(cold|warm)\] LOOKUP: (\d+)/(\d+) chunks hit \(([\d.]+) ms\)")
_MOVED = re.compile(r"/(cold|warm)\] (STORE: stored|RETRIEVE: retrieved) \((\d+) tokens, ([\d.]+) ms")
_DIGEST = re.compile(r"/(cold|warm)\] CHECKSUM: ([0-9a-f]+) \((\d+) chunks\)")


@dataclass
class Place:
    """A server to ask.

    Args:
        rpc_url: where engines reach it.
        url: its HTTP side.
        server: the server's process, when it is this program's own.
    """

    rpc_url: str
    url: str
    server: Child | None = None

    def counters(self) -> dict[str, float]:
        """The server's own counters now."""
        return client.metrics([f"{self.url}/metrics"])


@dataclass
class Half:
    """What a client process says of one of its two requests.

    Args:
        looked_up: whether it asked at all.
        hits: tokens that the lookup found.
        stored: tokens that it stored.
        retrieved: tokens that it had back.
        digest: of the KV in its memory: what it sent, or what came back into memory that had been emptied.
        moved_ms: how long storing or retrieving took.
    """

    looked_up: bool = False
    hits: int = 0
    stored: int = 0
    retrieved: int = 0
    digest: str | None = None
    moved_ms: float | None = None


def run_server(run: Run) -> None:
    """Store and retrieve by one client process, then retrieve by a new one; an own server, or one that runs already."""
    if run.config.service.rpc_url:
        _ask_running(run)
        return
    stack = MpStack(run)
    try:
        with run.timed("start server"):
            server = stack.start_server()
            wait_ready(run, "start server", f"{stack.server_url}/healthcheck", [server])
            run.note_environment(server)
        _ask(run, Place(f"tcp://localhost:{stack.zmq}", stack.server_url, server))
    finally:
        with run.timed("stop"):
            stack.stop(with_server=True)


def _ask_running(run: Run) -> None:
    service = run.config.service
    log = CommandLog(service.log_command)
    if service.log_command is not None and log.read() is None:
        run.evidence.incidents.append(Incident("log-unreadable", "start", " ".join(service.log_command)))
    note_service(run)
    try:
        _ask(run, Place(service.rpc_url, service.url.rstrip("/")))
    finally:
        run.logs.append(("service", log.read() or "", False))


def _ask(run: Run, place: Place) -> None:
    evidence, config = run.evidence, run.config
    if config.server.transfer_mode == "lmcache_driven":
        evidence.notes.append("in mode lmcache_driven the client can't empty its memory before it retrieves")
    with run.timed("client: store, then the same prefix"):
        cold, warm = _client(run, place, "client")
        evidence.requests += [cold, warm]
    if config.expect.restart == "required":
        with run.timed("new client process: the same prefix"):
            first, again = _client(run, place, "client2")
            # The first thing that the new process does is to retrieve; only its second answer comes with a digest.
            first.phase, first.output = "restart", again.output
            evidence.requests.append(first)


def command(config: Config, place: Place) -> list[str]:
    """Command line of a client; the same for every process of a run, so that all ask for the same prefix."""
    block = math.gcd(config.chunk_size, 16)
    blocks = 2 * (config.prompt_tokens() // block)
    source = random.Random(f"{config.prompt.seed}:{config.prompt.nonce}:measured")  # noqa: S311 - not a secret
    first = source.randrange(_FIRST_TOKENS)
    driven = config.server.transfer_mode == "lmcache_driven"
    options = {
        "--rpc-url": place.rpc_url,
        "--url": place.url,
        # Plain memory, which every server takes: the point is the server and not the device of an engine.
        "--mode": "cpu",
        "--transfer-mode": "lmcache_driven" if driven else "engine_driven",
        # The client puts one more token in front.
        "--num-tokens": str(config.prompt_tokens() - 1),
        "--kvcache-shape-spec": f"(2,{blocks},{block},{_HEADS},{_HEAD_SIZE}):float16:{_LAYERS}",
        "--start": str(first),
        "--end": str(first + 1),
        "--interval": "0",
    }
    return [*(config.client.command or CLIENT_COMMAND), *(word for pair in options.items() for word in pair)]


def _client(run: Run, place: Place, name: str) -> tuple[Request, Request]:
    """Run a client to its end: its two requests, each credited with no more than the server's counters confirm."""
    before = place.counters()
    child = run.nursery.start(name, command(run.config, place), run.child_env(), run.work)
    try:
        _wait_for_end(run, place, child)
    finally:
        run.nursery.stop(child)
    halves = read_client(child.text(), run.config.chunk_size)
    if not all(half.looked_up for half in halves.values()):
        raise PhaseFailed("client-failed", name, f"it asked nothing; last line: {last_line(child.text())}")
    moved = _settled(run, place, before, halves)
    cold = _request(run, "cold", halves["cold"], moved)
    # What the counters confirm is shared out in the order in which the client asked.
    left = Moved(moved.stored, max(0, (moved.retrieved or 0) - (cold.external_hits or 0)), moved.busy)
    return cold, _request(run, "hit", halves["warm"], left)


def _wait_for_end(run: Run, place: Place, child: Child) -> None:
    start = shown = time.monotonic()
    while child.alive():
        now = time.monotonic()
        if now - start > run.config.limits.start_s:
            detail = f"{child.name} not done after {now - start:.0f} s; last line: {last_line(child.text())}"
            raise PhaseFailed("client-failed", child.name, detail)
        if place.server is not None:
            check_child(child.name, place.server)
        if now - shown > PROGRESS_S:
            run.say(f"  waiting for {child.name}: {last_line(child.text())}")
            shown = now
        time.sleep(0.1)


def read_client(text: str, chunk_size: int) -> dict[str, Half]:
    """What a client printed of its two requests.

    Args:
        text: its output.
        chunk_size: tokens in a chunk.
    """
    halves = {"cold": Half(), "warm": Half()}
    for line in strip_ansi(text).splitlines():
        if found := _LOOKUP.search(line):
            half = halves[found[1]]
            half.looked_up, half.hits = True, int(found[2]) * chunk_size
        elif found := _MOVED.search(line):
            half, tokens = halves[found[1]], int(found[3])
            half.moved_ms = float(found[4])
            if found[2].startswith("STORE"):
                half.stored = tokens
            else:
                half.retrieved = tokens
        elif found := _DIGEST.search(line):
            halves[found[1]].digest = found[2]
    return halves


@dataclass
class Moved:
    """Tokens that went into and out of the server's memory by its own counters; None where it has none.

    Args:
        stored: tokens that it wrote.
        retrieved: tokens that it read.
        busy: others were served meanwhile.
    """

    stored: int | None
    retrieved: int | None
    busy: bool = False


def _settled(run: Run, place: Place, before: Mapping[str, float], halves: Mapping[str, Half]) -> Moved:
    """The growth of the server's counters, once it has caught up with what the client says."""
    stored = sum(half.stored for half in halves.values())
    retrieved = sum(half.retrieved for half in halves.values())
    deadline = time.monotonic() + run.config.limits.settle_s
    while True:
        after = place.counters()
        moved = Moved(
            _tokens(run, grown(before, after, client.STORED_CHUNKS)),
            _tokens(run, grown(before, after, client.READ_CHUNKS)),
        )
        if (moved.stored or 0) >= stored and (moved.retrieved or 0) >= retrieved:
            moved.busy = (moved.stored or 0) > stored or (moved.retrieved or 0) > retrieved
            return moved
        if time.monotonic() > deadline:
            return moved
        time.sleep(0.2)


def _tokens(run: Run, chunks: int | None) -> int | None:
    return None if chunks is None else chunks * run.config.chunk_size


def _request(run: Run, phase: str, half: Half, moved: Moved) -> Request:
    return Request(
        phase,
        run.config.prompt_tokens(),
        [half.digest] if half.digest else [],
        total_ms=half.moved_ms,
        stored=None if moved.stored is None else min(half.stored, moved.stored),
        external_hits=min(half.retrieved, moved.retrieved or 0),
        retrieved=half.retrieved,
        busy=moved.busy,
    )
