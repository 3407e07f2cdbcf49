"""The ``lmcache`` command."""

import argparse
import sys

from lmcache.mp import bench, server
from lmcache.version import __version__


def main() -> int:
    """Runs a subcommand."""
    parser = argparse.ArgumentParser(prog="lmcache", description="Stand-in for the LMCache command")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    server.add_arguments(commands.add_parser("server", help="run the MP server", allow_abbrev=False))
    targets = commands.add_parser("bench", help="run benchmarks").add_subparsers(dest="target", required=True)
    bench.add_arguments(targets.add_parser("server", help="store and retrieve", allow_abbrev=False))
    args = parser.parse_args()
    return (bench if args.command == "bench" else server).run(args)


if __name__ == "__main__":
    sys.exit(main())
