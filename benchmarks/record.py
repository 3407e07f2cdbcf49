"""Record what a converged lab host answers to the survey, for replay on many hosts that don't exist.

Run inside pyinfra's process: ``python -m benchmarks.record FILE INVENTORY DEPLOY -y --limit h1``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run pyinfra, and write the first survey's output to a file."""
    target = Path(sys.argv.pop(1))
    import pyinfra_cli.main
    from pyinfra.api.host import Host

    from lmcache_fleet.survey import BEGIN

    run = Host.run_shell_command

    def recorded(self: Host, command: Any, *args: Any, **kwargs: Any) -> Any:
        status, output = run(self, command, *args, **kwargs)
        if BEGIN in str(command) and not target.exists():
            target.write_text("\n".join(output.stdout_lines), encoding="utf-8")
        return status, output

    Host.run_shell_command = recorded  # type: ignore[method-assign]
    pyinfra_cli.main.main()


if __name__ == "__main__":
    main()
