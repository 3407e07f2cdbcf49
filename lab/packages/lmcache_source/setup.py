"""Builds the stand-in of lmcache 0.5.6, minding the switches of the real build."""

import os

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py


class WithStubs(build_py):
    """The real build makes its gRPC bindings here, with this tool."""

    def run(self):
        from grpc_tools import protoc  # noqa: F401

        super().run()


def _on(name):
    return os.environ.get(name, "0") == "1"


def extensions():
    """The native parts, by the build's environment."""
    if _on("NO_NATIVE_EXT") or _on("NO_CUDA_EXT"):
        return []
    if not _on("BUILD_WITH_ASCEND") and not os.path.isdir(os.environ.get("CUDA_HOME", "")):
        raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    return [Extension("lmcache.lmcache_native", ["native.c"])]


setup(packages=find_packages(), ext_modules=extensions(), cmdclass={"build_py": WithStubs})
