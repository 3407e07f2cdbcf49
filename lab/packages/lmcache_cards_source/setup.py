"""Builds the stand-in of lmcache for the cards that the environment names, as the real build does."""

import os
import shutil
from pathlib import Path

import torch
from setuptools import Extension, find_packages, setup

INCLUDE = str(Path(torch.__file__).parent / "include")
# Switch -> kernels, device, requirements, and the compiler without which there are no kernels.
PROFILES = {
    "BUILD_WITH_HIP": ("cuda_ops", "cuda", "rocm_core.txt", "hipcc"),
    "BUILD_WITH_SYCL": ("xpu_ops", "xpu", None, "icpx"),
    "BUILD_WITH_MACA": ("cuda_ops", "cuda", None, "cucc"),
}


def profile():
    """The one backend that is asked for; CUDA when none is."""
    asked = [name for name in PROFILES if os.environ.get(name) == "1"]
    if len(asked) > 1:
        raise RuntimeError("Multiple profiles explicitly requested: " + ", ".join(asked))
    if asked:
        return PROFILES[asked[0]]
    major = os.environ.get("LMCACHE_CUDA_MAJOR", "13")
    if major not in ("12", "13"):
        raise RuntimeError("LMCACHE_CUDA_MAJOR must be '12' or '13'")
    if not os.path.isdir(os.environ.get("CUDA_HOME", "/usr/local/cuda")):
        raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    return ("cuda_ops", "cuda", f"cuda{major}_core.txt", None)


KERNELS, DEVICE, CORE, COMPILER = profile()


def extension(module):
    """One native module, built against the torch that is installed."""
    macros = [("LAB_NAME", f'"{module}"'), ("LAB_INIT", f"PyInit_{module}")]
    # The vendors' compilers compile other things than this file: the host's own stands for them.
    os.environ.pop("CXX", None)
    return Extension(f"lmcache.{module}", ["kernels.cpp"], include_dirs=[INCLUDE], define_macros=macros)


def extensions():
    """The common part, and the kernels where their compiler is."""
    if COMPILER and not shutil.which(COMPILER):
        # The real build says as little.
        print(f"{COMPILER} not found, no kernels are built")
        return [extension("lmcache_native")]
    return [extension("lmcache_native"), extension(KERNELS)]


def requirements():
    """What the installed wheel asks for."""
    names = ["common.txt", *([CORE] if CORE else [])]
    lines = [line for name in names for line in Path("requirements", name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "-r"))]


text = Path("lmcache/backend.in").read_text().replace("@KERNELS@", KERNELS).replace("@DEVICE@", DEVICE)
Path("lmcache/backend.py").write_text(text)
setup(
    packages=find_packages(include=["lmcache", "lmcache.*"]), ext_modules=extensions(), install_requires=requirements()
)
