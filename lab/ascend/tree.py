"""The vendor's software tree of a simulated host: CANN toolkits, NNAL, driver and firmware.

Everything here is written for the lab. File names, the keys of the version files and how the environment scripts
behave follow the real ones, because that is what an installer meets; the libraries export nothing but zeroes.
"""

from __future__ import annotations

from pathlib import Path

from lab.ascend.elf import shared_object
from lab.ascend.profile import Profile, Toolkit

#: SoC name -> (short name in the platform file, AI core version)
SOCS = {
    "Ascend910B1": ("Ascend910B", "AIC-C-220"),
    "Ascend910B2": ("Ascend910B", "AIC-C-220"),
    "Ascend910B2C": ("Ascend910B", "AIC-C-220"),
    "Ascend910B3": ("Ascend910B", "AIC-C-220"),
    "Ascend910B4": ("Ascend910B", "AIC-C-220"),
    "Ascend910B4-1": ("Ascend910B", "AIC-C-220"),
    "Ascend910_9362": ("Ascend910_93", "AIC-C-220"),
    "Ascend910_9372": ("Ascend910_93", "AIC-C-220"),
    "Ascend910_9381": ("Ascend910_93", "AIC-C-220"),
    "Ascend910_9382": ("Ascend910_93", "AIC-C-220"),
    "Ascend910_9391": ("Ascend910_93", "AIC-C-220"),
    "Ascend910_9392": ("Ascend910_93", "AIC-C-220"),
    "Ascend310P1": ("Ascend310P", "AIC-M-200"),
    "Ascend310P3": ("Ascend310P", "AIC-M-200"),
}
_LIBRARIES: dict[str, list[str]] = {
    "libascendcl.so": ["aclInit", "aclFinalize", "aclrtSetDevice", "aclrtGetDeviceCount"],
    "libruntime.so": ["rtGetDeviceCount", "rtSetDevice"],
    "libhccl.so": ["HcclCommInitRootInfo", "HcclGetRootInfo"],
    "libhccl_plf.so": ["hrtRaGetDeviceIP"],
    "libcann_hixl.so": ["HixlCreate", "HixlDestroy"],
    "libplatform.so": ["PlatformInit"],
    "libtiling_api.so": ["TilingInit"],
    "libascend_dump.so": [],
}
_HAL = ["halHostRegister", "halGetDeviceInfo"]


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    path.symlink_to(target)


def _info(package: str, version: str, arch: str, where: str) -> str:
    major, minor, *_ = version.split(".")
    return (
        f"package_name=Ascend-cann-{package}\nversion={version}\n"
        f"innerversion=V100R001C{2 if major == '8' else 3}{minor}SPC001B150\n"
        "compatible_version=[V100R001C15],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21],[V100R001C23]\n"
        f"arch={arch}\nos=linux\npath={where}\n"
    )


def _cann_script(home: str, arch: str) -> str:
    """The toolkit's environment script.

    As with the real one, /bin/sh can source it, and ``set -u`` or ``set -e`` in the caller ends the caller: variables
    are read that nobody set, and the driver's path is grepped from a file that may not have it.
    """
    return f"""\
# stand-in for the CANN toolkit's environment script (lmcache-fleet lab)
export ASCEND_TOOLKIT_HOME={home}
_driver_path=$(cat /etc/ascend_install.info | grep "Driver_Install_Path_Param" | awk -F "=" '{{print $2}}')
export LD_LIBRARY_PATH=${{_driver_path}}/driver/lib64/:${{_driver_path}}/driver/lib64/common/\
:${{_driver_path}}/driver/lib64/driver/:$LD_LIBRARY_PATH
export LD_LIBRARY_PATH=${{ASCEND_TOOLKIT_HOME}}/lib64:${{ASCEND_TOOLKIT_HOME}}/lib64/plugin/opskernel\
:${{ASCEND_TOOLKIT_HOME}}/{arch}-linux/lib64:$LD_LIBRARY_PATH
export PYTHONPATH=${{ASCEND_TOOLKIT_HOME}}/python/site-packages\
:${{ASCEND_TOOLKIT_HOME}}/opp/built-in/op_impl/ai_core/tbe:$PYTHONPATH
export PATH=${{ASCEND_TOOLKIT_HOME}}/bin:${{ASCEND_TOOLKIT_HOME}}/compiler/ccec_compiler/bin:$PATH
export ASCEND_AICPU_PATH=${{ASCEND_TOOLKIT_HOME}}
export ASCEND_OPP_PATH=${{ASCEND_TOOLKIT_HOME}}/opp
export TOOLCHAIN_HOME=${{ASCEND_TOOLKIT_HOME}}/toolkit
export ASCEND_HOME_PATH=${{ASCEND_TOOLKIT_HOME}}
if [ -n "$ASCEND_CUSTOM_SETENV" ]; then . "$ASCEND_CUSTOM_SETENV"; fi
unset _driver_path
"""


def _atb_script(up_to_atb: str) -> str:
    """NNAL's environment script: bash only, reads unset variables, and asks torch which C++ ABI to take."""
    return f"""\
#!/bin/bash
# stand-in for NNAL's ATB environment script (lmcache-fleet lab)
function _lab_atb_abi() {{
    local argument abi=""
    for argument in "$@"; do
        if [[ "$argument" =~ ^--cxx_abi=([01])$ ]]; then
            abi="${{BASH_REMATCH[1]}}"
        fi
    done
    if [[ -z "$abi" ]]; then
        abi=$(python3 -c 'import torch; print(1 if torch.compiled_with_cxx11_abi() else 0)' 2> /dev/null)
        if [[ $? -ne 0 || -z "$abi" ]]; then
            abi=1
        fi
    fi
    echo "$abi"
}}
_lab_atb_parts=("${{BASH_SOURCE[0]}}")
_lab_atb_here=$(cd "$(dirname "${{_lab_atb_parts[0]}}")" && pwd)
if [[ -f "${{_lab_atb_here}}/{up_to_atb}/cxx_abi_1/lib/libatb.so" ]]; then
    _lab_atb_home=$(cd "${{_lab_atb_here}}/{up_to_atb}" && pwd)
    export ATB_HOME_PATH="${{_lab_atb_home}}/cxx_abi_$(_lab_atb_abi "$@")"
    export LD_LIBRARY_PATH=$ATB_HOME_PATH/lib:$ATB_HOME_PATH/examples:$ATB_HOME_PATH/tests/atbopstest:$LD_LIBRARY_PATH
    export PATH=$ATB_HOME_PATH/bin:$PATH
    export ATB_STREAM_SYNC_EVERY_KERNEL_ENABLE=0
    export ATB_STREAM_SYNC_EVERY_RUNNER_ENABLE=0
    export ATB_STREAM_SYNC_EVERY_OPERATION_ENABLE=0
    export ATB_OPSRUNNER_SETUP_CACHE_ENABLE=1
    export ATB_OPSRUNNER_KERNEL_CACHE_LOCAL_COUNT=1
    export ATB_OPSRUNNER_KERNEL_CACHE_GLOABL_COUNT=16
    export ATB_COMPARE_TILING_EVERY_KERNEL=0
    export ATB_HOST_TILING_BUFFER_BLOCK_NUM=128
    export ATB_DEVICE_TILING_BUFFER_BLOCK_NUM=32
    export ATB_SHARE_MEMORY_NAME_SUFFIX=""
    export ATB_LAUNCH_KERNEL_WITH_TILING=1
    export ATB_MATMUL_SHUFFLE_K_ENABLE=1
else
    echo "There is no ATB library beside this script" >&2
fi
unset _lab_atb_parts _lab_atb_here _lab_atb_home
unset -f _lab_atb_abi
"""


def _toolkit(ascend: Path, toolkit: Toolkit, arch: str) -> None:
    """One ``cann-VERSION`` tree."""
    version = toolkit.version
    home, name = ascend / f"cann-{version}", f"/usr/local/Ascend/cann-{version}"
    base = home / f"{arch}-linux"
    _write(base / "ascend_toolkit_install.info", _info("toolkit", version, arch, f"{name}/{arch}-linux"), 0o440)
    (base / "ascend_toolkit_install.info").chmod(0o644)
    if toolkit.ops:
        _write(base / "ascend_ops_install.info", _info(f"{toolkit.ops}-ops", version, arch, f"{name}/{arch}-linux"))
        kernels = {"910b": "ascend910b", "A3": "ascend910_93", "310p": "ascend310p"}.get(toolkit.ops, toolkit.ops)
        _write(home / f"opp/built-in/op_impl/ai_core/tbe/kernel/{kernels}/.keep", "")
    _write(home / "set_env.sh", _cann_script(name, arch), 0o755)
    for soc, (short, core) in SOCS.items():
        text = f"[version]\nSoC_version={soc}\nShort_SoC_version={short}\nAIC_version={core}\nCCEC_AIC_version={core}\n"
        _write(base / f"data/platform_config/{soc}.ini", text)
    for library, functions in _LIBRARIES.items():
        _write(base / "lib64" / library, shared_object(arch, library, functions), 0o755)
    # the driver's library as a build without a driver gets it
    _write(base / "devlib/libascend_hal.so", shared_object(arch, "libascend_hal.so", _HAL), 0o755)
    _write(base / "include/acl/acl.h", '#pragma once\n#define ACL_SUCCESS 0\nextern "C" int aclInit(const char *);\n')
    _write(base / "include/hixl/hixl.h", '#pragma once\nextern "C" int HixlCreate();\n')
    new = tuple(int(part) for part in version.split(".")[:2]) >= (9, 1)
    # since 9.1 the header that rt_external.h wants is only found from pkg_inc, one level above the directory that
    # older build files list
    runtime = base / ("pkg_inc/runtime" if new else "include/experiment/runtime")
    _write(runtime / "rt_external.h", '#pragma once\n#include "runtime/rt_external_device.h"\n')
    _write(
        runtime / "rt_external_device.h",
        '#pragma once\nextern "C" int rtGetDeviceCount(int *);\nextern "C" int rtSetDevice(int);\n',
    )
    if not new:
        # where older build files look: <toolkit>/include/experiment
        _link(home / "include", f"{arch}-linux/include")
        _write(base / "pkg_inc/runtime/.keep", "")
    else:
        _link(home / "include", f"{arch}-linux/include")
    _link(home / "lib64", f"{arch}-linux/lib64")
    _write(home / "python/site-packages/.keep", "")
    compiler = "#!/bin/sh\n# stand-in for the device compiler\necho ccec stand-in\n"
    _write(home / "compiler/ccec_compiler/bin/ccec", compiler, 0o755)
    _write(home / "bin/.keep", "")


def _nnal(ascend: Path, version: str, arch: str) -> None:
    atb = ascend / "nnal/atb"
    _write(atb / "set_env.sh", _atb_script("latest/atb"), 0o755)
    real = atb / version / "atb"
    _write(real / "set_env.sh", _atb_script("."), 0o755)
    text = f"Ascend-cann-atb : {version}\nAscend-cann-atb Version : {version}.B150\nbranch : lab\n"
    _write(atb / version / "version.info", text)
    _write(
        atb / version / "ascend_nnal_install.info",
        _info("nnal", version, arch, f"/usr/local/Ascend/nnal/atb/{version}"),
    )
    for abi in (0, 1):
        functions = ["AtbCreateContext", f"AtbAbi{abi}"]
        _write(real / f"cxx_abi_{abi}/lib/libatb.so", shared_object(arch, "libatb.so", functions), 0o755)
    _link(atb / "latest", version)


def _driver(root: Path, ascend: Path, profile: Profile, arch: str) -> None:
    driver = profile.driver
    text = (
        f"Version={driver.version}\nascendhal_version=7.35.23\naicpu_version=1.0\ntdt_version=1.0\nlog_version=1.0\n"
        "prof_version=2.0\ndvppkernels_version=1.1\ntsfw_version=1.0\n"
        f"Innerversion={driver.innerversion}\n"
        "compatible_version=[V100R001C19],[V100R001C20],[V100R001C21],[V100R001C22],[V100R001C23]\n"
        f"compatible_version_fw=[7.0.0,{driver.firmware_max}]\n"
    )
    if driver.package_version:
        text += f"package_version={driver.package_version}\n"
    _write(ascend / "driver/version.info", text)
    firmware = f"Version={driver.firmware}\nfirmware_version=1.0\n"
    if driver.package_version:
        firmware += f"package_version={driver.package_version}\n"
    firmware += "compatible_version_drv=[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.],[25.0,25.0.]\n"
    _write(ascend / "firmware/version.info", firmware)
    lib = ascend / "driver/lib64"
    for name, functions in (("libascend_hal.so", _HAL), ("libdrvdsmi_host.so", ["dsmi_get_device_count"])):
        _write(lib / "driver" / name, shared_object(arch, name, functions), 0o755)
    _write(lib / "common/libc_sec.so", shared_object(arch, "libc_sec.so", ["memcpy_s"]), 0o755)
    _write(root / "usr/local/dcmi/libdcmi.so", shared_object(arch, "libdcmi.so", ["dcmi_init"]), 0o755)
    _write(
        root / "etc/ascend_install.info",
        "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\n"
        "Driver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_For_All=yes\nDriver_Install_Mode=normal\n"
        "Firmware_Install_Type=full\nFirmware_Install_Path_Param=/usr/local/Ascend\n",
    )
    addresses = "".join(
        f"address_{n}=192.0.2.{n + 10}\nnetmask_{n}=255.255.255.0\n" for n in range(len(profile.chips.ids))
    )
    _write(root / "etc/hccn.conf", addresses)


def install_tree(root: Path, profile: Profile, arch: str) -> None:
    """Writes the vendor's software of *profile* below *root*, for hosts of *arch*."""
    ascend = root / "usr/local/Ascend"
    _driver(root, ascend, profile, arch)
    for toolkit in profile.toolkits:
        _toolkit(ascend, toolkit, arch)
    if profile.toolkits:
        _link(ascend / "cann", f"cann-{profile.default_toolkit}")
        # the paths of the older layout are still there and lead to the default toolkit
        _link(ascend / "ascend-toolkit/latest", "../cann")
        script = (ascend / f"cann-{profile.default_toolkit}/set_env.sh").read_text()
        _write(ascend / "ascend-toolkit/set_env.sh", script, 0o755)
        _write(
            root / "etc/Ascend/ascend_cann_install.info",
            f"Install_Path=/usr/local/Ascend\nToolkit_InstallPath=/usr/local/Ascend/cann-{profile.default_toolkit}\n",
        )
    if profile.nnal:
        _nnal(ascend, profile.nnal, arch)
