"""Tell what an image holds, from inside it, as JSON. Runs with any python3 since 3.6; changes nothing."""

import importlib
import json
import os
import platform
import re
import sys


def distributions():
    """Canonical name to versions, of all that is installed for this interpreter."""
    found = {}
    try:
        from importlib import metadata
    except ImportError:
        import pkg_resources

        for item in pkg_resources.working_set:
            found.setdefault(re.sub(r"[-_.]+", "-", item.project_name).lower(), []).append(item.version)
        return found
    for item in metadata.distributions():
        name = item.metadata["Name"]
        if name:
            versions = found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), [])
            if item.version not in versions:
                versions.append(item.version)
    return found


def attribute(path):
    """The value of a dotted name as text; None when there is none."""
    words = path.split(".")
    for cut in range(len(words) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(words[:cut]))
        except Exception:
            continue
        try:
            for word in words[cut:]:
                value = getattr(value, word)
        except AttributeError:
            return None
        return str(value)
    return None


def trouble(module):
    """What a module says instead of loading; empty when it loads."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
    return ""


def main():
    """Print it all."""
    request = json.loads(sys.argv[1])
    # Modules may print while they load: the answer goes where only we write.
    out, sys.stdout = sys.stdout, sys.stderr
    answer = {
        "python": platform.python_version(),
        "glibc": os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else "",
        "distributions": distributions(),
        "attributes": {path: attribute(path) for path in request["attributes"]},
        "imports": {module: trouble(module) for module in request["imports"]},
    }
    out.write("\n" + json.dumps(answer, sort_keys=True) + "\n")


main()
