"""What stand-in builds for other cards than Ascend's hold: LMCache of each backend, engines that know the cards."""

from __future__ import annotations

from lab.packages.catalog import SOURCES, Dist, dist_files, torch_files

#: vendor → what torch calls its devices
DEVICES = {"cuda": "cuda", "rocm": "cuda", "maca": "cuda", "xpu": "xpu", "musa": "musa"}
#: vendor → the module that its build of LMCache has its kernels in
KERNELS = {"cuda": "cuda_ops", "rocm": "cuda_ops", "maca": "cuda_ops", "xpu": "xpu_ops", "musa": "lmcache_native"}

LMCACHE_COMMAND = "[console_scripts]\nlmcache = lmcache.cli.main:main\n"
VLLM_PLATFORM = "[vllm.platform_plugins]\ncards = lab_cards:register\n"
LMCACHE_SOURCE = SOURCES.parent / "lmcache_cards_source"


def lmcache(version: str, vendor: str) -> dict[str, bytes]:
    """A build of LMCache: the MP mode, and of native modules those alone that this backend's build has."""
    found = lmcache_sources(version)
    for module in {"lmcache_native", KERNELS[vendor]}:
        found[f"lmcache/{module}.py"] = b'"""Stand-in for a native module."""\n'
    text = backend(KERNELS[vendor], DEVICES[vendor])
    return found | {"lmcache/backend.py": text.encode()}


def lmcache_sources(version: str) -> dict[str, bytes]:
    """LMCache without anything native."""
    return dist_files(Dist("lmcache", version, "lmcache_mp"), "any")


def backend(kernels: str, device: str) -> str:
    """The module that tells a build's kernels and device."""
    missing = f"lmcache.{kernels} is not there: this build has no kernels for {device}"
    return (
        f'"""What this build is for."""\n\nDEVICE = {device!r}\nKERNELS = "lmcache.{kernels}"\nMISSING = {missing!r}\n'
    )


def vllm(version: str, nodes: tuple[list[str], str] | None = None) -> dict[str, bytes]:
    """vLLM, and the platform that knows the lab's cards; to be installed with `VLLM_PLATFORM`.

    Args:
        version: its version.
        nodes: in an image, the cards' nodes: those for all cards, and how a card's own begins.
    """
    return dist_files(Dist("vllm", version, "vllm"), "any") | _cards(nodes)


def sglang(version: str, nodes: tuple[list[str], str] | None = None) -> dict[str, bytes]:
    """SGLang, which knows the lab's cards. Arguments as for `vllm`."""
    return dist_files(Dist("sglang", version, "sglang"), "any") | _cards(nodes)


def _cards(nodes: tuple[list[str], str] | None) -> dict[str, bytes]:
    """The module that opens the cards' nodes."""
    text = (SOURCES / "lab_cards.py").read_text(encoding="utf-8")
    assert text.count("\nNODES = None\n") == 1
    return {"lab_cards.py": text.replace("\nNODES = None\n", f"\nNODES = {nodes!r}\n").encode()}


def torch(version: str, arch: str) -> dict[str, bytes]:
    """torch of any build: its C++ part exports a name of this very version."""
    return dist_files(Dist("torch", version, "torch", extra=torch_files), arch)
