"""vLLM-Ascend with LMCache-Ascend by pyinfra's own operations, as somebody who knows pyinfra well would write it.

What these operations have no means for, and this deploy therefore doesn't do: it changes the serving venv in place; it
builds the extension on every host; whether triton's files are still those of triton-ascend, and whether the KV cache is
offloaded at all, nobody looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files, git, pip, server, systemd

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "ansible" / "templates"
ROOT, USER = "/opt/peer", "peer"
VENV = f"{ROOT}/venv"
SOURCE = f"{ROOT}/src/LMCache-Ascend"

v: dict[str, Any] = host.data.peer
index = f"--index-url {v['index_url']}"
trusted = {"PIP_TRUSTED_HOST": " ".join(v["trusted_hosts"]), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

apt.packages(
    name="System packages",
    packages=["cmake", "ninja-build", "libnuma-dev", "git", "python3-venv", "g++", "python3-dev"],
    update=True,
    cache_time=3600,
    no_recommends=True,
)
server.group(name="Group", group=USER, system=True)
server.user(  # noqa: S604 - the account's shell
    name="User", user=USER, group=USER, groups=["HwHiAiUser"], append=True, system=True, create_home=False,
    ensure_home=False, shell="/usr/sbin/nologin",
)  # fmt: skip
for folder in (ROOT, f"{ROOT}/env", f"{ROOT}/config", f"{ROOT}/model", f"{ROOT}/src"):
    files.directory(name=f"Directory {folder}", path=folder, mode="755")
files.directory(name="State directory", path="/var/lib/peer", user=USER, group=USER, mode="750")

toolkit = host.get_fact(
    Command,
    "env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c '. "
    "/usr/local/Ascend/ascend-toolkit/set_env.sh; . /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1; "
    'env | grep -Ev "^(_|SHLVL|PWD|OLDPWD)=" | sort\'',
)
toolkit_file = files.block(name="Toolkit environment file", path=f"{ROOT}/env/toolkit.env", content=toolkit)

pip.venv(name="Virtual environment", path=VENV, python="python3")
installed = [
    pip.packages(
        name="Package vllm", packages=[f"vllm=={v['vllm']}"], virtualenv=VENV, extra_install_args=index, _env=trusted
    ),
    pip.packages(
        name="Package vllm-ascend",
        packages=[f"vllm-ascend=={v['vllm']}"],
        virtualenv=VENV,
        extra_install_args=f"{index} --extra-index-url {v['variant_index_url']} "
        f"--extra-index-url {v['ascend_index_url']} --extra-index-url {v['cpu_index_url']}",
        _env=trusted,
    ),
]
triton = server.shell(
    name="Package triton-ascend, over community triton",
    commands=[
        f"{VENV}/bin/pip install --force-reinstall --no-deps {index} --extra-index-url {v['ascend_index_url']} "
        f"triton-ascend=={v['triton_ascend']}"
    ],
    _env=trusted,
    _if=[lambda: any(item.did_change() for item in installed)],
)
one_more = [
    pip.packages(name="One more package", packages=[pin], virtualenv=VENV, extra_install_args=index, _env=trusted)
    for pin in filter(None, [v.get("extra")])
]
pip.packages(
    name="Build requirements",
    packages=["setuptools", "setuptools-scm", "wheel", "packaging", "ninja", "pybind11"],
    virtualenv=VENV,
    extra_install_args=index,
    _env=trusted,
)
lmcache = pip.packages(
    name="Package lmcache, from source",
    packages=[f"lmcache=={v['lmcache']}"],
    virtualenv=VENV,
    extra_install_args=f"{index} --no-deps --no-build-isolation --no-binary lmcache",
    _env={**trusted, "NO_CUDA_EXT": "1"},
)
pip.packages(
    name="What lmcache needs",
    packages=[
        "aiofile", "aiofiles", "blake3", "aiohttp", "msgspec", "numpy", "psutil", "pyyaml", "pyzmq", "redis",
        "safetensors", "sortedcontainers", "transformers", "huggingface_hub",
    ],
    virtualenv=VENV,
    extra_install_args=index,
    _env=trusted,
)  # fmt: skip

repo = git.repo(
    name="Source of LMCache-Ascend", src=v["lmcache_ascend_repo"], dest=SOURCE, branch="v0.4.4", pull=False,
)  # fmt: skip
# `recursive_submodules` works only together with `pull`.
server.shell(
    name="Submodules",
    commands=[f"git -C {SOURCE} submodule update --init --recursive"],
    _if=[repo.did_change],
)
patches = [
    files.replace(
        name="Patch for CANN 9.1",
        path=f"{SOURCE}/csrc/hixl/CMakeLists.txt",
        text="/pkg_inc/runtime$",
        replace="/pkg_inc/runtime ${ASCEND_CANN_PACKAGE_PATH}/${ARCH_SUBDIR}/pkg_inc",
    ),
    files.replace(
        name="Patch for vLLM 0.23, the signature",
        path=f"{SOURCE}/lmcache_ascend/integration/vllm/lmcache_ascend_connector_v1.py",
        text="role: KVConnectorRole) -> None:",
        replace="role: KVConnectorRole, kv_cache_config=None) -> None:",
    ),
    files.replace(
        name="Patch for vLLM 0.23, the call",
        path=f"{SOURCE}/lmcache_ascend/integration/vllm/lmcache_ascend_connector_v1.py",
        text="vllm_config=vllm_config, role=role)",
        replace="vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)",
    ),
]
built = host.get_fact(File, f"{ROOT}/src/built") is not None
build = server.shell(
    name="Build and install the extension",
    commands=[
        f"rm -rf {SOURCE}/build; set -a; . {ROOT}/env/toolkit.env; PATH={VENV}/bin:$PATH; "
        f"{VENV}/bin/pip install --no-build-isolation "
        f"--no-deps {index} {SOURCE} && touch {ROOT}/src/built"
    ],
    _env={**trusted, "SOC_VERSION": "Ascend910B3", "SETUPTOOLS_SCM_PRETEND_VERSION": v["lmcache"], "MAX_JOBS": "2"},
    _if=[lambda: not built or any(item.did_change() for item in (*installed, *patches))],
)
for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
    files.download(
        name=f"Model {file}",
        src=f"{v['hub_url']}/{v['model']}/resolve/{v['model_revision']}/{file}",
        dest=f"{ROOT}/model/{file}",
        mode="644",
    )
variables = {**v, "root": ROOT, "venv": VENV, "service_user": USER}
rendered = [
    files.template(name=f"File {target}", src=str(TEMPLATES / f"{name}.j2"), dest=target, mode="644", **variables)
    for name, target in (
        ("lmcache.yaml", f"{ROOT}/config/lmcache.yaml"),
        ("service.env", f"{ROOT}/env/service.env"),
        ("peer-vllm.service", "/etc/systemd/system/peer-vllm.service"),
    )
]
systemd.service(name="Service runs", service="peer-vllm.service", running=True, enabled=True, daemon_reload=True)
everything = [toolkit_file, *installed, *one_more, triton, lmcache, build, *rendered]
systemd.service(
    name="Service restarts when something changed",
    service="peer-vllm.service",
    restarted=True,
    daemon_reload=True,
    _if=[lambda: any(item.did_change() for item in everything)],
)
server.shell(
    name="Service answers",
    commands=[
        f"for i in $(seq 60); do curl -fsS http://127.0.0.1:{v['serve_port']}/health && exit 0; sleep 1; done; exit 1"
    ],
)
