"""Builds the stand-in's extensions with CMake, asking the host the same questions as the real build."""

import configparser
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"  # fixed: what lies there from the last build is used again
PACKAGE = ROOT / "lmcache_ascend"


def cann_home() -> Path:
    """The toolkit in use."""
    return Path(os.environ.get("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest"))


def cann_version() -> str | None:
    """The toolkit's version as its install file says it."""
    file = cann_home() / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    if not file.exists():
        print(f"ascend_toolkit_install.info not found at {file}", file=sys.stderr)
        return None
    for line in file.read_text().splitlines():
        if line.startswith("version="):
            return line.partition("=")[2].strip()
    return None


def uses_hixl(version: str | None) -> bool:
    """Whether the toolkit is 8.5 or later."""
    override = os.environ.get("USE_HIXL", "").strip().lower()
    if override in ("1", "true", "on"):
        return True
    if override in ("0", "false", "off"):
        return False
    if version:
        return tuple(int(part) for part in re.findall(r"\d+", version)) >= (8, 5, 0)
    return (cann_home() / "set_env.sh").exists() and not (cann_home().parent / "set_env.sh").exists()


def environment_script(hixl: bool) -> Path:
    """The script that the build sources."""
    script = cann_home() / "set_env.sh" if hixl else cann_home() / ".." / "set_env.sh"
    if not script.exists():
        raise ValueError(
            f"The file '{script}' is not found, please make sure environment variable 'ASCEND_HOME_PATH' "
            "is set correctly."
        )
    return script


def board(number: int) -> dict[str, str]:
    """The first chip's board data of one card; empty when the tool gives none."""
    command = ["npu-smi", "info", "-t", "board", "-i", str(number), "-c", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    if done.returncode != 0:
        return {}
    lines = [line.partition(":") for line in done.stdout.splitlines() if ":" in line]
    return {name.strip(): value.strip() for name, _, value in lines}


def soc_version() -> str:
    """The SoC's name: from the tool, and only without it from SOC_VERSION."""
    for number in range(8):
        data = board(number)
        chip = data.get("Chip Name")
        if chip and data.get("NPU Name"):
            return f"{chip}_{data['NPU Name']}"
        if chip:
            return chip if chip.startswith("Ascend") else f"Ascend{chip}"
    given = os.environ.get("SOC_VERSION")
    if given:
        return "Ascend" + given[6:] if given.lower().startswith("ascend") else given
    raise RuntimeError("No available NPU found, please check npu-smi info or set `SOC_VERSION`")


def core_arch(soc: str) -> str:
    """The AI core's architecture number from the platform file."""
    file = cann_home() / f"{platform.machine()}-linux" / "data" / "platform_config" / f"{soc}.ini"
    if not file.exists():
        raise ValueError(f"The file '{file}' is not found, please check your SOC_VERSION")
    parser = configparser.ConfigParser()
    parser.read(file)
    return parser.get("version", "AIC_version").rpartition("-")[2]


class BuildInfo(build_py):
    """Writes down what the package is built for."""

    def run(self) -> None:
        framework = "mindspore" if os.environ.get("USE_MINDSPORE", "").lower() in ("1", "true") else "pytorch"
        (PACKAGE / "_build_info.py").write_text(
            "# Auto-generated file\n"
            f"__soc_version__ = '{soc_version()}'\n"
            f"__framework_name__ = '{framework}'\n"
            f"__cann_version__ = '{cann_version() or 'unknown'}'\n\n\n"
            "def cann_version_tuple() -> tuple[int, ...]:\n"
            "    import re\n\n"
            "    return tuple(int(part) for part in re.findall(r'\\d+', __cann_version__))\n"
        )
        super().run()


class CMakeBuild(build_ext):
    """Runs CMake in ./build and gathers what it made."""

    def build_extension(self, ext: Extension) -> None:
        version = cann_version()
        hixl = uses_hixl(version)
        script, soc, machine = environment_script(hixl), soc_version(), platform.machine()
        core = core_arch(soc)
        hcomm = ROOT / "third_party" / "hcomm"
        if LINE_NEEDS_HCOMM and not hcomm.exists():
            raise RuntimeError(
                f"HCCL source path not found at {hcomm}. Please ensure the hcomm submodule is initialized and updated."
            )
        asked = subprocess.run(
            [sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise RuntimeError(f"CMake configuration failed: {asked.stderr.strip()}")
        import torch
        import torch_npu

        torch_path, npu_path = Path(torch.__file__).parent, Path(torch_npu.__file__).parent
        install = BUILD / "install"
        values = {
            "SOC_VERSION": soc,
            "ASCEND_AICORE_ARCH": core,
            "ARCH": machine,
            "PYTHON_EXECUTABLE": sys.executable,
            "Python3_EXECUTABLE": sys.executable,
            "CMAKE_PREFIX_PATH": asked.stdout.strip(),
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_INSTALL_PREFIX": install,
            "PYTHON_INCLUDE_PATH": sysconfig.get_path("include", scheme="posix_prefix"),
            "ASCEND_CANN_PACKAGE_PATH": cann_home(),
            "CANN_VERSION": version or "unknown",
            "TORCH_PATH": torch_path,
            "TORCH_NPU_PATH": npu_path,
            "Torch_DIR": Path(torch.utils.cmake_prefix_path) / "Torch",
            "GLIBCXX_USE_CXX11_ABI": int(torch.compiled_with_cxx11_abi()),
            "HCOMM_SRC_PATH": hcomm,
            "USE_HIXL": "ON" if hixl else "OFF",
        }
        for name, variable in (("CMAKE_CXX_COMPILER", "CXX"), ("CMAKE_C_COMPILER", "CC")):
            if os.environ.get(variable):
                values[name] = os.environ[variable]
        options = " ".join(f"-D{name}={value}" for name, value in values.items())
        # one line for /bin/sh; the jobs have no limit, and nothing in the environment but a load limit sets one
        command = (
            f". {script} && cmake -S {ROOT} -B {BUILD} {options}"
            f" && cmake --build {BUILD} -j --verbose && cmake --install {BUILD}"
        )
        print(f"Start running CMake commands:\n{command}", flush=True)
        try:
            subprocess.run(command, cwd=ROOT, shell=True, check=True)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"Failed to build {ext.name}: {error}") from error
        wanted = ["c_ops*.so", "libcache_kernels.so"]
        wanted += ["hccl_npu_comms*.so", "hixl_npu_comms*.so"] if hixl else []
        found = [path for pattern in wanted for path in install.glob(pattern)]
        if not found:
            raise RuntimeError(f"No .so files found matching patterns {wanted}")
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        target.mkdir(parents=True, exist_ok=True)
        for path in found:
            for directory in {target, PACKAGE}:
                shutil.copy2(path, directory / path.name)


LINE_NEEDS_HCOMM = (ROOT / ".gitmodules").exists() and "hcomm" in (ROOT / ".gitmodules").read_text()

setup(
    packages=find_packages(include=["lmcache_ascend*"]),
    ext_modules=[Extension("lmcache_ascend.c_ops", sources=[])],
    install_requires=(ROOT / "requirement.txt").read_text().split(),
    cmdclass={"build_py": BuildInfo, "build_ext": CMakeBuild},
)
