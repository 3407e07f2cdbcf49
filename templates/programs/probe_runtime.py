"""Tell what stack an interpreter brings, without importing any of it. Python 3.6 or newer; JSON in argv[1].

Prints one line of JSON: path, version, torch (whole version), cuda, hip, xpu, cxx11_abi, distributions.
"""

import importlib.util
import json
import os
import re
import sys


def torch_folder():
    """Where torch is; None when the interpreter has none."""
    spec = importlib.util.find_spec("torch")
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def of_version_file(folder):
    """What torch/version.py says, read as text: importing torch takes seconds and may start a driver."""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as handle:
            text = handle.read()
    except OSError:
        return {}
    pairs = re.findall(r"^(__version__|cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return {"torch" if name == "__version__" else name: value for name, value in pairs}


def cxx11_abi(folder):
    """By the name that c10's error constructor has in the library: an extension of the other ABI misses just that."""
    try:
        with open(os.path.join(folder, "lib", "libc10.so"), "rb") as handle:
            library = handle.read()
    except OSError:
        return None
    start = b"_ZN3c105ErrorC1ENS_14SourceLocationE"
    if start + b"NSt7__cxx1112basic_string" in library:
        return True
    return False if start + b"Ss" in library else None


def versions(names):
    """Distribution → version, of those that are there."""
    try:
        from importlib import metadata
    except ImportError:
        return {}
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def main():
    """Print what is there."""
    request = json.loads(sys.argv[1])
    folder = torch_folder()
    told = of_version_file(folder) if folder else {}
    answer = {
        "path": sys.executable,
        "version": "%d.%d.%d" % sys.version_info[:3],
        "torch": told.get("torch"),
        "cuda": told.get("cuda"),
        "hip": told.get("hip"),
        "xpu": told.get("xpu"),
        "cxx11_abi": cxx11_abi(folder) if folder else None,
        "distributions": versions(request["distributions"]),
    }
    print(json.dumps(answer, sort_keys=True))


main()
