"""Hold what an installer left against what was wanted. Runs with the release's python; JSON in argv[1].

Fails when a distribution is of another build than wanted, or a module doesn't load: found here, by the wheel's own
loader, and not in the first request.
"""

import fnmatch
import importlib
import json
import sys
from importlib import metadata


def main():
    """Check, and say what is wrong."""
    request = json.loads(sys.argv[1])
    wrong = []
    for name, pattern in request["installed"].items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is not installed, wanted {pattern}")
            continue
        if not fnmatch.fnmatchcase(version, pattern):
            wrong.append(f"wrong build: {name} is {version}, wanted {pattern}")
    for name in [] if wrong else request["imports"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            wrong.append(f"import {name}: {type(error).__name__}: {error}")
    sys.exit("\n".join(wrong) if wrong else 0)


main()
