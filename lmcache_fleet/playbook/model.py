"""The playbook's schema: strict pydantic models, one a step kind."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

API_VERSION = "lmcache-fleet/v1"

_IMAGE = r"^[a-z0-9][a-z0-9.:/_-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?$"


class StrictModel(BaseModel):
    """Unknown keys are errors, types are not coerced, values don't change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@lru_cache(maxsize=4096)
def parsed_requirement(text: str) -> Requirement:
    """A requirement, parsed once a process: a fleet asks for the same few, thousands of times.

    Raises:
        InvalidRequirement: it is none.
    """
    return Requirement(text)


def _check_requirement(text: str) -> str:
    try:
        parsed_requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"not a requirement: {error}") from error
    return text


def _check_pin(text: str) -> str:
    requirement = parsed_requirement(_check_requirement(text))
    exact = [
        spec for spec in requirement.specifier if spec.operator in {"==", "==="} and not spec.version.endswith("*")
    ]
    if requirement.url is None and not exact:
        raise ValueError(f"pin it exactly, as in '{requirement.name}==1.2.3'")
    return text


def _check_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError("not a version condition, such as '>=9.1,<9.2'") from error
    return text


def _check_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


def _check_plain_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", text):
        raise ValueError("use letters, digits and . _ + - only, starting with a letter or digit")
    return text


def _check_env(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"'{name}' is no variable name")
        if any(char in value for char in "\n\r\0"):
            raise ValueError(f"the value of {name} has a line break or NUL")
    return variables


def _check_inside(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("must stay inside the tree")
    return path


def _check_argument(text: str) -> str:
    # A value handed to a tool as an argument must not be read as one of its options.
    if text.startswith("-") or any(char in text for char in "\n\r\0"):
        raise ValueError("must not start with '-' nor hold a line break")
    return text


def _check_conflict(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9*?.-]+: ?[a-z0-9*?.-]+", text):
        raise ValueError("write it as 'who: whom', both in lower case, such as 'vllm: torch*'")
    return text


def _number_as_text(value: Any) -> Any:
    # YAML reads `port: 8000` as a number; where a text is wanted the same digits serve.
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Requirement_ = Annotated[str, AfterValidator(_check_requirement)]
Pin = Annotated[str, AfterValidator(_check_pin)]
VersionCondition = Annotated[str, AfterValidator(_check_specifier)]
Regex = Annotated[str, AfterValidator(_check_regex)]
PlainName = Annotated[str, AfterValidator(_check_plain_name)]
Argument = Annotated[str, AfterValidator(_check_argument)]
EnvValue = Annotated[str, BeforeValidator(_number_as_text)]
Environment = Annotated[dict[str, EnvValue], AfterValidator(_check_env)]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\n\r\x00]*$")]
PythonMinor = Annotated[str, Field(pattern=r"^3\.\d+$")]


Role = Literal["engine", "balancer", "kv_store", "lmcache_server"]


class AcceleratorRequirement(StrictModel):
    """What accelerator a host must have."""

    vendor: Literal["ascend", "cuda", "rocm", "xpu", "musa", "maca", "cpu"]
    soc: list[str] = Field(default=[], description="shell patterns, any of which the SoC name must match")
    experimental: list[str] = Field(
        default=[], description="patterns of SoCs that only a host whose data says so takes part with"
    )
    allow_experimental: bool = Field(default=False, description="this host may take part with an experimental SoC")
    optional: bool = Field(default=False, description="a host without the accelerator will do, as a builder does")
    health: str | None = Field(default=None, description="health word that every chip must show")
    count: int | None = Field(default=None, ge=1, description="at least so many chips")
    compute_capability: VersionCondition | None = Field(default=None, description="that every NVIDIA chip must have")


class RuntimeRequirement(StrictModel):
    """The stack below the release that a vendor's wheel is linked against: it comes with the interpreter."""

    torch: str | None = Field(default=None, description="shell pattern of torch's whole version, local part included")
    hip: str | None = Field(default=None, description="shell pattern of the HIP runtime that torch was built with")
    cxx11_abi: bool | None = Field(default=None, description="torch's C++ ABI (_GLIBCXX_USE_CXX11_ABI)")
    wheel_tag: str | None = Field(
        default=None,
        pattern=r"^cp3\d+-cp3\d+-manylinux_\d+_\d+_[a-z0-9_]+$",
        description="tag that the host must be able to install",
    )
    distributions: dict[str, VersionCondition] = Field(
        default={}, description="distribution → condition; those that the vendor's stack must have"
    )
    otherwise: str = Field(
        default="build LMCache from source against the torch that is there", description="the remedy to name"
    )


class Requirements(StrictModel):
    """Judged before anything is touched; a host that falls short is refused, the others go on."""

    accelerator: AcceleratorRequirement | None = None
    cann: VersionCondition | None = None
    driver: VersionCondition | None = None
    cuda: VersionCondition | None = Field(default=None, description="newest CUDA that the driver serves")
    toolkit: VersionCondition | None = Field(default=None, description="the vendor's toolkit: ROCm, MUSA SDK, MACA")
    runtime: RuntimeRequirement | None = None
    python: VersionCondition | None = None
    glibc: VersionCondition | None = None
    disk_free_gb: float | None = Field(default=None, ge=0, strict=False)
    memory_gb: float | None = Field(default=None, ge=0, strict=False)
    architectures: list[Literal["x86_64", "aarch64"]] = []


class StepBase(StrictModel):
    """What every step has."""

    when: bool = Field(default=True, description="false leaves the step out; usually a template over vars")


class SystemPackagesStep(StepBase):
    """Distribution packages are installed."""

    kind: Literal["system_packages"] = "system_packages"
    apt: list[PlainName] = []
    dnf: list[PlainName] = []
    lock_timeout: int = Field(default=300, ge=0, description="seconds to wait for the package manager's lock")


def _check_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError("not an IP address") from error
    return text


class KvStoreStep(StepBase):
    """A Redis or Valkey server of the fleet's own: a second tier that all hosts' LMCache share."""

    kind: Literal["kv_store"] = "kv_store"
    server: Literal["redis", "valkey"] = "redis"
    bind: list[Annotated[str, AfterValidator(_check_address)]] = Field(
        min_length=1, description="addresses that it listens on; keep them to the fleet's own network"
    )
    port: int = Field(default=6379, ge=1, le=65535)
    max_memory_gb: float = Field(gt=0, strict=False, description="least recently used KV gives way above it")
    password: PlainName | None = Field(default=None, description="name of the inventory secret that clients must know")
    io_threads: int = Field(default=1, ge=1, le=128)

    @model_validator(mode="after")
    def _asks_who_is_there(self) -> KvStoreStep:
        if self.password is None and not all(ipaddress.ip_address(item).is_loopback for item in self.bind):
            raise ValueError("it binds an address that others reach: name a secret in `password`")
        return self


class EnvScript(StrictModel):
    """A vendor's environment script, sourced by bash."""

    first_of: list[AbsolutePath] = Field(min_length=1, description="the first of these that exists is sourced")
    args: list[str] = []
    required: bool = True


def _script(value: Any) -> Any:
    return {"first_of": [value]} if isinstance(value, str) else value


class ToolkitEnvStep(StepBase):
    """The vendor's environment, captured once into a file that services read."""

    kind: Literal["toolkit_env"] = "toolkit_env"
    scripts: list[Annotated[EnvScript, BeforeValidator(_script)]] = []
    path: list[AbsolutePath] = Field(default=[], description="directories put before PATH")
    env: Environment = {}


class VenvStep(StepBase):
    """An interpreter of the wanted minor version and a virtual environment in the release."""

    kind: Literal["venv"] = "venv"
    python: PythonMinor
    installer: Literal["uv", "pip"] = "uv"
    interpreter: AbsolutePath | None = Field(
        default=None, description="use this interpreter; found by version if not given"
    )
    uv: str | None = Field(default=None, description="version of uv put on the host, or an absolute path to one there")
    index_url: Argument | None = Field(default=None, description="where uv itself is fetched from")
    trusted_hosts: list[Argument] = Field(default=[], description="hosts to which plain http is good enough")
    system_site_packages: bool = False
    expected_conflicts: list[Annotated[str, AfterValidator(_check_conflict)]] | None = Field(
        default=None,
        description="unmet requirements of installed packages that do no harm, as `who: whom` patterns such as "
        "`vllm: torch*`; any other ends the run before the release is proved. Not judged when left out",
    )
    resolve_first: bool = Field(
        default=True,
        description="resolve all pins on the control machine before a host is changed; false where only hosts reach "
        "the indexes",
    )


class RequirementsFiles(StrictModel):
    """Requirements files of a source tree, as its own instructions install them."""

    source: PlainName = Field(description="name of the source step")
    files: list[Annotated[str, AfterValidator(_check_inside)]] = Field(min_length=1)
    leave_out: list[PlainName] = Field(default=[], description="distributions of those files that are not wanted")


class PackagesStep(StepBase):
    """One installer call, and the installed state it must leave."""

    kind: Literal["packages"] = "packages"
    name: PlainName
    pins: list[Pin] = Field(default=[], description="exact versions")
    present: list[Requirement_] = Field(
        default=[], description="any version that fits will do, one already there first"
    )
    requirements: RequirementsFiles | None = Field(
        default=None, description="like present, with the lines of files in a source tree"
    )
    index_url: Argument | None = None
    extra_index_urls: list[Argument] = []
    find_links: list[Argument] = []
    trusted_hosts: list[Argument] = Field(
        default=[], description="hosts to which plain http or any certificate is good enough"
    )
    no_index: bool = False
    index_strategy: Literal["first-index", "unsafe-first-match", "unsafe-best-match"] | None = None
    pre: bool = False
    no_deps: bool = False
    no_binary: list[PlainName] = []
    only_binary: list[PlainName] = []
    force_reinstall: bool = False
    build_isolation: bool = True
    env: Environment = {}
    overrides: list[str] = Field(
        default=[], description="requirements that replace those of the packages' metadata (uv)"
    )
    constraints: list[str] = []
    retries: int = Field(default=3, ge=0)
    timeout: int = Field(default=3600, ge=1, description="seconds for the whole call")
    owns: list[PlainName] = Field(default=[], description="import packages whose files must be those of the first pin")
    wheel_tag: str | None = Field(default=None, description="tag that the first pin's installed wheel must carry")
    machine_wheels: bool = Field(
        default=False, description="also offer the wheel folders of the host's pip configuration"
    )
    installed: dict[str, str] = Field(
        default={}, description="distribution → shell pattern of the whole version that must be installed in the end"
    )
    imports: list[ModuleName] = Field(
        default=[], description="modules that must load afterwards, in the toolkit's environment"
    )
    require_hashes: bool = False
    hashes: dict[str, list[str]] = Field(default={}, description="pin → allowed hashes, as 'sha256:…'")
    locked: dict[str, list[str]] = Field(
        default={}, description="all that the call installs → allowed hashes; comes from the lock beside the playbook"
    )
    compile_bytecode: bool = False

    @model_validator(mode="after")
    def _something_wanted(self) -> PackagesStep:
        if not self.pins and not self.present and not self.requirements:
            raise ValueError("give pins, present or requirements")
        if (self.owns or self.wheel_tag) and not self.pins:
            raise ValueError("owns and wheel_tag speak of the first pin, and there is none")
        return self

    @property
    def wanted(self) -> list[str]:
        """All that the installer is asked for."""
        return [*self.pins, *self.present]

    @property
    def owner(self) -> str:
        """Canonical name of the distribution that `owns` and `wheel_tag` speak of."""
        return canonicalize_name(parsed_requirement(self.pins[0]).name)


class Patch(StrictModel):
    """A change to one file of a source tree."""

    path: Annotated[str, AfterValidator(_check_inside)] = Field(pattern=r"^[^/\n][^\n]*$")
    find: str = Field(
        min_length=1, description="text that must stand in the file exactly once or more; the first is replaced"
    )
    replace: str
    present: list[Regex] = Field(default=[], description="any match means that the file already has the change")
    refs: list[str] = Field(default=[], description="shell patterns of the refs that need it; empty means all")
    when: bool = Field(default=True, description="false leaves the patch out; usually a template over vars")
    why: str = ""


class SourceStep(StepBase):
    """A git tree at a ref, submodules at their pinned commits, patches applied."""

    kind: Literal["source"] = "source"
    name: PlainName
    repo: Argument
    ref: Argument
    commit: str | None = Field(
        default=None, pattern=r"^[0-9a-f]{40}$", description="refuse the ref if it is another commit"
    )
    submodules: bool = False
    submodule_refs: dict[str, Argument] = Field(
        default={}, description="submodule path → ref other than the pinned one"
    )
    patches: list[Patch] = []
    retries: int = Field(default=3, ge=0)
    timeout: int = Field(default=900, ge=1)


class NativeBuildStep(StepBase):
    """An extension built for this host's key and installed as a wheel."""

    kind: Literal["native_build"] = "native_build"
    source: PlainName = Field(description="name of the source step")
    package: PlainName = Field(description="distribution that the build makes")
    module: PlainName = Field(description="import package that holds the libraries")
    libraries: list[str] = Field(default=[], description="patterns below the module, each of which must match")
    build_info: str | None = Field(default=None, description="file below the module that tells SoC and CANN")
    version: str | None = Field(default=None, description="version given to setuptools_scm")
    env: Environment = {}
    memory_gb: float | None = Field(default=None, gt=0, strict=False, description="memory limit of the whole build")
    job_memory_gb: float = Field(default=2.0, gt=0, strict=False, description="memory one compile job may need")
    spare_memory_gb: float = Field(default=1.0, ge=0, strict=False, description="memory left to all else")
    timeout: int = Field(default=3600, ge=1)
    soc: str | None = Field(default=None, description="build for this SoC on a host without the accelerator")
    imports: list[ModuleName] = Field(
        default=[], description="modules that must load afterwards, in the toolkit's environment"
    )


class TinyModel(StrictModel):
    """A small random model made on the host, for trials."""

    seed: int = 0


class ModelStep(StepBase):
    """Weights on disk, judged by a manifest of file hashes."""

    kind: Literal["model"] = "model"
    name: PlainName
    tiny: TinyModel | None = None
    directory: AbsolutePath | None = Field(default=None, description="already on the host")
    hub: Argument | None = Field(
        default=None, description="repository id on the hub, such as Qwen/Qwen2.5-0.5B-Instruct"
    )
    revision: Argument | None = None
    endpoint: Argument | None = Field(default=None, description="base URL of the hub or of a mirror")
    timeout: int = Field(default=7200, ge=1)

    @model_validator(mode="after")
    def _one_origin(self) -> ModelStep:
        given = [name for name in ("tiny", "directory", "hub") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of tiny, directory and hub")
        if self.hub is not None and self.revision is None:
            raise ValueError("a hub model needs a revision, else no two hosts need have the same weights")
        return self


class LmcacheConfigStep(StepBase):
    """LMCache's configuration file."""

    kind: Literal["lmcache_config"] = "lmcache_config"
    lmcache: str = Field(description="LMCache version whose keys are valid")
    settings: dict[str, Any] = {}
    extra_keys: list[str] = Field(default=[], description="further keys that a plug-in adds")


class Connector(StrictModel):
    """vLLM's --kv-transfer-config."""

    name: PlainName
    role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    module_path: PlainName | None = None
    extra: dict[str, Any] = {}


class ContainerRun(StrictModel):
    """The service's processes run in containers of an image, as the service's user and without capabilities.

    Devices, groups, security options and driver mounts follow from the playbook's accelerator and the host's facts.
    """

    image: PlainName = Field(description="name of the container_image step")
    shm_size: str = Field(default="16g", pattern=r"^[0-9]+[bkmg]?$", description="size of /dev/shm; unused in MP mode")
    devices: list[AbsolutePath] = Field(default=[], description="further devices, each of which the host must have")
    mounts: list[Annotated[str, Field(pattern=r"^/[^:\s]+:/[^:\s]+(:ro)?$")]] = Field(
        default=[], description="further mounts, as /there:/inside or /there:/inside:ro"
    )
    memlock: Literal["host", "unlimited"] = Field(
        default="unlimited", description="`host` hands on the engine's own limit, where it may not raise one"
    )


LOOPBACK = "127.0.0.1"


def _check_own_address(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise ValueError("not an IPv4 address of the host") from error
    if address.is_unspecified:
        raise ValueError("this is every network of the host: name its address in the fleet's own network")
    return text


class MpServer(StrictModel):
    """The LMCache server of MP mode."""

    host: Annotated[str, AfterValidator(_check_own_address)] = Field(
        default=LOOPBACK,
        # Left out where it says nothing, so that it makes no other digest of the releases that were there before it.
        exclude_if=lambda value: value == LOOPBACK,
        description="address on which engines reach it. It asks nobody who they are and unpickles what they send: keep "
        "another one than loopback to the fleet's own network. Its HTTP side is always on loopback",
    )
    port: int = Field(default=5555, ge=1, le=65535)
    http_port: int = Field(default=8080, ge=1, le=65535)
    l1_size_gb: float = Field(default=1, gt=0, strict=False)
    chunk_size: int = Field(default=256, ge=1)
    eviction_policy: str = "LRU"
    transfer_mode: Literal["auto", "engine_driven", "lmcache_driven"] = "auto"
    l2_adapter: dict[str, Any] | None = None
    args: list[str] = []

    @model_validator(mode="after")
    def _listens_where_it_says(self) -> MpServer:
        # Neither side of the server asks who is there.
        if any(word.startswith(("--host", "--http-host")) for word in self.args):
            raise ValueError("the server has no authentication: where it listens is said by `host` alone")
        if self.l2_adapter and self.l2_adapter.get("password"):
            raise ValueError("l2_adapter stands in a command line: let `secrets` have LMCACHE_RESP_PASSWORD instead")
        return self


class ServiceStep(StepBase):
    """systemd units: vLLM with the connector or SGLang, and the LMCache server in MP mode; or that server alone."""

    kind: Literal["service"] = "service"
    engine: Literal["vllm", "sglang"] = Field(
        default="vllm",
        # Left out where it says nothing, so that it makes no other digest of the releases that were there before it.
        exclude_if=lambda value: value == "vllm",
        description="what serves the model. SGLang brings its own connector, and needs a `server` beside it",
    )
    model: PlainName | None = Field(default=None, description="name of the model step; what the engine serves")
    served_name: Argument = "default"
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    connector: Connector | None = Field(
        default=None, description="vLLM's; without it and without `model` only the `server` runs, for engines elsewhere"
    )
    server: MpServer | None = None
    args: list[EnvValue] = Field(default=[], description="of the engine")
    env: Environment = {}
    secrets: list[PlainName] = Field(default=[], description="names of inventory secrets put into the environment")
    user: PlainName = "lmcache"
    groups: list[PlainName] = Field(default=[], description="supplementary groups, those that exist")
    devices: list[Argument] = Field(default=[], description="device patterns the sandbox allows; empty allows all")
    container: ContainerRun | None = Field(default=None, description="run in an image instead of the release's venv")
    memlock: PlainName = "infinity"
    start_timeout: int = Field(default=1200, ge=1)

    @model_validator(mode="after")
    def _something_runs(self) -> ServiceStep:
        if self.engine == "sglang":
            self._fits_sglang()
            return self
        if (self.model is None) != (self.connector is None):
            given, lacking = ("connector", "model") if self.model is None else ("model", "connector")
            raise ValueError(f"vLLM needs both: `{given}` is given and `{lacking}` is not")
        if self.has_engine:
            return self
        if self.server is None:
            raise ValueError("give `model` and `connector` for vLLM, or `server` for an LMCache server alone")
        of_vllm = [name for name in ("served_name", "host", "port", "args") if name in self.model_fields_set]
        if of_vllm:
            raise ValueError(
                f"{', '.join(of_vllm)}: of vLLM, which doesn't run without `model` and `connector`; the LMCache "
                "server's own stand below `server`"
            )
        return self

    def _fits_sglang(self) -> None:
        if self.connector is not None:
            raise ValueError("`connector` is of vLLM: SGLang brings its own, and is told of `server` by a file")
        lacking = [name for name in ("model", "server") if getattr(self, name) is None]
        if lacking:
            raise ValueError(f"SGLang needs `model` and `server`: `{'` and `'.join(lacking)}` is not given")
        page = re.search(r"(?:^| )--page-size[ =](\d+)(?: |$)", " ".join(self.args))
        if self.server and page and (int(page[1]) == 0 or self.server.chunk_size % int(page[1])):
            raise ValueError(
                f"`chunk_size` of `server` is {self.server.chunk_size}, no multiple of SGLang's --page-size {page[1]}"
            )

    @property
    def has_engine(self) -> bool:
        """Whether vLLM or SGLang runs, rather than an LMCache server alone."""
        return self.model is not None

    @property
    def uses_server(self) -> bool:
        """Whether there is an LMCache server: beside vLLM, or elsewhere and named by the connector."""
        return self.server is not None or (self.connector is not None and "lmcache.mp.host" in self.connector.extra)


class ImageBuild(StrictModel):
    """An image made on the host from a Dockerfile of a source tree."""

    source: PlainName = Field(description="name of the source step; its tree is the build's context")
    dockerfile: Annotated[Argument, AfterValidator(_check_inside)] = "Dockerfile"
    target: PlainName | None = None
    args: Environment = {}
    version: PlainName | None = Field(
        default=None, description="version given to setuptools_scm, which finds no git in the packed tree"
    )


class ContainerImageStep(StepBase):
    """A container image: pulled by digest, built from a source tree's Dockerfile, or a base with wheels put on it."""

    kind: Literal["container_image"] = "container_image"
    name: PlainName
    engine: Literal["podman", "docker"] = "podman"
    image: Annotated[Argument, Field(pattern=_IMAGE)] | None = Field(
        default=None, description="registry/name[:tag][@sha256:…]; a tag is resolved once and its digest recorded"
    )
    follow_tag: bool = Field(default=False, description="ask for the tag's digest at every run: for nightly images")
    tls_verify: bool = Field(default=True, description="false for a registry without TLS or with any certificate")
    build: ImageBuild | None = None
    install: list[PackagesStep] = Field(default=[], description="pip calls on top of the image, in order")
    python: Argument = Field(default="python3", description="the image's interpreter")
    expect: list[Pin] = Field(default=[], description="distributions that the image must hold in exactly this version")
    attributes: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)+$")], EnvValue] = Field(
        default={}, description="Python attribute → shell pattern that its value in the image must match"
    )
    imports: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]] = Field(
        default=[], description="modules that must load inside, on the host's devices"
    )
    push: Annotated[Argument, Field(pattern=_IMAGE)] | None = Field(
        default=None, description="registry/name that a made image is pushed to, and taken from by other hosts"
    )
    timeout: int = Field(default=7200, ge=1)

    @model_validator(mode="after")
    def _one_origin(self) -> ContainerImageStep:
        if (self.image is None) == (self.build is None):
            raise ValueError("give exactly one of image and build")
        if self.push and not self.made:
            raise ValueError("push is for images that are made here: with build or install")
        if self.push and ("@" in self.push or ":" in self.push.rsplit("/", 1)[-1]):
            raise ValueError("push is registry/name without tag: the tag is the spec's digest")
        for call in self.install:
            refused = {"owns": call.owns, "wheel_tag": call.wheel_tag, "machine_wheels": call.machine_wheels}
            refused |= {"overrides": call.overrides, "index_strategy": call.index_strategy}
            wrong = [name for name, value in refused.items() if value]
            if wrong:
                raise ValueError(f"inside an image pip installs, and there is no {', '.join(wrong)}")
        return self

    @property
    def made(self) -> bool:
        """Whether the image is made on the host rather than pulled as it is."""
        return self.build is not None or bool(self.install)


class VerifyStep(StepBase):
    """Evidence that the KV cache is really offloaded."""

    kind: Literal["verify"] = "verify"
    stage: Literal["offline", "online"]
    mode: Literal["inprocess", "mp", "server", "service"]
    options: dict[str, Any] = Field(default={}, description="settings of the verification program")
    timeout: int = Field(default=1800, ge=1)


AnyStep = (
    SystemPackagesStep
    | ToolkitEnvStep
    | VenvStep
    | PackagesStep
    | SourceStep
    | NativeBuildStep
    | ModelStep
    | LmcacheConfigStep
    | ContainerImageStep
    | ServiceStep
    | VerifyStep
    | KvStoreStep
)

STEP_KINDS: dict[str, type[StepBase]] = {
    "system_packages": SystemPackagesStep,
    "toolkit_env": ToolkitEnvStep,
    "venv": VenvStep,
    "packages": PackagesStep,
    "source": SourceStep,
    "native_build": NativeBuildStep,
    "model": ModelStep,
    "lmcache_config": LmcacheConfigStep,
    "container_image": ContainerImageStep,
    "service": ServiceStep,
    "verify": VerifyStep,
    "kv_store": KvStoreStep,
}


def _tagged(value: Any) -> Any:
    # `- venv: {python: "3.12"}` is how people write it; the union wants the kind beside the fields.
    if isinstance(value, dict) and len(value) == 1:
        ((kind, fields),) = value.items()
        if isinstance(fields, dict):
            return {**fields, "kind": kind}
        if fields is None:
            return {"kind": kind}
    return value


Step = Annotated[Annotated[AnyStep, Field(discriminator="kind")], BeforeValidator(_tagged)]


class Playbook(StrictModel):
    """What is wanted on a host, as ordered steps."""

    apiVersion: Literal["lmcache-fleet/v1"]  # noqa: N815 - the key's name in the file
    name: PlainName
    description: str = ""
    role: Role = Field(default="engine", description="hosts without this role are left alone")
    vars: dict[str, Any] = {}
    requires: Requirements = Requirements()
    steps: list[Step] = Field(min_length=1)

    @model_validator(mode="after")
    def _references(self) -> Playbook:
        _expect_named(self.steps, NativeBuildStep, "source", SourceStep)
        _expect_named(self.steps, ServiceStep, "model", ModelStep)
        _expect_sources_of_files(self.steps)
        _expect_images(self.steps)
        _expect_fitting_proofs(self.steps, self.described_service)
        for kind in (VenvStep, ServiceStep):
            if len(self.of_kind(kind)) > 1:
                raise ValueError(f"at most one {kind.__name__.removesuffix('Step').lower()} step")
        return self

    @property
    def described_service(self) -> ServiceStep | None:
        """The service that runs, or that would: one left out on this host still says what a verify step proves."""
        services = [step for step in self.steps if isinstance(step, ServiceStep)]
        return next((step for step in services if step.when), services[0] if services else None)

    def of_kind(self, kind: type[StepBase]) -> list[Any]:
        """The active steps of one kind, in order."""
        return [step for step in self.steps if isinstance(step, kind) and step.when]


def _expect_named(steps: Iterable[StepBase], users: type[StepBase], field: str, makers: type[StepBase]) -> None:
    made: set[str] = set()
    for step in steps:
        if not step.when:
            continue
        if isinstance(step, makers):
            made.add(step.name)  # type: ignore[attr-defined]
        elif isinstance(step, users) and getattr(step, field) not in {None, *made}:
            kind, wanted = step.kind, getattr(step, field)  # type: ignore[attr-defined]
            raise ValueError(f"the {kind} step names the {field} '{wanted}', which no {field} step above makes")


def _expect_sources_of_files(steps: Iterable[Any]) -> None:
    made = set()
    for step in steps:
        if isinstance(step, SourceStep) and step.when:
            made.add(step.name)
        elif isinstance(step, PackagesStep) and step.when and step.requirements:
            wanted = step.requirements.source
            if wanted not in made:
                raise ValueError(
                    f"the packages step {step.name} names the source '{wanted}', which no source step above makes"
                )


def _expect_images(steps: Iterable[StepBase]) -> None:
    images: set[str] = set()
    sources: set[str] = set()
    for step in steps:
        if not step.when:
            continue
        if isinstance(step, SourceStep):
            sources.add(step.name)
        elif isinstance(step, ContainerImageStep):
            images.add(step.name)
            if step.build and step.build.source not in sources:
                raise ValueError(f"the image names the source '{step.build.source}', which no source step above makes")
        elif isinstance(step, ServiceStep) and step.container and step.container.image not in images:
            wanted = step.container.image
            raise ValueError(f"the service names the image '{wanted}', which no container_image step above makes")


def _expect_fitting_proofs(steps: Iterable[StepBase], service: ServiceStep | None) -> None:
    for step in steps:
        if service is None or not isinstance(step, VerifyStep) or not step.when or step.mode == "service":
            continue
        if step.mode == "server" and (step.stage == "online" or service.has_engine):
            raise ValueError(
                "`mode: server` proves an LMCache server alone, off-line: give it `mode: service` when on-line, and "
                "`mode: mp` or `mode: inprocess` where an engine runs"
            )
        if step.mode != "server" and not service.has_engine:
            raise ValueError(
                f"`mode: {step.mode}` proves an engine, and the service is an LMCache server alone: give it "
                "`mode: server`"
            )
        if step.mode == "inprocess" and service.engine == "sglang":
            raise ValueError("`mode: inprocess` proves vLLM's own connector: SGLang is proved by `mode: mp`")
