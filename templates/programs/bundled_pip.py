"""Run pip out of the wheel that Python keeps for new environments, which saves installing it. Arguments: pip's own.

Python 3.8 or newer; run by the interpreter of the environment that is to be installed into.
"""

import glob
import os
import re
import runpy
import subprocess
import sys
import sysconfig


def bundled(folders):
    """The newest pip wheel in some folders; None without one.

    Args:
        folders: paths; None among them is skipped.
    """
    found = [path for folder in folders if folder for path in glob.glob(os.path.join(folder, "pip-*.whl"))]
    return max(
        found, key=lambda path: list(map(int, re.findall(r"\d+", os.path.basename(path).split("-")[1]))), default=None
    )


def main():
    """Run pip with this program's arguments."""
    import ensurepip

    # Debian keeps the wheels apart and says where; Python itself has them beside ensurepip.
    own = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    wheel = bundled([sysconfig.get_config_var("WHEEL_PKG_DIR"), own])
    if wheel:
        sys.path.insert(0, wheel)
    else:
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
