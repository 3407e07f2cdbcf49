"""Where the CMake package is."""

import pathlib as _pathlib

cmake_prefix_path = str(_pathlib.Path(__file__).resolve().parents[1] / "share" / "cmake")
