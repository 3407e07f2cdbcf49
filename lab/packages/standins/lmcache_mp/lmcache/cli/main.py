"""The ``lmcache`` command."""

import argparse
import sys

from lmcache.mp import server
from lmcache.version import __version__


def main() -> int:
    """Runs a subcommand."""
    parser = argparse.ArgumentParser(prog="lmcache", description="Stand-in for the LMCache command")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    server.add_arguments(commands.add_parser("server", help="run the MP server", allow_abbrev=False))
    return server.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
