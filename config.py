"""pyinfra's project file, loaded before the inventory: our packages first, quick and careful SSH."""

import sys
from pathlib import Path

# Packages called `facts`, `operations` and `deploys` exist on the package index too; ours must win.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from operations.transport import prepare_pyinfra

prepare_pyinfra()
