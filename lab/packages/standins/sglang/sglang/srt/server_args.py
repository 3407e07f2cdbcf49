"""Arguments of the server, and the checks that need nothing but them."""

import argparse

#: Options that are accepted and do nothing here.
_FLAGS = [
    "trust-remote-code",
    "disable-cuda-graph",
    "disable-overlap-schedule",
    "disable-custom-all-reduce",
    "enable-mixed-chunk",
    "enable-torch-compile",
    "enable-p2p-check",
    "log-requests",
    "skip-tokenizer-init",
]
_VALUES = [
    "tokenizer-path",
    "tokenizer-mode",
    "load-format",
    "dtype",
    "quantization",
    "kv-cache-dtype",
    "revision",
    "random-seed",
    "max-running-requests",
    "max-total-tokens",
    "max-prefill-tokens",
    "chunked-prefill-size",
    "schedule-policy",
    "attention-backend",
    "sampling-backend",
    "grammar-backend",
    "log-level-http",
    "chat-template",
    "reasoning-parser",
    "tool-call-parser",
    "api-key",
    "watchdog-timeout",
    "nccl-port",
    "dist-init-addr",
    "nnodes",
    "node-rank",
    "download-dir",
    "json-model-override-args",
    "device",
]


def prepare_server_args(words: list[str]) -> argparse.Namespace:
    """Reads a command line; an unknown option ends the process with argparse's message."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--served-model-name", default=None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--context-length", type=int, default=None)
    parser.add_argument("--mem-fraction-static", type=float, default=0.88)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--tensor-parallel-size", "--tp-size", "--tp", dest="tp_size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "--pp-size", "--pp", dest="pp_size", type=int, default=1)
    parser.add_argument("--data-parallel-size", "--dp-size", "--dp", dest="dp_size", type=int, default=1)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--lmcache-config-file", default=None)
    for name in (
        "enable-lmcache",
        "enable-hierarchical-cache",
        "disable-radix-cache",
        "enable-metrics",
        "enable-cache-report",
        "skip-server-warmup",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in _VALUES:
        parser.add_argument(f"--{name}", default=None)
    return parser.parse_args(words)


def check(args: argparse.Namespace) -> None:
    """Raises where options contradict each other."""
    if args.enable_lmcache:
        if args.enable_hierarchical_cache:
            raise ValueError("--enable-lmcache and --enable-hierarchical-cache are mutually exclusive")
        if args.disable_radix_cache:
            raise ValueError("--enable-lmcache requires radix cache to be enabled")
