"""``python -m sglang.launch_server``."""

import sys
import warnings

from sglang.srt.entrypoints.http_server import launch_server
from sglang.srt.server_args import prepare_server_args

if __name__ == "__main__":
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.",
        UserWarning,
        stacklevel=1,
    )
    sys.exit(launch_server(prepare_server_args(sys.argv[1:])))
