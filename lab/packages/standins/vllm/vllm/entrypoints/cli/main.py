"""The ``vllm`` command."""

import argparse
import sys

from vllm.entrypoints.openai import api_server
from vllm.version import __version__


def main() -> int:
    """Runs a subcommand."""
    parser = argparse.ArgumentParser(prog="vllm", description="Stand-in for the vLLM command", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", allow_abbrev=False, help="serve a model over HTTP")
    serve.add_argument("model_tag", nargs="?", default=None)
    api_server.make_parser(serve)
    args = parser.parse_args(api_server.apply_config_file(sys.argv[1:]) if "--config" not in sys.argv else _with_file())
    args.model = args.model_tag or args.model
    if not args.model:
        serve.error("a model is needed")
    return api_server.run_server(args)


def _with_file() -> list[str]:
    """The subcommand must stay first when a file's entries are put before the other options."""
    words = sys.argv[1:]
    at = words.index("serve")
    return [*words[: at + 1], *api_server.apply_config_file(words[at + 1 :])]


if __name__ == "__main__":
    sys.exit(main())
