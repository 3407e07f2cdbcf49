"""``lmcache bench server``: one client that stores KV, empties its memory, and has the KV back."""

import argparse
import array
import hashlib
import re
import sys
import time
from urllib.parse import urlsplit

from lmcache.mp.protocol import Client

_MODEL = "test-model"
_HELLO = 9906
_SHAPE = re.compile(r"^\((\d+),(\d+),(\d+),(\d+),(\d+)\):(float16|bfloat16|float32):(\d+)$")
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmcache bench server``."""
    parser.add_argument("--rpc-url", default="tcp://localhost:5555")
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--mode", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--transfer-mode", choices=["auto", "engine_driven", "lmcache_driven"], default="auto")
    parser.add_argument("--num-tokens", type=int, default=512)
    parser.add_argument("--kvcache-shape-spec", default="(2,1024,16,8,128):float16:32")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--end", type=int, default=None)
    parser.add_argument("--interval", type=float, default=0.5)


def run(args: argparse.Namespace) -> int:
    """Runs the sequences; ends with 0 whatever became of them, as the real one does."""
    if args.mode == "gpu":
        print("ERROR: --mode gpu requires CUDA", file=sys.stderr)
        return 1
    shape = _SHAPE.match(args.kvcache_shape_spec)
    if not shape:
        raise ValueError(f"invalid KV shape spec: {args.kvcache_shape_spec}")
    planes, _, block, heads, size = (int(number) for number in shape.groups()[:5])
    place = urlsplit(args.rpc_url)
    client = Client(place.hostname or "localhost", place.port or 5555)
    print(f"Connecting to LMCache MP Server at {args.rpc_url} (mode={args.mode}) ...", flush=True)
    try:
        chunk = client.ask({"what": "hello", "model": _MODEL})[0]["chunk_size"]
    except ConnectionError:
        print("ERROR: REGISTER_KV_CACHE failed for rank 0 (instance_id=1000)", file=sys.stderr)
        return 1
    if chunk % block:
        raise ValueError(f"Server chunk_size {chunk} must be a multiple of block_size {block}")
    print(f"Server chunk_size = {chunk}", flush=True)
    width = planes * heads * size * _BYTES[shape[6]] * int(shape[7])
    number = args.start
    while args.end is None or number < args.end:
        _sequence(client, number, args.num_tokens, chunk, width)
        time.sleep(args.interval)
        number += 1
    print("Done.")
    return 0


def _sequence(client: Client, number: int, payload: int, chunk: int, width: int) -> None:
    tokens = [number] + [_HELLO] * payload
    whole = len(tokens) // chunk * chunk
    print(f"=== Request seq={number} ===", flush=True)
    # The same in every process, as the real client's seeded noise is.
    memory = array.array("Q", (42 + index for index in range(whole)))
    for kind in ("cold", "warm"):
        told = f"  [seq {number}/{kind}]"
        ask = {"model": _MODEL, "tokens": tokens}
        hit = client.ask({"what": "lookup", **ask})[0]["hit"]
        print(f"{told} LOOKUP: {hit // chunk}/{whole // chunk} chunks hit (1.0 ms)")
        checked = range(hit, whole) if kind == "cold" else range(hit)
        digest = _digest(memory, checked) if kind == "cold" and checked else None
        if hit:
            if kind == "warm":
                memory[:hit] = array.array("Q", [0] * hit)
            back = client.ask({"what": "retrieve", **ask, "hit": hit})[1]
            memory[: len(back)] = back
            state = "retrieved" if len(back) == hit else "retrieve_failed"
            print(f"{told} RETRIEVE: {state} ({hit} tokens, 1.0 ms, 1 workers)")
        if hit < whole:
            stored = client.ask({"what": "store", **ask, "bytes_per_token": width}, memory)[0]["stored"]
            state = "stored" if stored else "store_failed"
            print(f"{told} STORE: {state} ({whole - hit} tokens, 1.0 ms, 1 writers)")
        if kind == "warm" and checked:
            digest = _digest(memory, checked)
        if digest:
            print(f"{told} CHECKSUM: {digest} ({len(checked) // chunk} chunks)", flush=True)


def _digest(memory: array.array, part: range) -> str:
    return hashlib.md5(memory[part.start : part.stop].tobytes()).hexdigest()[:16]
