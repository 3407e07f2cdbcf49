"""An extension built once for all hosts of a key, and installed as a wheel."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from gevent.lock import BoundedSemaphore
from pyinfra import logger
from pyinfra.api import FileDownloadCommand, FileUploadCommand
from pyinfra.connectors.util import CommandOutput

from facts.releases import Releases
from lmcache_fleet.digest import digest
from lmcache_fleet.envfile import parse_env
from lmcache_fleet.installer import UV_ENV, install_call
from lmcache_fleet.judge import build_key
from lmcache_fleet.playbook.model import NativeBuildStep, PackagesStep, SourceStep
from lmcache_fleet.shell import program_source, script, words, write_file
from lmcache_fleet.store import RefusedArtifact, Wheel, WheelStore
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.packages import check_command, install_script
from operations.plan import HostPlan
from operations.session import Session
from operations.venv import uv_path

# One builder a key: the others of the key wait here and then take its wheel. If it fails, the next one tries.
_building: dict[str, BoundedSemaphore] = {}


@step_operation
def source(session: Session, plan: HostPlan, step: SourceStep) -> Commands:
    """The source tree is in the control machine's store: fetched, submodules filled, patched.

    + step: repository, ref, submodules, patches

    Hosts get it only when they build; nothing is changed on them here.
    """
    tree = plan.trees()[step.name]
    native = [item for item in plan.playbook.of_kind(NativeBuildStep) if item.source == step.name]
    # Shown only when it is another tree than the one that the serving release was built from.
    records = [plan.before.records.get(f"native-{item.package}") or {} for item in native] if plan.before else []
    known = any(tree.identity.items() <= record.get("key", {}).items() for record in records)
    pending = [change for item in native for change in plan.changes(item)]
    if pending and not known and session.state.config.DIFF:
        for patch in tree.patches:
            session.host.log(f"{session.step}  {patch.path}: {patch.state}")
            for line in patch.diff:
                session.host.log(f"    {line}")
    session.show([])
    session.host.noop(f"{step.name} {step.ref} is {tree.commit[:12]}")
    yield from ()


@step_operation
def native_build(session: Session, plan: HostPlan, step: NativeBuildStep) -> Commands:
    """The release has the extension of this host's key.

    + step: source, package, what the build must leave behind
    """
    if not session.show(plan.changes(step)):
        session.host.noop(f"{step.package} of this host's key is installed")
        return
    key = build_key(step, plan.wanted, plan.target.state)
    store = WheelStore()
    turn = _building.setdefault(f"{step.package} {digest(key, 20)}", BoundedSemaphore(1))
    wheel = _stored(store, step, key)
    if wheel is None:
        with turn:
            # Whoever waited finds the wheel of the one that was first.
            wheel = _stored(store, step, key)
            if wheel is None:
                yield from _build(session, plan, step, key, store)
                wheel = _stored(store, step, key)
    if wheel is None:
        raise HostFault(f"{step.package} was built, but its wheel didn't reach the artifact store")
    yield from _install(session, plan, step, wheel)


def _stored(store: WheelStore, step: NativeBuildStep, key: dict[str, Any]) -> Wheel | None:
    try:
        return store.find(step.package, key)
    except RefusedArtifact as error:
        raise HostFault(
            f"a stored artifact is refused: {error}", "remove that folder; the next run builds it anew"
        ) from error


def _build(session: Session, plan: HostPlan, step: NativeBuildStep, key: dict[str, Any], store: WheelStore) -> Commands:
    layout, target = session.layout, plan.target
    release = layout.release(target.name)
    tree = plan.trees()[step.source]
    work = f"{layout.prefix}/builds/{step.package}-{digest(key, 20)}"
    venv = plan.needed_venv()
    if venv.installer == "uv":
        command = [uv_path(venv, layout), "build", "--wheel", "--no-build-isolation", "--python", release.python]
        command += ["--out-dir", "@OUT@", "@TREE@"]
    else:
        command = [release.python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "@OUT@", "@TREE@"]
    request = {
        "work": work,
        "name": step.source,
        "archive": base64.b64encode(tree.archive.read_bytes()).decode(),
        "archive_sha256": tree.sha256,
        "toolkit": parse_env(plan.wanted.toolkit_env or ""),
        "env": {**UV_ENV, "UV_CACHE_DIR": layout.uv_cache, **step.env},
        "command": command,
        "version": step.version,
        "soc": step.soc,
        "job_memory_gb": step.job_memory_gb,
        "spare_memory_gb": step.spare_memory_gb,
        "memory_gb": step.memory_gb,
    }
    built: list[tuple[str, str]] = []

    def note(output: CommandOutput) -> None:
        lines = [line for line in output.stdout_lines if line.startswith("built ")]
        if lines:
            _, path, sha256 = lines[-1].split()
            built.append((path, sha256))

    yield session.remote(
        words(release.python, "-c", program_source("build_wheel.py")),
        stdin=json.dumps(request),
        timeout=step.timeout,
        doing=f"building {step.package} for {key['soc'] or key['arch']}, once for all hosts of this key",
        then=note,
    )
    if not built:
        raise HostFault(f"the build of {step.package} named no wheel")
    path, sha256 = built[0]
    with tempfile.TemporaryDirectory(prefix="lmcache-fleet-") as folder:
        local = Path(folder) / Path(path).name
        yield FileDownloadCommand(path, str(local))
        try:
            store.add(step.package, key, local, sha256, session.host.name)
        except RefusedArtifact as error:
            raise HostFault(str(error), "run again") from error
    logger.info(f"{session.host.print_prefix}{Path(path).name} is in the artifact store")
    yield session.remote(f"rm -rf {words(work)}")


def _install(session: Session, plan: HostPlan, step: NativeBuildStep, wheel: Wheel) -> Commands:
    layout, venv = session.layout, plan.needed_venv()
    release = layout.release(plan.target.name)
    folder = f"{layout.prefix}/cache/wheels/{wheel.sha256[:16]}"
    there = f"{folder}/{wheel.path.name}"
    yield session.remote(f"umask 022; mkdir -p {words(folder)}")
    yield FileUploadCommand(str(wheel.path), there)
    # The call is that of a packages step without an index: only the wheel at hand can be taken.
    local = PackagesStep(
        name=f"native-{step.package}", pins=[f"{step.package}==0"], no_deps=True, no_index=True, force_reinstall=True
    )
    call = install_call(local, venv, layout, release, uv_path(venv, layout), requirements=[there])
    record = {"key": wheel.key, "sha256": wheel.sha256, "wheel": wheel.path.name}
    check = f"printf '%s  %s\\n' {words(wheel.sha256, there)} | sha256sum -c --quiet -"
    loads = check_command({}, step.imports, plan, release)
    keep = write_file(release.file(f"records/native-{step.package}.json"), json.dumps(record, sort_keys=True))
    yield session.remote(
        script(check, install_script(call, release, f"native_build {step.package}", record=script(loads, keep))),
        timeout=600,
        doing=f"installing {wheel.path.name} from the artifact store",
    )
    session.forget(Releases)
